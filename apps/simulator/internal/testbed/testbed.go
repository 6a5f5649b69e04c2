// Package testbed is one run: an installation, a fleet of agents, users of the API, and the instruments that
// measure all of them.
package testbed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"time"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/simulator/internal/bare"
	"github.com/windlass-run/windlass/apps/simulator/internal/fleet"
	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
	"github.com/windlass-run/windlass/pkg/flock"
)

// Options are the same for every scenario. They come from the command line.
type Options struct {
	Self          string
	ControlPlane  string
	ControlPlanes int
	Seed          uint64
	Relaxed       bool
	Keep          bool
	// Pprof is the folder for CPU profiles of measured windows. Empty: no profiles.
	Pprof string
	// MaxMemory bounds the memory of all parts together, in bytes. A run that needs more fails.
	MaxMemory int64
	// Log gets warnings of agents. Nil: they are dropped.
	Log      slog.Handler
	Progress func(string)
}

// Config is the configuration of a Testbed.
type Config struct {
	Options
	// Name is the name of the scenario, for the files of profiles.
	Name string
	// Regions is the number of regions, and Agents how many of them have an agent. 0: all.
	Regions, Agents int
	// BufferPoolMiB and LeaseTTL are described in stack.Config.
	BufferPoolMiB int
	LeaseTTL      time.Duration
	// ServeFlags and Route are described in stack.Config.
	ServeFlags []string
	Route      func(from, to, address string) (string, error)
	// Prepare is called when the installation runs, and before agents exist.
	Prepare func(s *stack.Stack) error
	// URL returns the URL of the control plane for agent n, or for users (-1). Nil: the replicas in turn.
	URL func(s *stack.Stack, n int) string
	// Folder makes the folder of an agent. Nil: os.MkdirAll.
	Folder func(path string) error
	// Transport wraps the transport of an agent's calls. Nil: it is not wrapped.
	Transport func(region string, next http.RoundTripper) http.RoundTripper
	// Runtime, Applied, Snapshot and Connected are described in fleet.Config.
	Runtime   func(n int, rnd *rand.Rand) agent.SimulatedConfig
	Applied   func(region, deploymentID string, epoch, generation int64)
	Snapshot  func(region string, items int, took time.Duration)
	Connected func(region string, resumed bool)
	// Idle reports that Start does not start the agents.
	Idle bool
}

// Testbed is a running testbed. Make it with Start, end it with Stop.
type Testbed struct {
	Stack *stack.Stack
	Fleet *fleet.Fleet
	API   *Client
	DB    *bare.DB
	Rand  *rand.Rand
	// Regions are the names of the regions, in order.
	Regions []string

	cfg     Config
	sampler *measure.Sampler
	ended   context.CancelFunc
	inboxes string
	lock    *flock.Lock
	windows int
}

// RegionName returns the name of region n.
func RegionName(n int) string { return fmt.Sprintf("region-%05d", n) }

// Start starts everything. The returned context is the context of the run: it ends with a cause when the run
// exceeds its memory.
func Start(ctx context.Context, cfg Config) (_ context.Context, _ *Testbed, err error) {
	if cfg.Agents == 0 {
		cfg.Agents = cfg.Regions
	}
	w := &Testbed{cfg: cfg, Rand: rand.New(rand.NewPCG(cfg.Seed, 0))}
	for n := range cfg.Regions {
		w.Regions = append(w.Regions, RegionName(n))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	w.ended = func() { cancel(context.Canceled) }
	defer func() {
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
				err = fmt.Errorf("%w: %w", cause, err)
			}
			err = errors.Join(err, w.Stop())
		}
	}()
	w.Stack, err = stack.Start(ctx, stack.Config{
		Self: cfg.Self, ControlPlane: cfg.ControlPlane, ControlPlanes: cfg.ControlPlanes, Regions: w.Regions,
		Route: cfg.Route, Relaxed: cfg.Relaxed, BufferPoolMiB: cfg.BufferPoolMiB, LeaseTTL: cfg.LeaseTTL, ServeFlags: cfg.ServeFlags, Keep: cfg.Keep, Progress: cfg.Progress,
	})
	if err != nil {
		return nil, nil, err
	}
	if cfg.Prepare != nil {
		if err := cfg.Prepare(w.Stack); err != nil {
			return nil, nil, err
		}
	}
	w.sampler = measure.NewSampler(w.processIDs, cfg.MaxMemory, cancel)
	go w.sampler.Run(ctx)
	w.API = NewClient(w.urlFor(-1), w.Stack.APIKey())
	if w.DB, err = bare.OpenDB(w.Stack.DSN()); err != nil {
		return nil, nil, err
	}
	// Inboxes are in memory if possible, because they represent one disk per region.
	temp := "/dev/shm"
	if _, err := os.Stat(temp); err != nil {
		temp = os.TempDir()
	}
	if w.inboxes, w.lock, err = stack.MakeRoot(temp); err != nil {
		return nil, nil, err
	}
	w.Fleet, err = fleet.New(fleet.Config{
		Dir: w.inboxes, Seed: cfg.Seed, Token: w.Stack.JoinToken, Runtime: cfg.Runtime,
		Applied: cfg.Applied, Snapshot: cfg.Snapshot, Connected: cfg.Connected, Log: cfg.Log,
		URL: w.urlFor, Folder: cfg.Folder, Transport: cfg.Transport,
	}, w.Regions[:cfg.Agents])
	if err != nil {
		return nil, nil, err
	}
	if !cfg.Idle {
		cfg.Progress(fmt.Sprintf("starting %d agents", cfg.Agents))
		if err := w.Fleet.Start(ctx); err != nil {
			return nil, nil, err
		}
		if err := w.WaitConnected(ctx, cfg.Agents); err != nil {
			return nil, nil, err
		}
	}
	return ctx, w, nil
}

// URL returns the URL of the control plane for users.
func (w *Testbed) URL() string { return w.urlFor(-1) }

// urlFor returns the URL of the control plane for agent n, or for users (-1).
func (w *Testbed) urlFor(n int) string {
	if w.cfg.URL != nil {
		return w.cfg.URL(w.Stack, n)
	}
	planes := w.Stack.Planes()
	return planes[max(n, 0)%len(planes)].URL
}

// Stop ends everything.
func (w *Testbed) Stop() error {
	if w.ended != nil {
		w.ended()
	}
	var err error
	if w.Fleet != nil {
		w.Fleet.Stop()
	}
	if w.API != nil {
		w.API.Close()
	}
	if w.DB != nil {
		err = w.DB.Close()
	}
	if w.Stack != nil {
		err = errors.Join(err, w.Stack.Stop())
	}
	if w.lock != nil {
		err = errors.Join(err, os.RemoveAll(w.inboxes), w.lock.Unlock())
	}
	return err
}

// Simulator is the name of this process among the parts.
const Simulator = "simulator"

func (w *Testbed) processIDs() map[string]int {
	out := w.Stack.PIDs()
	out[Simulator] = os.Getpid()
	return out
}

// Progressf reports progress to a person.
func (w *Testbed) Progressf(format string, args ...any) { w.cfg.Progress(fmt.Sprintf(format, args...)) }

// WaitConnected waits until n agents have a stream.
func (w *Testbed) WaitConnected(ctx context.Context, n int) error {
	return Until(ctx, 10*time.Millisecond, func() (bool, error) { return w.Fleet.Connected() >= n, nil },
		func() string { return fmt.Sprintf("%d of %d agents are connected", w.Fleet.Connected(), n) })
}

// Until polls until done returns true. When ctx ends or done fails, the error contains the text of state.
func Until(ctx context.Context, every time.Duration, done func() (bool, error), state func() string) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		ok, err := done()
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%w; %s", context.Cause(ctx), state())
		case err != nil:
			return fmt.Errorf("%s: %w", state(), err)
		case ok:
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; %s", context.Cause(ctx), state())
		case <-tick.C:
		}
	}
}

// Measure begins a window. The returned function ends the window, and returns the cost of each part.
func (w *Testbed) Measure(ctx context.Context) (func() (map[string]measure.Part, error), error) {
	stopProfile := func() error { return nil }
	w.windows++
	if w.cfg.Pprof != "" {
		urls := map[string]string{}
		for _, p := range w.Stack.Planes() {
			urls[p.Name] = p.Admin
		}
		var err error
		stopProfile, err = measure.Profile(ctx, w.cfg.Pprof, fmt.Sprintf("%s-%d", w.cfg.Name, w.windows), urls)
		if err != nil {
			return nil, err
		}
	}
	end := w.sampler.Window()
	return func() (map[string]measure.Part, error) {
		parts := end()
		return parts, stopProfile()
	}, nil
}

// Metrics returns the sum of the metrics of all running replicas of the control plane.
func (w *Testbed) Metrics(ctx context.Context) (measure.Metrics, error) {
	sum := measure.Metrics{}
	for _, p := range w.Stack.Planes() {
		if !w.Stack.Runs(p.Name) {
			continue
		}
		m, err := measure.Scrape(ctx, p.Admin+"/metrics")
		if err != nil {
			return nil, err
		}
		for k, v := range m {
			sum[k] += v
		}
	}
	return sum, nil
}
