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

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/pkg/guard"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/share"
)

// Names of directories. A scope has filesDir with complete artifacts (see DirOf), partialDir with
// downloads, and serversDir with the repositories of servers.
const (
	filesDir   = "files"
	partialDir = "partial"
	serversDir = "servers"
	// goneDir has what is being deleted, of all scopes. No scope begins with a dot.
	goneDir = ".gone"
)

const (
	// fetchesAtOnce is how many downloads run at the same time, and perHost how many of them come
	// from one host. One workspace may have at most half of either number. See package share.
	fetchesAtOnce = 32
	perHost       = 8
	// keepUnused is how long files stay that no model needs. They go earlier if room is needed.
	keepUnused = 24 * time.Hour
	// newRepository is how long the repository of an unknown server stays, because the server may be starting.
	newRepository = time.Minute
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
	// freeing has an element while a fetch makes room, and during a Sweep.
	freeing chan struct{}

	mu sync.Mutex
	// fetches has the running fetches.
	fetches map[key]*fetch
	// hosts has the slots of each host from which something is fetched.
	hosts map[string]*host
	// used is the size of all files, in bytes, including the files of running downloads and those that are being deleted.
	used int64
	// undeleted has what could not be deleted yet.
	undeleted []gone
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
	cancel context.CancelCauseFunc
	// waiting is the number of callers. The fetch ends with the last one.
	waiting int
	err     error
	// workspace pays for the fetch. bytes is the room that the fetch has taken.
	workspace string
	bytes     int64
}

// gone is a directory in goneDir. isCounted means that its files are counted in Store.used.
type gone struct {
	path      string
	isCounted bool
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
		cfg: cfg, transport: newTransport(cfg.Allow), metrics: m, slots: share.NewSlots(fetchesAtOnce), freeing: make(chan struct{}, 1),
		fetches: map[key]*fetch{}, hosts: map[string]*host{},
	}
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("read the files of models: %w", err)
	}
	s.metrics.bytes.Set(float64(s.used))
	return s, nil
}

// open counts the files that an earlier agent has left.
func (s *Store) open() error {
	if err := os.MkdirAll(filepath.Join(s.cfg.Dir, goneDir), 0o700); err != nil {
		return err
	}
	counted := []string{filepath.Join(s.cfg.Dir, goneDir)}
	scopes, err := s.scopes()
	for _, scope := range scopes {
		counted = append(counted, filepath.Join(s.cfg.Dir, scope, filesDir), filepath.Join(s.cfg.Dir, scope, partialDir))
	}
	for _, dir := range counted {
		size, failed := sizeOf(dir)
		s.used, err = s.used+size, errors.Join(err, failed)
	}
	left, failed := os.ReadDir(filepath.Join(s.cfg.Dir, goneDir))
	for _, e := range left {
		s.undeleted = append(s.undeleted, gone{filepath.Join(s.cfg.Dir, goneDir, e.Name()), true})
	}
	return errors.Join(err, failed)
}

// scopes returns the names of all scopes that have a directory.
func (s *Store) scopes() ([]string, error) {
	entries, err := os.ReadDir(s.cfg.Dir)
	var out []string
	for _, e := range entries {
		if safeName.MatchString(e.Name()) {
			out = append(out, e.Name())
		}
	}
	return out, err
}

// KeepNeeded makes the store keep artifacts for which needed returns true, by DirOf. It deletes all others
// once it needs room. needed must not call the store.
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
	return p.dirName()
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
	k := key{scope, p.dirName()}
	for {
		s.mu.Lock()
		if s.hasArtifact(k) {
			s.mu.Unlock()
			return s.filesOf(k), nil
		}
		f := s.fetches[k]
		left := f != nil && f.waiting == 0
		switch {
		case f == nil:
			var running context.Context
			f = &fetch{done: make(chan struct{}), waiting: 1, workspace: workspace}
			running, f.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
			s.fetches[k] = f
			go s.run(running, k, f, p, c)
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
			s.leaveFetch(f)
		}
		return "", fmt.Errorf("artifact from %s: not fetched in time: %w", p.hostOf(), context.Cause(ctx))
	}
}

// leaveFetch makes a caller leave a fetch. The fetch is canceled with the last one.
func (s *Store) leaveFetch(f *fetch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.waiting--; f.waiting == 0 {
		f.cancel(nil)
	}
}

// filesOf returns the directory of a complete artifact.
func (s *Store) filesOf(k key) string {
	return filepath.Join(ScopeDir(s.cfg.Dir, k.scope), filesDir, k.dir)
}

func (s *Store) partialOf(k key) string {
	return filepath.Join(ScopeDir(s.cfg.Dir, k.scope), partialDir, k.dir)
}

// hasArtifact reports whether an artifact is complete, and records that it was used now.
func (s *Store) hasArtifact(k key) bool {
	now := time.Now()
	return os.Chtimes(s.filesOf(k), now, now) == nil
}

// run fetches an artifact, and tells the callers that wait for it.
func (s *Store) run(ctx context.Context, k key, f *fetch, p parsed, c Credentials) {
	began := time.Now()
	err := s.admitDownload(ctx, f.workspace, p.hostOf(), func() error {
		return s.downloadArtifact(ctx, k, f, p, c)
	})
	if err != nil && errors.Is(context.Cause(ctx), errNoRoom) {
		err = s.downloadError(ctx, k, context.Cause(ctx))
	}
	s.metrics.countEnded(p.sourceLabel(), err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.err = err; err != nil {
		f.err = fmt.Errorf("artifact from %s: %w", p.hostOf(), err)
		s.cfg.Log.WarnContext(ctx, "cannot fetch an artifact", "host", p.hostOf(), "digest", p.digest, "error", err)
	} else {
		s.cfg.Log.InfoContext(ctx, "fetched an artifact", "host", p.hostOf(), "digest", p.digest, "took", time.Since(began))
	}
	delete(s.fetches, k)
	f.cancel(nil)
	close(f.done)
}

// admitDownload calls work once a download may begin.
func (s *Store) admitDownload(ctx context.Context, workspace, name string, work func() error) error {
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

// errGaveWay is the error of a fetch that has taken the room that another workspace needs.
var errGaveWay = fmt.Errorf("%w: a fetch of another workspace needs the room, and this workspace has taken more", errNoRoom)

// reserveBytes takes room for n more bytes of a fetch. If there is not enough room, it deletes files that no model needs, least
// recently used first. If that is not enough, larger downloads of other workspaces give way, and partial files that are
// larger than this download. So one large download does not keep small ones of others from the disk.
func (s *Store) reserveBytes(ctx context.Context, f *fetch, n int64) error {
	if s.take(f, n) {
		return nil
	}
	select { // one after the other, so that no more is deleted than is needed
	case s.freeing <- struct{}{}:
		defer func() { <-s.freeing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for {
		old, other, err := s.makeRoom(f, n)
		switch {
		case err != nil:
			return err
		case old != nil:
			if err := s.delete(context.WithoutCancel(ctx), *old); err != nil {
				return err
			}
		case other != nil:
			select {
			case <-other.done:
			case <-ctx.Done():
			}
		default:
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// take takes room for n more bytes of a fetch, and reports whether there was enough.
func (s *Store) take(f *fetch, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	short, err := s.missingBytes(n)
	if err != nil || short > 0 {
		return false
	}
	s.used += n
	f.bytes += n
	s.metrics.bytes.Set(float64(s.used))
	return true
}

// makeRoom takes room for n more bytes of a fetch, if there is enough. Otherwise it returns files to delete, or another
// fetch that ends soon, after which the caller tries again.
func (s *Store) makeRoom(f *fetch, n int64) (old *gone, other *fetch, err error) {
	if s.take(f, n) {
		return nil, nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	short, err := s.missingBytes(n)
	if err != nil {
		return nil, nil, err
	}
	if unneeded := s.unneededArtifacts(); len(unneeded) > 0 {
		old, err = s.detach(unneeded[0].path, true)
		return old, nil, err
	}
	if other = s.largerFetch(f, n); other != nil {
		other.cancel(errGaveWay)
		return nil, other, nil
	}
	if dir := s.largerPartial(f.bytes + n); dir != "" {
		old, err = s.detach(dir, true)
		return old, nil, err
	}
	return nil, nil, fmt.Errorf("%w: %d MiB more are needed, and the region's models need all other files", errNoRoom, (max(short, 1)+1<<20-1)>>20)
}

// largerFetch returns the fetch that gives way to n more bytes of f: the largest one of the workspace whose downloads have
// taken the most room. It returns nil if no other workspace has taken more than that of f would have then. The caller holds
// the lock.
func (s *Store) largerFetch(f *fetch, n int64) (largest *fetch) {
	taken := map[string]int64{}
	for _, o := range s.fetches {
		taken[o.workspace] += o.bytes
	}
	for _, o := range s.fetches {
		if o.workspace == f.workspace || o.bytes == 0 || taken[o.workspace] <= taken[f.workspace]+n {
			continue
		}
		if largest == nil || cmp.Or(cmp.Compare(taken[o.workspace], taken[largest.workspace]), cmp.Compare(o.bytes, largest.bytes)) > 0 {
			largest = o
		}
	}
	return largest
}

// largerPartial returns the largest directory of partial files that no fetch uses now, if it has more than n bytes. The
// caller holds the lock.
func (s *Store) largerPartial(n int64) (largest string) {
	scopes, _ := s.scopes()
	for _, scope := range scopes {
		entries, _ := os.ReadDir(filepath.Join(s.cfg.Dir, scope, partialDir))
		for _, e := range entries {
			k := key{scope, e.Name()}
			if size, err := sizeOf(s.partialOf(k)); s.fetches[k] == nil && err == nil && size > n {
				largest, n = s.partialOf(k), size
			}
		}
	}
	return largest
}

// missingBytes returns how many bytes are missing for n more bytes.
func (s *Store) missingBytes(n int64) (int64, error) {
	var at syscall.Statfs_t
	if err := syscall.Statfs(s.cfg.Dir, &at); err != nil {
		return 0, fmt.Errorf("read the free space of the disk: %w", err)
	}
	block := int64(at.Bsize) //nolint:unconvert // the type differs between systems
	short := n - int64(at.Bavail)*block
	if s.cfg.MaxBytes > 0 {
		return max(short, s.used+n-s.cfg.MaxBytes), nil
	}
	return short + keepFree, nil
}

// giveBack returns room that a fetch has taken. f is nil if no fetch has it.
func (s *Store) giveBack(f *fetch, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
	if f != nil {
		f.bytes -= n
	}
	s.metrics.bytes.Set(float64(s.used))
}

type unneeded struct {
	key
	path string
	used time.Time
}

// unneededArtifacts returns the directories of files that no model needs, least recently used first. The caller holds the lock.
func (s *Store) unneededArtifacts() []unneeded {
	if s.needed == nil {
		return nil
	}
	var out []unneeded
	scopes, _ := s.scopes()
	for _, scope := range scopes {
		for _, dir := range []string{filesDir, partialDir} {
			entries, _ := os.ReadDir(filepath.Join(s.cfg.Dir, scope, dir))
			for _, e := range entries {
				k := key{scope, e.Name()}
				if info, err := e.Info(); err == nil && s.fetches[k] == nil && !s.needed(k.scope, k.dir) {
					out = append(out, unneeded{k, filepath.Join(s.cfg.Dir, scope, dir, e.Name()), info.ModTime()})
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b unneeded) int { return a.used.Compare(b.used) })
	return out
}

// detach makes a directory disappear, and returns what to delete. That may take long, so it is done without the lock. The
// caller holds the lock.
func (s *Store) detach(dir string, isCounted bool) (*gone, error) {
	g := &gone{filepath.Join(s.cfg.Dir, goneDir, ident.New("art")), isCounted}
	if err := os.Rename(dir, g.path); err != nil {
		return nil, fmt.Errorf("delete files that no model needs: %w", withoutPath(err))
	}
	return g, nil
}

// delete deletes what was detached. What it cannot delete, or not before ctx ends, is deleted by a later Sweep.
func (s *Store) delete(ctx context.Context, g gone) error {
	size, err := sizeOf(g.path)
	if err == nil {
		err = disk.RemoveAll(ctx, g.path)
	}
	if err != nil {
		left, _ := sizeOf(g.path)
		size -= left
	}
	if g.isCounted {
		s.giveBack(nil, size)
	}
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.undeleted = append(s.undeleted, g)
	return fmt.Errorf("delete files that no model needs: %w", withoutPath(err))
}

// evictArtifact deletes an artifact.
func (s *Store) evictArtifact(ctx context.Context, k key) (err error) {
	for _, dir := range []string{s.filesOf(k), s.partialOf(k)} {
		s.mu.Lock()
		g, failed := s.detach(dir, true)
		s.mu.Unlock()
		switch {
		case errors.Is(failed, fs.ErrNotExist):
		case failed != nil:
			err = errors.Join(err, failed)
		default:
			err = errors.Join(err, s.delete(ctx, *g))
		}
	}
	return err
}

// Sweep deletes files that no model has needed for a day. It deletes scopes for which inUse returns false and that have
// neither servers nor running fetches. It deletes the repositories of servers that are not in servers. When ctx ends, a
// later Sweep continues. A fetch that needs room waits until Sweep has deleted everything, because that may be enough.
func (s *Store) Sweep(ctx context.Context, inUse func(scope string) bool, servers map[string]bool) error {
	select {
	case s.freeing <- struct{}{}:
	default:
		select {
		case s.freeing <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer func() { <-s.freeing }()
	all, err := s.detachUnused(inUse, servers)
	for _, g := range all {
		err = errors.Join(err, s.delete(ctx, g))
	}
	return err
}

// detachUnused detaches what Sweep deletes.
func (s *Store) detachUnused(inUse func(scope string) bool, servers map[string]bool) (all []gone, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, s.undeleted = s.undeleted, nil
	detach := func(dir string, isCounted bool) {
		g, failed := s.detach(dir, isCounted)
		if failed != nil {
			err = errors.Join(err, failed)
			return
		}
		all = append(all, *g)
	}
	for _, o := range s.unneededArtifacts() {
		if time.Since(o.used) >= keepUnused || !inUse(o.scope) {
			detach(o.path, true)
		}
	}
	scopes, failed := s.scopes()
	if failed != nil {
		return all, errors.Join(err, fmt.Errorf("read the directory of models: %w", failed))
	}
	for _, scope := range scopes {
		entries, _ := os.ReadDir(filepath.Join(s.cfg.Dir, scope, serversDir))
		left := false
		for _, e := range entries {
			if info, err := e.Info(); servers[e.Name()] || err == nil && time.Since(info.ModTime()) < newRepository {
				left = true
			} else {
				detach(RepositoryDir(s.cfg.Dir, scope, e.Name()), false)
			}
		}
		if !left && !inUse(scope) && !s.isFetching(scope) {
			detach(ScopeDir(s.cfg.Dir, scope), true)
		}
	}
	return all, err
}

// isFetching reports whether a fetch of the scope runs. The caller holds the lock.
func (s *Store) isFetching(scope string) bool {
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
