// Package fleet runs thousands of shipped agents in one process. Each agent has its own TCP connection to the
// control plane, its own inbox, and a simulated runtime. Everything except the runtime is the code that runs
// in a real region.
//
//	control plane <--TCP--> wire (can be cut or stalled) <--> agent --> simulated runtime
//	                                                            ^ killed, and started
//	                                                              again on its inbox
//
// A member is a region of the fleet. Its runtime outlives its agent, as pods and processes do. An agent ends only
// when it is killed. Inboxes are not flushed to the disk, and are in memory where possible, because one machine
// has fewer disks than the fleet has regions. A killed agent loses nothing that it wrote, because the kernel keeps
// it.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/pkg/service"
)

// Config is the configuration of a Fleet.
type Config struct {
	// Dir is the folder of all members' folders.
	Dir string
	// URL returns the URL of the control plane for member n.
	URL func(n int) string
	// Token returns the token with which a region joins.
	Token func(region string) string
	// Seed seeds every agent's jitter and every runtime's random numbers.
	Seed uint64
	// Runtime returns the configuration of member n's runtime. New sets its Region. Nil: an otherwise empty
	// configuration.
	Runtime func(n int, rnd *rand.Rand) agent.SimulatedConfig
	// Applied is called for every assignment that an agent hands to its runtime. It may be nil.
	Applied func(region, deploymentID string, epoch, generation int64)
	// Snapshot is called for every snapshot that an agent has stored. took is the time since its stream began. It may
	// be nil.
	Snapshot func(region string, items int, took time.Duration)
	// Connected is called for every stream that begins. It may be nil.
	Connected func(region string, resumed bool)
	// Folder makes the folder of a member. Nil: os.MkdirAll.
	Folder func(path string) error
	// Transport wraps the transport of a member's calls. Nil: it is not wrapped.
	Transport func(region string, next http.RoundTripper) http.RoundTripper
	// Log gets the agents' records at level warn and above. Nil: they are dropped.
	Log slog.Handler
}

// Fleet is a set of members. Make it with New, stop it with Stop.
type Fleet struct {
	cfg     Config
	tracer  *sdktrace.TracerProvider
	members []*Member
	byName  map[string]*Member
}

// New makes a member for each region. No agent runs yet.
func New(cfg Config, regions []string) (*Fleet, error) {
	if cfg.Dir == "" || cfg.URL == nil || cfg.Token == nil {
		return nil, errors.New("fleet: Dir, URL and Token are required")
	}
	f := &Fleet{
		cfg: cfg, byName: map[string]*Member{},
		tracer: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())),
	}
	for n, region := range regions {
		m, err := f.newMember(n, region)
		if err != nil {
			return nil, err
		}
		f.members = append(f.members, m)
		f.byName[region] = m
	}
	return f, nil
}

// maxJoins limits how many agents join at the same time, because each join commits a transaction and flushes a file
// to the disk.
const maxJoins = 32

// Start starts every member, and returns when each has joined or failed to join. A join fails when ctx ends.
func (f *Fleet) Start(ctx context.Context) error { return f.StartFirst(ctx, len(f.members)) }

// StartFirst starts the first n members, as Start does.
func (f *Fleet) StartFirst(ctx context.Context, n int) error {
	slots := make(chan struct{}, maxJoins)
	errs := make(chan error, n)
	for _, m := range f.members[:n] {
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			errs <- m.Start(ctx)
		}()
	}
	var err error
	for range n {
		err = errors.Join(err, <-errs)
	}
	return err
}

// Members returns the members in the order of their regions.
func (f *Fleet) Members() []*Member { return f.members }

// Member returns the member of a region, or nil if there is none.
func (f *Fleet) Member(region string) *Member { return f.byName[region] }

// Connected returns how many members have a stream.
func (f *Fleet) Connected() int {
	n := 0
	for _, m := range f.members {
		if m.Connected() {
			n++
		}
	}
	return n
}

// Stop kills every member.
func (f *Fleet) Stop() {
	var wg sync.WaitGroup
	for _, m := range f.members {
		wg.Go(m.Kill)
	}
	wg.Wait()
	for _, m := range f.members {
		m.client.CloseIdleConnections()
	}
}

// Member is one region of a Fleet. Its agent can be killed and started again, while its runtime and its inbox stay.
type Member struct {
	Region  string
	Runtime *agent.Simulated

	fleet  *Fleet
	number int
	dir    string
	wire   *wire
	client *http.Client
	log    *slog.Logger

	rndMu sync.Mutex
	rnd   *rand.Rand

	mu        sync.Mutex
	agent     *agent.Agent
	transport *transport
	cancel    context.CancelFunc
	done      chan error
}

func (f *Fleet) newMember(n int, region string) (*Member, error) {
	m := &Member{
		Region: region, fleet: f, number: n, dir: filepath.Join(f.cfg.Dir, region), wire: newWire(),
		rnd: rand.New(rand.NewPCG(f.cfg.Seed, uint64(n)+1)),
	}
	m.client = m.wire.httpClient()
	if f.cfg.Transport != nil {
		m.client.Transport = f.cfg.Transport(region, m.client.Transport)
	}
	m.log = slog.New(&logWatcher{region: region, onSnapshot: f.cfg.Snapshot, onConnected: f.cfg.Connected, next: f.cfg.Log})
	var cfg agent.SimulatedConfig
	if f.cfg.Runtime != nil {
		cfg = f.cfg.Runtime(n, rand.New(rand.NewPCG(f.cfg.Seed, ^uint64(n))))
	}
	cfg.Region = region
	if f.cfg.Applied != nil {
		cfg.Applied = func(deployment string, epoch, generation int64) { f.cfg.Applied(region, deployment, epoch, generation) }
	}
	m.Runtime = agent.NewSimulated(cfg)
	makeFolder := func(path string) error { return os.MkdirAll(path, 0o700) }
	if f.cfg.Folder != nil {
		makeFolder = f.cfg.Folder
	}
	if err := makeFolder(m.dir); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	if err := os.WriteFile(m.tokenFile(), []byte(f.cfg.Token(region)), 0o600); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	return m, nil
}

// tokenFile returns the path of the token with which the agent joins.
func (m *Member) tokenFile() string { return filepath.Join(m.dir, "token") }

// randomFloat returns a random number in [0, 1). It is safe for concurrent use.
func (m *Member) randomFloat() float64 {
	m.rndMu.Lock()
	defer m.rndMu.Unlock()
	return m.rnd.Float64()
}

// stopGrace is how long a killed agent's goroutines may take to end.
const stopGrace = 20 * time.Second

// Start starts an agent on the data of the member's last agent, and returns when the agent has joined its region.
// If an agent runs already, Start does nothing. The agent runs until Kill, also after ctx ends.
func (m *Member) Start(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cancel != nil {
		return nil
	}
	t := &transport{next: m.client.Transport}
	client := *m.client
	client.Transport = t
	a, err := agent.New(ctx, agent.Config{
		Server: m.fleet.cfg.URL(m.number), HTTPClient: &client,
		DataDir: m.dir, TokenFile: m.tokenFile(),
		NewRuntime:  func(context.Context, string) (agent.Runtime, error) { return m.Runtime.Take(), nil },
		RuntimeName: "simulated", Version: agent.Version, SpansHosts: true, NoSync: true,
		Log: m.log, Registerer: prometheus.NewRegistry(), Tracer: m.fleet.tracer, Rand: m.randomFloat,
	})
	if err != nil {
		return fmt.Errorf("start the agent of region %s: %w", m.Region, err)
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m.agent, m.transport, m.cancel, m.done = a, t, cancel, make(chan error, 1)
	go func() {
		err := service.Run(running, m.log, stopGrace, a.Components()...)
		m.done <- errors.Join(err, a.Close())
	}()
	return nil
}

// Kill ends the agent as kill -9 does. From then on, the agent sends nothing, changes no instances, and stores
// nothing, not even the rest of a write. Then Kill waits until the agent's goroutines have ended. The instances stay
// as they are.
func (m *Member) Kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cancel == nil {
		return
	}
	select {
	case err := <-m.done:
		m.log.Error("the agent ended before it was killed", "region", m.Region, "error", err)
		m.done <- nil
	default:
	}
	m.transport.killed.Store(true)
	m.wire.cutAll()
	m.agent.Abandon()
	m.Runtime.Take() // takes the runtime from the agent, so that it has no owner
	m.cancel()
	<-m.done //nolint:errcheck // errors of a killed agent do not matter
	m.agent, m.transport, m.cancel, m.done = nil, nil, nil, nil
}

// Connected reports whether the agent has a stream.
func (m *Member) Connected() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.agent != nil && m.agent.Connected()
}

// Cut breaks every connection of the member. Its agent opens new ones.
func (m *Member) Cut() { m.wire.cutAll() }

// Stall(true) delays all bytes from the control plane while connections stay open, until Stall(false).
func (m *Member) Stall(on bool) { m.wire.setStalled(on) }

// Folder returns the folder of the agent's data.
func (m *Member) Folder() string { return m.dir }

// Inbox returns the path of the agent's inbox.
func (m *Member) Inbox() string { return filepath.Join(m.dir, "inbox.db") }

// Lose deletes the inbox. The agent must not run.
func (m *Member) Lose() error {
	if err := os.Remove(m.Inbox()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("delete the inbox of region %s: %w", m.Region, err)
	}
	return nil
}
