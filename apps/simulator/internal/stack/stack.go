// Package stack runs a whole installation for a measurement: MariaDB, Restate and replicas of the shipped
// control plane. Each is a separate process. So /proc shows the cost of each part, and kill -9 ends only one
// part.
//
//	MariaDB, Restate      pkg/localstack, data on disk, durable unless Relaxed
//	controlplane-1..n     this program executed again, or the binary that is named
//
// All of them end with this process, even if it is killed. Their data is in one folder under a lock. The next
// run removes the folders of ended runs.
package stack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/windlass-run/windlass/apps/controlplane"
	"github.com/windlass-run/windlass/pkg/flock"
	"github.com/windlass-run/windlass/pkg/localstack"
	"github.com/windlass-run/windlass/pkg/localstack/mariadb"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
	"github.com/windlass-run/windlass/pkg/localstack/restate"
)

// ControlPlaneCommand is the hidden command that runs this program as the control plane.
const ControlPlaneCommand = "__controlplane"

// These are the names of the parts.
const (
	MariaDB = "mariadb"
	Restate = "restate"
)

// ControlPlane returns the name of replica n, from 1.
func ControlPlane(n int) string { return "controlplane-" + strconv.Itoa(n) }

// Config is the configuration of a Stack.
type Config struct {
	// Self is this program, which can also run as the control plane.
	Self string
	// ControlPlane is the binary of the control plane. Empty: Self.
	ControlPlane string
	// ControlPlanes is the number of replicas. 0: one.
	ControlPlanes int
	// Regions are created, with a join token for each.
	Regions []string
	// Relaxed turns off the flush of commits to the disk. Commits then survive kill -9 of the servers, but not a
	// crash of the machine.
	Relaxed bool
	// BufferPoolMiB is the buffer pool of MariaDB. 0: 512, which holds the rows of some hundred thousand
	// instances.
	BufferPoolMiB int
	// LeaseTTL is the lease of agents. 0: the control plane's default.
	LeaseTTL time.Duration
	// Route returns the address at which one part reaches another, so that the connection can be broken. It
	// is called for the connections of replicas to MariaDB and Restate, and of Restate to replicas. Nil:
	// directly.
	Route func(from, to, address string) (string, error)
	// ServeFlags are additional flags of every control plane.
	ServeFlags []string
	// Keep keeps the folder at the end.
	Keep bool
	// Progress receives lines for a person.
	Progress func(string)
}

// Stack is a running installation.
type Stack struct {
	cfg  Config
	dir  string
	lock *flock.Lock
	keys controlplane.BootstrapResult

	ports struct {
		mariadb, ingress, admin, node int
	}
	order  []string
	parts  map[string]*Part
	planes []*Plane

	mu       sync.Mutex
	database *mariadb.Server
}

// Plane is one replica of the control plane.
type Plane struct {
	Name string
	// URL is the URL of the API, and Admin that of metrics and profiles.
	URL, Admin string
}

const (
	rootPrefix = "windlass-sim-"
	keptPrefix = "windlass-kept-"
	// startDeadline includes the installation of a server on a new machine.
	startDeadline = 10 * time.Minute
	stopDeadline  = time.Minute
	database      = "windlass"
)

// Start starts everything, and returns once every replica is ready. If something fails, it stops what it has
// started.
func Start(ctx context.Context, cfg Config) (_ *Stack, err error) {
	if cfg.Self == "" || cfg.Progress == nil {
		return nil, errors.New("stack: Self and Progress are required")
	}
	if cfg.ControlPlanes == 0 {
		cfg.ControlPlanes = 1
	}
	if cfg.BufferPoolMiB == 0 {
		cfg.BufferPoolMiB = 512
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startDeadline, fmt.Errorf("the stack did not start within %s", startDeadline))
	defer cancel()
	s := &Stack{cfg: cfg, parts: map[string]*Part{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if s.dir, s.lock, err = MakeRoot(os.TempDir()); err != nil {
		return nil, err
	}
	if err := s.wireParts(); err != nil {
		return nil, err
	}
	cfg.Progress("starting MariaDB and Restate")
	group, starting := errgroup.WithContext(ctx)
	for _, name := range []string{MariaDB, Restate} {
		group.Go(func() error { return s.Launch(starting, name) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	cfg.Progress(fmt.Sprintf("making %d regions", len(cfg.Regions)))
	s.keys, err = controlplane.Bootstrap(ctx, controlplane.BootstrapConfig{MySQLDSN: s.DSN(), Regions: cfg.Regions})
	if err != nil {
		return nil, err
	}
	cfg.Progress(fmt.Sprintf("starting %d control plane(s)", cfg.ControlPlanes))
	for _, p := range s.planes {
		if err := s.Launch(ctx, p.Name); err != nil {
			return nil, err
		}
	}
	for _, p := range s.planes {
		if err := s.WaitReady(ctx, p.Name); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// plenty is a limit that is never reached. As a rate it is one call each microsecond, the finest unit.
const plenty = "60000000"

// wireParts chooses ports and sets how each part starts, now and after a kill.
func (s *Stack) wireParts() error {
	pool := localstack.Ports{Claims: localstack.ClaimsFolder()}
	var err error
	port := func() int {
		if err != nil {
			return 0
		}
		var p int
		p, err = freePort(&pool)
		return p
	}
	s.ports.mariadb, s.ports.ingress, s.ports.admin, s.ports.node = port(), port(), port(), port()
	s.add(s.mariaDB())
	s.add(s.restatePart())
	for n := range s.cfg.ControlPlanes {
		name, workflows := ControlPlane(n+1), port()
		route := func(from, to string, port int) string {
			if err != nil || s.cfg.Route == nil {
				return localAddress(port)
			}
			var at string
			at, err = s.cfg.Route(from, to, localAddress(port))
			return at
		}
		s.addControlPlane(name, ways{
			database: route(name, MariaDB, s.ports.mariadb), restate: route(name, Restate, s.ports.ingress),
			back: route(Restate, name, workflows),
		}, port(), port(), workflows)
	}
	return err
}

// ways are the addresses from a replica to MariaDB and to Restate, and from Restate back.
type ways struct{ database, restate, back string }

// freePort returns a port below the range that the kernel gives to clients, so that it is still
// free when a killed process starts again.
func freePort(pool *localstack.Ports) (int, error) {
	for range 100 {
		port, taken, err := pool.Take(10_000 + rand.IntN(20_000))
		if err != nil {
			return 0, fmt.Errorf("stack: %w", err)
		}
		if !taken {
			return port, nil
		}
	}
	return 0, errors.New("stack: no free port between 10000 and 30000")
}

// FreeAddress returns a host:port of this machine that stays free while nothing listens there, as freePort does.
func FreeAddress() (string, error) {
	port, err := freePort(&localstack.Ports{Claims: localstack.ClaimsFolder()})
	return localAddress(port), err
}

func (s *Stack) add(p *Part) {
	s.parts[p.name] = p
	s.order = append(s.order, p.name)
}

func (s *Stack) mariaDB() *Part {
	dir := filepath.Join(s.dir, MariaDB)
	durability := mariadb.Durable
	if s.cfg.Relaxed {
		durability = mariadb.Relaxed
	}
	return &Part{name: MariaDB, log: filepath.Join(dir, "mariadbd.log"), start: func(ctx context.Context) (server, error) {
		db, err := mariadb.Start(ctx, mariadb.Config{
			Dir: dir, Port: s.ports.mariadb, Durability: durability, BufferPoolMiB: s.cfg.BufferPoolMiB,
			DieWithParent: true, Progress: s.cfg.Progress,
		})
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		s.database = db
		s.mu.Unlock()
		return db, db.CreateDatabase(ctx, database)
	}}
}

func (s *Stack) restatePart() *Part {
	dir := filepath.Join(s.dir, Restate)
	return &Part{name: Restate, log: filepath.Join(dir, "restate.log"), start: func(ctx context.Context) (server, error) {
		r, err := restate.Start(ctx, restate.Config{
			Dir: dir, IngressPort: s.ports.ingress, AdminPort: s.ports.admin, NodePort: s.ports.node,
			Relaxed: s.cfg.Relaxed, DieWithParent: true, Progress: s.cfg.Progress,
		})
		if err != nil {
			return nil, err
		}
		return r, nil
	}}
}

// planeGrace is the time that a control plane has to stop. A control plane stops in less time.
const planeGrace = 25 * time.Second

func (s *Stack) addControlPlane(name string, to ways, api, admin, workflows int) {
	dir := filepath.Join(s.dir, name)
	log := filepath.Join(dir, "log")
	plane := &Plane{Name: name, URL: "http://" + localAddress(api), Admin: "http://" + localAddress(admin)}
	s.planes = append(s.planes, plane)
	path, args := s.cfg.Self, []string{ControlPlaneCommand}
	if s.cfg.ControlPlane != "" {
		path, args = s.cfg.ControlPlane, nil
	}
	args = append(args, "serve",
		"--listen="+localAddress(api),
		"--metrics-listen="+localAddress(admin),
		"--restate-listen="+localAddress(workflows),
		"--restate-advertise=http://"+to.back,
		"--restate-ingress=http://"+to.restate,
		"--restate-admin=http://"+localAddress(s.ports.admin),
		"--key-file="+filepath.Join(s.dir, "keyset.json"), "--create-keyset",
		"--pprof",
		// No scenario reaches these limits: they are checked, as for users, and refuse nothing.
		"--limit-apps="+plenty, "--limit-deployments="+plenty, "--limit-instances="+plenty, "--limit-gpus="+plenty,
		"--max-reads=0", "--limit-rollouts="+plenty, "--limit-starts-per-minute="+plenty, "--limit-starts-burst="+plenty,
	)
	if s.cfg.LeaseTTL > 0 {
		args = append(args, "--lease-ttl="+s.cfg.LeaseTTL.String())
	}
	args = append(args, s.cfg.ServeFlags...)
	s.add(&Part{name: name, log: log, ready: plane.Admin + "/readyz", start: func(context.Context) (server, error) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		p, err := proc.Start(proc.Spec{
			// The password goes through the environment, which only this user reads.
			Name: name, Path: path, Args: args, Env: append(cleanEnviron(), "WINDLASS_MYSQL_DSN="+s.dsnAt(to.database)),
			RecordFile: filepath.Join(dir, "process.json"), LogFile: log, DieWithParent: true,
		})
		if err != nil {
			return nil, err
		}
		return program{p}, nil
	}})
}

// cleanEnviron returns the environment without settings for another control plane.
func cleanEnviron() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "WINDLASS_") })
}

func localAddress(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// DSN returns the DSN of the database.
func (s *Stack) DSN() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.database.DSN(database)
}

// dsnAt returns the DSN with another address of the same server.
func (s *Stack) dsnAt(listens string) string {
	return strings.Replace(s.DSN(), "tcp("+localAddress(s.ports.mariadb)+")", "tcp("+listens+")", 1)
}

// Dir returns the folder of the run.
func (s *Stack) Dir() string { return s.dir }

// Planes returns the replicas of the control plane.
func (s *Stack) Planes() []*Plane { return s.planes }

// RestateURLs returns the URLs of the ingress and the admin API.
func (s *Stack) RestateURLs() (ingress, admin string) {
	return "http://" + localAddress(s.ports.ingress), "http://" + localAddress(s.ports.admin)
}

// JoinToken returns the join token of a region.
func (s *Stack) JoinToken(region string) string { return s.keys.JoinTokens[region] }

// APIKey returns the key of an owner.
func (s *Stack) APIKey() string { return s.keys.APIKey }

// WorkspaceID returns the workspace of the API key.
func (s *Stack) WorkspaceID() string { return s.keys.WorkspaceID }

// Folder returns the folder of a part's data.
func (s *Stack) Folder(name string) string { return filepath.Join(s.dir, name) }

// PIDs returns the pids of the running parts.
func (s *Stack) PIDs() map[string]int {
	out := map[string]int{}
	for name, p := range s.parts {
		if pid := p.PID(); pid != 0 {
			out[name] = pid
		}
	}
	return out
}

// Stop ends everything, in reverse order, and removes what it left on disk.
func (s *Stack) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopDeadline)
	defer cancel()
	var err error
	// The replicas stop first, together, and then their backends.
	var group errgroup.Group
	for _, p := range s.planes {
		group.Go(func() error { return s.parts[p.Name].stop(ctx) })
	}
	err = group.Wait()
	for _, name := range []string{Restate, MariaDB} {
		if p := s.parts[name]; p != nil {
			err = errors.Join(err, p.stop(ctx))
		}
	}
	if s.dir == "" {
		return err
	}
	if s.cfg.Keep {
		// The folder is renamed, because the next run removes folders of ended runs.
		kept := filepath.Join(filepath.Dir(s.dir), keptPrefix+strings.TrimPrefix(filepath.Base(s.dir), rootPrefix))
		if moved := os.Rename(s.dir, kept); moved != nil {
			err = errors.Join(err, moved)
		} else {
			s.cfg.Progress("kept " + kept)
		}
	} else {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return errors.Join(err, s.lock.Unlock())
}

// MakeRoot makes the folder of a run, locked as long as this process lives, and removes the folders of
// processes that have ended.
func MakeRoot(temp string) (string, *flock.Lock, error) {
	dead, err := filepath.Glob(filepath.Join(temp, rootPrefix+"*"))
	if err != nil {
		return "", nil, fmt.Errorf("stack: %w", err)
	}
	for _, dir := range dead {
		// For a moment a new folder has no lock yet.
		if info, err := os.Stat(dir); err != nil || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		if lock, err := flock.Try(filepath.Join(dir, "lock")); err == nil {
			_ = os.RemoveAll(dir)
			_ = lock.Unlock()
		}
	}
	dir, err := os.MkdirTemp(temp, rootPrefix)
	if err != nil {
		return "", nil, fmt.Errorf("stack: %w", err)
	}
	lock, err := flock.Try(filepath.Join(dir, "lock"))
	if err != nil {
		return "", nil, fmt.Errorf("stack: %w", errors.Join(err, os.RemoveAll(dir)))
	}
	return dir, lock, nil
}
