package artifact

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/pkg/guard"
	"github.com/windlass-run/windlass/pkg/share"
)

// Names of directories. A scope has filesDir with complete artifacts (see DirOf), partialDir with
// downloads, and serversDir with the repositories of servers.
const (
	filesDir   = "files"
	partialDir = "partial"
	serversDir = "servers"
)

const (
	// fetchesAtOnce is how many downloads run at the same time, and perHost how many of them come
	// from one host. One workspace may have at most half of either number. See package share.
	fetchesAtOnce = 32
	perHost       = 8
	// keepUnused is how long files stay that no model needs. They go earlier if room is needed.
	keepUnused = 24 * time.Hour
	// keepFree is how much of the disk stays free if the store has no limit, in bytes.
	keepFree = 1 << 30
)

// Config of a Store.
type Config struct {
	// Dir is the directory of the store. It is made if it does not exist.
	Dir string
	// Allow has networks with private addresses that may be connected to, also without TLS.
	Allow guard.Networks
	// MaxBytes limits the size of all files. 0: the files may fill the disk, except for 1 GiB.
	MaxBytes int64
	Log      *slog.Logger
	// Registerer gets the metrics. Nil: no metrics.
	Registerer prometheus.Registerer
	// Stall is how long a source may send nothing. Default: 1 min.
	Stall time.Duration
	// Pause is the delay before a broken download continues. It doubles with each further attempt
	// that brings nothing. Default: 500 ms.
	Pause time.Duration
}

// Store has the files of models. It is safe for concurrent use.
type Store struct {
	cfg       Config
	transport http.RoundTripper
	metrics   *metrics
	slots     *share.Slots

	mu sync.Mutex
	// fetches has the running fetches.
	fetches map[key]*fetch
	// hosts has the slots of each host from which something is fetched.
	hosts map[string]*host
	// used is the size of all files, in bytes, including the files of running downloads.
	used int64
	// needed reports whether a model needs an artifact. Nil: no artifact is deleted.
	needed func(scope, dir string) bool
}

// key names an artifact of a scope by its directory, see DirOf.
type key struct{ scope, dir string }

type host struct {
	slots *share.Slots
	users int
}

// fetch is a running fetch that several callers wait for.
type fetch struct {
	done   chan struct{}
	cancel context.CancelFunc
	// waiting is the number of callers. The fetch ends with the last one.
	waiting int
	err     error
}

// Open returns the store of a directory.
func Open(cfg Config) (*Store, error) {
	if cfg.Dir == "" || cfg.Log == nil {
		return nil, errors.New("artifact: Dir and Log of Config are required")
	}
	cfg.Stall = cmp.Or(cfg.Stall, time.Minute)
	cfg.Pause = cmp.Or(cfg.Pause, 500*time.Millisecond)
	if err := makeDir(cfg.Dir); err != nil {
		return nil, fmt.Errorf("make the directory of models: %w", err)
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register the metrics of artifacts: %w", err)
	}
	s := &Store{
		cfg: cfg, transport: newTransport(cfg.Allow), metrics: m, slots: share.NewSlots(fetchesAtOnce),
		fetches: map[key]*fetch{}, hosts: map[string]*host{},
	}
	scopes, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("read the directory of models: %w", err)
	}
	for _, scope := range scopes {
		for _, dir := range []string{filesDir, partialDir} {
			size, err := sizeOf(filepath.Join(cfg.Dir, scope.Name(), dir))
			if err != nil {
				return nil, fmt.Errorf("read the files of models: %w", err)
			}
			s.used += size
		}
	}
	s.metrics.bytes.Set(float64(s.used))
	return s, nil
}

// KeepNeeded makes the store keep artifacts for which needed returns true, by DirOf. It deletes
// other artifacts once it needs room. needed must not call the store.
func (s *Store) KeepNeeded(needed func(scope, dir string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.needed = needed
}

// DirOf returns the name of the directory of an artifact in its scope, or "" if the reference has no digest.
func DirOf(r Reference) string {
	p, err := parse(r)
	if err != nil {
		return ""
	}
	return p.dir()
}

var safeName = regexp.MustCompile(`^[A-Za-z0-9_][-A-Za-z0-9_.]*$`)

// ScopeDir returns the directory of a scope, such as an environment. It is the only directory that
// servers of this scope need to see.
func ScopeDir(dir, scope string) string { return filepath.Join(dir, scope) }

// RepositoryDir returns the directory in which a server finds its models, each in a directory of
// the model's name.
func RepositoryDir(dir, scope, server string) string {
	return filepath.Join(ScopeDir(dir, scope), serversDir, server)
}

// Fetch returns the directory with the files of an artifact. It downloads them if they are not
// there. Several calls for the same artifact share one download. The error says what the source
// did wrong, without credentials.
func (s *Store) Fetch(ctx context.Context, scope, workspace string, r Reference, c Credentials) (string, error) {
	p, err := parse(r)
	if err != nil {
		return "", err
	}
	if !safeName.MatchString(scope) {
		return "", fmt.Errorf("%q cannot be the name of a directory", scope)
	}
	k := key{scope, p.dir()}
	for {
		s.mu.Lock()
		if s.has(k) {
			s.mu.Unlock()
			return s.filesOf(k), nil
		}
		f := s.fetches[k]
		left := f != nil && f.waiting == 0
		switch {
		case f == nil:
			var running context.Context
			f = &fetch{done: make(chan struct{}), waiting: 1}
			running, f.cancel = context.WithCancel(context.WithoutCancel(ctx))
			s.fetches[k] = f
			go s.run(running, k, f, workspace, p, c)
		case !left:
			f.waiting++
		}
		s.mu.Unlock()
		select {
		case <-f.done:
			if left {
				continue // It was canceled because it had no callers left.
			}
			if f.err != nil {
				return "", f.err
			}
			return s.filesOf(k), nil
		case <-ctx.Done():
		}
		if !left {
			s.leave(f)
		}
		return "", fmt.Errorf("artifact from %s: not fetched in time: %w", p.host(), context.Cause(ctx))
	}
}

// leave makes a caller leave a fetch. The fetch is canceled with the last one.
func (s *Store) leave(f *fetch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.waiting--; f.waiting == 0 {
		f.cancel()
	}
}

// filesOf returns the directory of a complete artifact.
func (s *Store) filesOf(k key) string {
	return filepath.Join(ScopeDir(s.cfg.Dir, k.scope), filesDir, k.dir)
}

func (s *Store) partialOf(k key) string {
	return filepath.Join(ScopeDir(s.cfg.Dir, k.scope), partialDir, k.dir)
}

// has reports whether an artifact is complete, and records that it was used now.
func (s *Store) has(k key) bool {
	now := time.Now()
	return os.Chtimes(s.filesOf(k), now, now) == nil
}

// run fetches an artifact, and tells the callers that wait for it.
func (s *Store) run(ctx context.Context, k key, f *fetch, workspace string, p parsed, c Credentials) {
	began := time.Now()
	err := s.admit(ctx, workspace, p.host(), func() error {
		return s.download(ctx, k, p, c)
	})
	s.metrics.ended(p.kind(), err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.err = err; err != nil {
		f.err = fmt.Errorf("artifact from %s: %w", p.host(), err)
		s.cfg.Log.WarnContext(ctx, "cannot fetch an artifact", "host", p.host(), "digest", p.digest, "error", err)
	} else {
		s.cfg.Log.InfoContext(ctx, "fetched an artifact", "host", p.host(), "digest", p.digest, "took", time.Since(began))
	}
	delete(s.fetches, k)
	f.cancel()
	close(f.done)
}

// admit calls work once a download may begin.
func (s *Store) admit(ctx context.Context, workspace, name string, work func() error) error {
	s.mu.Lock()
	h := s.hosts[name]
	if h == nil {
		h = &host{slots: share.NewSlots(perHost)}
		s.hosts[name] = h
	}
	h.users++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if h.users--; h.users == 0 {
			delete(s.hosts, name)
		}
	}()
	if err := h.slots.Acquire(ctx, workspace); err != nil {
		return err
	}
	defer h.slots.Release(workspace)
	if err := s.slots.Acquire(ctx, workspace); err != nil {
		return err
	}
	defer s.slots.Release(workspace)
	return work()
}

// errNoRoom means that the disk, or the part of it that models may use, is full.
var errNoRoom = errors.New("no room on the disk")

// reserve takes room for n more bytes. It deletes files that no model needs, least recently used
// first, if there is not enough room.
func (s *Store) reserve(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	short, err := s.lacks(n)
	if err == nil && short > 0 {
		for _, old := range s.unneeded() {
			if err = s.evict(old.key); err != nil {
				break
			}
			if short, err = s.lacks(n); err != nil || short <= 0 {
				break
			}
		}
	}
	if err != nil {
		return err
	}
	if short > 0 {
		return fmt.Errorf("%w: %d MiB more are needed, and the region's models need all other files", errNoRoom, (short+1<<20-1)>>20)
	}
	s.used += n
	s.metrics.bytes.Set(float64(s.used))
	return nil
}

// lacks returns how many bytes are missing for n more bytes.
func (s *Store) lacks(n int64) (int64, error) {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(s.cfg.Dir, &disk); err != nil {
		return 0, fmt.Errorf("read the free space of the disk: %w", err)
	}
	block := int64(disk.Bsize) //nolint:unconvert // the type differs between systems
	short := n - int64(disk.Bavail)*block
	if s.cfg.MaxBytes > 0 {
		return max(short, s.used+n-s.cfg.MaxBytes), nil
	}
	return short + keepFree, nil
}

// give returns room.
func (s *Store) give(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
	s.metrics.bytes.Set(float64(s.used))
}

type old struct {
	key
	used time.Time
}

// unneeded returns the artifacts that no model needs, least recently used first. The caller holds
// the lock.
func (s *Store) unneeded() []old {
	if s.needed == nil {
		return nil
	}
	var out []old
	scopes, _ := os.ReadDir(s.cfg.Dir)
	for _, scope := range scopes {
		for _, dir := range []string{filesDir, partialDir} {
			entries, _ := os.ReadDir(filepath.Join(s.cfg.Dir, scope.Name(), dir))
			for _, e := range entries {
				k := key{scope.Name(), e.Name()}
				if info, err := e.Info(); err == nil && s.fetches[k] == nil && !s.needed(k.scope, k.dir) {
					out = append(out, old{k, info.ModTime()})
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b old) int { return a.used.Compare(b.used) })
	return out
}

// evict deletes an artifact. The caller holds the lock.
func (s *Store) evict(k key) error {
	for _, dir := range []string{s.filesOf(k), s.partialOf(k)} {
		size, err := sizeOf(dir)
		if err == nil {
			err = removeAll(dir)
		}
		if err != nil {
			return fmt.Errorf("delete files that no model needs: %w", err)
		}
		s.used -= size
	}
	s.metrics.bytes.Set(float64(s.used))
	return nil
}

// Sweep deletes files that no model has needed for a day. It deletes scopes for which inUse returns
// false and that have neither servers nor running fetches. It deletes the repositories of servers
// that are not in servers.
func (s *Store) Sweep(inUse func(scope string) bool, servers map[string]bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.unneeded() {
		if time.Since(o.used) < keepUnused && inUse(o.scope) {
			continue
		}
		if err := s.evict(o.key); err != nil {
			return err
		}
	}
	scopes, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return fmt.Errorf("read the directory of models: %w", err)
	}
	for _, scope := range scopes {
		entries, _ := os.ReadDir(filepath.Join(s.cfg.Dir, scope.Name(), serversDir))
		left := false
		for _, e := range entries {
			if servers[e.Name()] {
				left = true
			} else if err := removeAll(RepositoryDir(s.cfg.Dir, scope.Name(), e.Name())); err != nil {
				return fmt.Errorf("delete the models of a server that is gone: %w", err)
			}
		}
		if !left && !inUse(scope.Name()) && !s.fetching(scope.Name()) {
			if err := removeAll(ScopeDir(s.cfg.Dir, scope.Name())); err != nil {
				return fmt.Errorf("delete the models of an environment: %w", err)
			}
		}
	}
	return nil
}

// fetching reports whether a fetch of the scope runs. The caller holds the lock.
func (s *Store) fetching(scope string) bool {
	for k := range s.fetches {
		if k.scope == scope {
			return true
		}
	}
	return false
}

// Link makes the files of an artifact the model that a server finds under a name in its repository.
// Files are hard links, because some servers skip symbolic links.
func (s *Store) Link(scope, server, name, from string) error {
	if !safeName.MatchString(server) || !safeName.MatchString(name) {
		return fmt.Errorf("%q cannot be the name of a directory", server+"/"+name)
	}
	repository := RepositoryDir(s.cfg.Dir, scope, server)
	for _, dir := range []string{filepath.Dir(repository), repository} {
		if err := makeDir(dir); err != nil {
			return fmt.Errorf("make the repository of a server: %w", err)
		}
	}
	to, staged := filepath.Join(repository, name), filepath.Join(repository, "."+name)
	if err := removeAll(staged); err != nil {
		return err
	}
	err := filepath.WalkDir(from, func(at string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, at)
		if err != nil {
			return err
		}
		if e.IsDir() {
			return makeDir(filepath.Join(staged, rel))
		}
		return os.Link(at, filepath.Join(staged, rel))
	})
	if err == nil {
		err = removeAll(to)
	}
	if err == nil {
		err = os.Rename(staged, to)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("put the model into the repository of a server: %w", err), removeAll(staged))
	}
	return nil
}

// Unlink removes a model from the repository of a server.
func (s *Store) Unlink(scope, server, name string) error {
	if !safeName.MatchString(server) || !safeName.MatchString(name) {
		return nil
	}
	return removeAll(filepath.Join(RepositoryDir(s.cfg.Dir, scope, server), name))
}

// makeScope makes the directory of a scope. The runtime changes its Unix group to that of the
// scope's servers.
func (s *Store) makeScope(scope string) error {
	err := os.Mkdir(ScopeDir(s.cfg.Dir, scope), 0o750)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// makeDir makes a directory that servers can read, whatever the umask of the agent is. Directories
// above the store exist.
func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// removeAll deletes a directory. A missing one is no error.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// sizeOf returns the size of all files in a directory, in bytes. A missing directory has 0.
func sizeOf(dir string) (size int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	})
	return size, err
}
