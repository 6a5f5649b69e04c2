package dev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/windlass-run/windlass/apps/windlass/internal/clientconfig"
	"github.com/windlass-run/windlass/apps/windlass/internal/signin"
	"github.com/windlass-run/windlass/pkg/flock"
	"github.com/windlass-run/windlass/pkg/localstack/atomicfile"
	"github.com/windlass-run/windlass/pkg/localstack/mariadb"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

const (
	lockPatience = 500 * time.Millisecond
	// stopDeadline bounds the whole stop: gateways and agents, then instances with the grace of their
	// deployments, then the control plane and the stores.
	stopDeadline = 3 * time.Minute
	// instancesDeadline is three times the default grace.
	instancesDeadline = 90 * time.Second
	// bootstrapDeadline is enough for all migrations on a slow disk, because migrations wait for many writes.
	bootstrapDeadline = 5 * time.Minute
)

// run is one dev, from its lock to its end.
type run struct {
	cfg    Config
	opts   options
	layout layout
	self   string // this binary
	report reporter

	state   *stateFile
	ports   map[string]int
	regions []string
	// runtime runs the instances of all regions. groups of nodes and networks of pods belong to clusters.
	runtime string
	// tls reports whether all ports have TLS, except those of instances. certs is set with tls.
	tls   bool
	certs *certificates

	mu    sync.Mutex
	maria *mariadb.Server // the server that runs; nil before the first start

	// hasEarlier reports whether an earlier run had this database.
	hasEarlier bool

	groups   []string
	networks map[string]int
	keepers  []*keeper // in the order of their start
	keeping  sync.WaitGroup
}

func (r *run) reportNote(text string)    { r.report(event{Kind: eventNote, Text: text}) }
func (r *run) reportWarning(text string) { r.report(event{Kind: eventWarn, Text: text}) }

// runUntilStopped runs all children until ctx ends, and then stops them. When hurry ends, it stops them
// without waiting. It returns nil when ctx ended and everything stopped.
func (r *run) runUntilStopped(ctx, hurry context.Context) (err error) {
	// The short wait is for `dev status`, which holds the lock for an instant.
	brief, cancel := context.WithTimeout(ctx, lockPatience)
	lock, err := flock.Acquire(brief, r.layout.lockPath(), nil)
	cancel()
	if errors.Is(err, context.DeadlineExceeded) {
		return r.layout.alreadyRuns()
	}
	if err != nil {
		return err
	}
	defer func() { _ = lock.Unlock() }()

	last, err := loadState(r.layout.statePath())
	if err != nil && !r.opts.reset {
		return err
	}
	if err := r.prepareRun(ctx, last); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	keeping, endKeeping := context.WithCancel(ctx)
	defer func() {
		endKeeping()
		r.keeping.Wait()
		err = errors.Join(err, r.stopEverything(hurry))
	}()
	if err := r.startAll(ctx, keeping); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if err := r.state.writeError(); err != nil {
		return err
	}
	r.state.update(func(s *State) { s.Phase = phaseReady })
	r.report(event{Kind: eventReady, Text: r.nextSteps(r.dashboardURL(ctx), r.earlierApps(ctx))})
	<-ctx.Done()
	return nil
}

// prepareRun stops the processes that an earlier run left, and decides on regions and ports.
func (r *run) prepareRun(ctx context.Context, last State) error {
	strays := r.newSweeper()
	if err := strays.stopProcesses(ctx); err != nil {
		return err
	}
	if r.opts.reset {
		if err := strays.stopInstances(ctx); err != nil {
			return err
		}
		if err := r.layout.removeAll(); err != nil {
			return err
		}
		r.reportNote("removed everything in " + shortPath(r.layout.root))
		last = State{}
	}
	r.regions = r.opts.regions
	if r.regions == nil {
		r.regions = last.Regions
	}
	if r.regions == nil {
		r.regions = defaultRegions
	}
	for _, region := range last.Regions {
		if !slices.Contains(r.regions, region) {
			r.reportWarning(fmt.Sprintf("region %s of the last run gets no agent this time, so apps that are deployed there do not run", region))
		}
	}
	var err error
	if r.ports, err = assignPorts(last.Ports, r.regions, r.reportNote); err != nil {
		return err
	}
	if err := r.settleKubernetes(last); err != nil {
		return err
	}
	r.tls = last.TLS
	if r.opts.tls != nil {
		r.tls = *r.opts.tls
	}
	if err := r.openTLS(); err != nil {
		return err
	}
	birth, err := proc.Birth(os.Getpid())
	if err != nil {
		return err
	}
	r.state = &stateFile{path: r.layout.statePath()}
	r.state.update(func(s *State) {
		*s = State{
			Phase: phaseStarting, PID: os.Getpid(), Birth: birth, StartedAt: time.Now().UTC(),
			Regions: r.regions, Ports: r.ports, Context: r.opts.context,
			Runtime: r.runtime, Groups: r.groups, Networks: r.networks, TLS: r.tls,
		}
	})
	return r.state.writeError()
}

// startAll starts all children in order. They are started again until keeping ends.
func (r *run) startAll(ctx, keeping context.Context) error {
	var dsn string
	stores := []child{r.mariaDBChild(&dsn), r.restateChild()}
	if r.runtime == runtimeKubernetes {
		if err := r.ensureKubelab(ctx); err != nil {
			return err
		}
		for _, region := range r.regions {
			stores = append(stores, r.clusterChild(region))
		}
	}
	if err := r.bringUp(ctx, keeping, stores...); err != nil {
		return err
	}
	if r.tls {
		if err := r.bringUp(ctx, keeping, r.restateFrontChild()); err != nil {
			return err
		}
		r.keeping.Go(func() { r.keepRenewing(keeping) })
	}
	if err := r.bootstrapDatabase(ctx, dsn); err != nil {
		return err
	}
	controlPlane, err := r.controlPlaneChild(dsn)
	if err != nil {
		return err
	}
	if err := r.bringUp(ctx, keeping, controlPlane); err != nil {
		return err
	}
	agents := make([]child, len(r.regions))
	for i, region := range r.regions {
		args, err := r.runtimeArgs(region, i == 0)
		if err != nil {
			return err
		}
		agents[i] = r.agentChild(region, args)
	}
	if err := r.bringUp(ctx, keeping, agents...); err != nil {
		return err
	}
	gateways := make([]child, 0, len(r.regions))
	for _, region := range r.regions {
		if !r.layout.takesGateway(region) {
			r.reportWarning(fmt.Sprintf("no gateway runs in %s, so apps are reached there only at their instances: %s is too long for a socket; use a shorter --data-dir", region, r.layout.agentSocket(region)))
			continue
		}
		gateways = append(gateways, r.gatewayChild(region))
	}
	return r.bringUp(ctx, keeping, gateways...)
}

// bringUp starts children at the same time and waits for all of them.
func (r *run) bringUp(ctx, keeping context.Context, children ...child) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, c := range children {
		r.report(event{Kind: eventBegin, Name: c.title})
		r.state.updateProcess(c.name, func(p *ProcessState) { p.State, p.URLs, p.Log, p.Kubeconfig = "starting", c.urls, c.log, c.kubeconfig })
		k := &keeper{child: c, state: r.state, say: r.reportWarning, rnd: rand.Float64}
		r.keepers = append(r.keepers, k)
		g.Go(func() error {
			begin := time.Now()
			if err := k.startFirst(ctx); err != nil {
				return err
			}
			r.report(event{Kind: eventDone, Name: c.title, Text: c.detail, Elapsed: time.Since(begin)})
			r.keeping.Go(func() { k.keepRunning(keeping) })
			return nil
		})
	}
	return g.Wait()
}

// bootstrapDatabase migrates the database, creates the workspace, keys and regions, and points the CLI at
// this dev.
func (r *run) bootstrapDatabase(ctx context.Context, dsn string) error {
	begin := time.Now()
	const step = "database schema"
	r.report(event{Kind: eventBegin, Name: step})
	kept, err := loadCredentials(r.layout.credentialsPath())
	if err != nil {
		return err
	}
	r.hasEarlier = kept.APIKey != ""
	bounded, cancel := context.WithTimeoutCause(ctx, bootstrapDeadline, fmt.Errorf("not done after %s", bootstrapDeadline))
	defer cancel()
	made, err := r.cfg.Programs.Bootstrap(bounded, Bootstrap{
		MySQLDSN: dsn, MySQLCA: r.caFile(), Workspace: workspace, Regions: r.regions,
		APIKey: kept.APIKey, OperatorKey: kept.OperatorKey,
	})
	if err != nil {
		return fmt.Errorf("prepare the database: %w", err)
	}
	if err := (credentials{APIKey: made.APIKey, OperatorKey: made.OperatorKey}).saveFile(r.layout.credentialsPath()); err != nil {
		return err
	}
	for region, token := range made.JoinTokens {
		if err := atomicfile.Write(filepath.Join(r.layout.agentDir(region), "join-token"), []byte(token), 0o600); err != nil {
			return err
		}
	}
	r.report(event{Kind: eventDone, Name: step, Elapsed: time.Since(begin)})
	return r.switchContext(ctx, made.APIKey)
}

// dashboardURL returns a link that opens the dashboard signed in. If it cannot make one, it returns the plain
// address.
func (r *run) dashboardURL(ctx context.Context) string {
	address := r.urlOfPort(r.ports[portAPI]) + "/ui/"
	kept, err := loadCredentials(r.layout.credentialsPath())
	if err != nil {
		return address
	}
	config, err := clientTLS(r.caFile())
	if err != nil {
		return address
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}
	link, err := signin.New(ctx, client, r.urlOfPort(r.ports[portAPI]), kept.APIKey)
	if err != nil {
		r.reportWarning(err.Error())
		return address
	}
	return link.URL
}

// switchContext writes the CLI's context and makes it the current one.
func (r *run) switchContext(ctx context.Context, key string) error {
	path := r.opts.config
	if path == "" {
		var err error
		if path, err = clientconfig.Path(r.cfg.Getenv); err != nil {
			return err
		}
	}
	before := ""
	err := clientconfig.Update(ctx, path, func(f *clientconfig.File) error {
		before, f.Current = f.Current, r.opts.context
		f.Put(clientconfig.Context{
			Name: r.opts.context, Server: r.urlOfPort(r.ports[portAPI]), ServerCA: r.caFile(), APIKey: key,
			Workspace: workspace, Project: project, Environment: environment,
		})
		return nil
	})
	if err == nil && before != "" && before != r.opts.context {
		r.reportNote(fmt.Sprintf("the CLI's current context is now %s (was %s)", r.opts.context, before))
	}
	return err
}

// stopEverything stops all children and instances in the order that package dev promises.
func (r *run) stopEverything(hurry context.Context) error {
	ctx, cancel := context.WithTimeout(hurry, stopDeadline)
	defer cancel()
	r.state.update(func(s *State) { s.Phase = phaseStopping })
	var gateways, agents, rest, stores []*keeper
	for _, k := range r.keepers {
		switch {
		case strings.HasPrefix(k.name, "gateway/"):
			gateways = append(gateways, k)
		case strings.HasPrefix(k.name, "agent/"):
			agents = append(agents, k)
		case k.name == "controlplane":
			rest = append(rest, k)
		default:
			stores = append(stores, k)
		}
	}
	// The gateways end first, so that no more requests reach instances that are about to stop.
	err := errors.Join(stopAll(ctx, gateways), stopAll(ctx, agents))
	err = errors.Join(err, r.newSweeper().stopInstances(ctx))
	// The control plane ends before its stores, so that it does not log errors about them.
	err = errors.Join(err, stopAll(ctx, rest), stopAll(ctx, stores))
	r.state.update(func(s *State) { s.Phase = phaseStopped })
	if err != nil {
		return err
	}
	r.reportNote("stopped; the same apps come back with the next start")
	return nil
}

func stopAll(ctx context.Context, keepers []*keeper) error {
	var g errgroup.Group
	for _, k := range keepers {
		g.Go(func() error { return k.stop(ctx) })
	}
	return g.Wait()
}

func (r *run) newSweeper() sweeper {
	return sweeper{layout: r.layout, programs: r.cfg.Programs, note: r.reportNote}
}

// sweeper stops processes that no running dev supervises. The caller holds the lock.
type sweeper struct {
	layout   layout
	programs Programs
	note     func(string)
}

// stopInstances stops the instances of every region that ever had an agent here. The agents must
// have ended.
func (s sweeper) stopInstances(ctx context.Context) error {
	regions, err := s.layout.everyRegion()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, instancesDeadline)
	defer cancel()
	var g errgroup.Group
	for _, region := range regions {
		dir := s.layout.agentDir(region)
		if _, err := os.Stat(dataDir(dir)); err != nil {
			continue // its agent never ran
		}
		g.Go(func() (err error) {
			f, err := os.OpenFile(logFile(dir), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, f.Close()) }()
			if err := s.programs.StopInstances(ctx, dataDir(dir), slog.New(slog.NewTextHandler(f, nil))); err != nil {
				return fmt.Errorf("stop the instances of %s: %w (log: %s)", region, err, logFile(dir))
			}
			return nil
		})
	}
	return g.Wait()
}
