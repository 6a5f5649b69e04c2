package fleettest

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/controlplane"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/seal"
	"github.com/windlass-run/windlass/pkg/service"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// world is one control plane, its agents, and what lies between them.
type world struct {
	t      testing.TB
	ctx    context.Context
	log    *slog.Logger
	dir    string
	keyset []byte
	memory *controlplane.Memory
	boot   controlplane.BootstrapResult

	mu  sync.Mutex
	rnd *rand.Rand

	plane   *process
	handler http.Handler // of the running plane
	users   *wire
	agents  map[string]*member

	apps        windlassv1connect.AppServiceClient
	deployments windlassv1connect.DeploymentServiceClient
	regions     windlassv1connect.RegionServiceClient
}

// member is a region: its agent comes and goes, its runtime and disk stay.
type member struct {
	name    string
	wire    *wire
	runtime *agent.Simulated
	process *process
}

// process is something that can be killed.
type process struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// kill ends the process; nothing of it runs afterwards.
func (p *process) kill() {
	p.cancel()
	<-p.done
}

func start(ctx context.Context, run func(ctx context.Context)) *process {
	ctx, cancel := context.WithCancel(ctx)
	p := &process{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		run(ctx)
	}()
	return p
}

func (w *world) float() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rnd.Float64()
}

func (w *world) intn(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rnd.IntN(n)
}

// between draws a duration.
func (w *world) between(low, high time.Duration) time.Duration {
	return low + time.Duration(w.float()*float64(high-low))
}

func newWorld(ctx context.Context, t testing.TB, dir string, seed uint64, regions int) *world {
	keyset, err := seal.Generate()
	require.NoError(t, err)
	level := slog.LevelError + 4
	if os.Getenv("WINDLASS_FLEET_LOG") != "" {
		level = slog.LevelDebug
	}
	w := &world{
		t: t, ctx: ctx, dir: dir, keyset: keyset,
		log:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
		memory: controlplane.NewMemory(),
		rnd:    rand.New(rand.NewPCG(seed, 1)),
		users:  newWire(),
		agents: map[string]*member{},
	}
	var names []string
	for i := range regions {
		names = append(names, fmt.Sprintf("region-%02d", i))
	}
	w.boot, err = w.memory.Bootstrap(ctx, controlplane.BootstrapConfig{Workspace: "default", Regions: names})
	require.NoError(t, err)

	client := &http.Client{Transport: w.users}
	options := rpc.ClientOptions(rpc.ClientConfig{Token: func() string { return w.boot.APIKey }})
	w.apps = windlassv1connect.NewAppServiceClient(client, "http://windlass", options...)
	w.deployments = windlassv1connect.NewDeploymentServiceClient(client, "http://windlass", options...)
	w.regions = windlassv1connect.NewRegionServiceClient(client, "http://windlass", options...)

	w.startPlane()
	for _, name := range names {
		m := &member{name: name, wire: newWire()}
		m.runtime = agent.NewSimulated(agent.SimulatedConfig{
			Region:  name,
			Start:   func() time.Duration { return w.between(10*time.Millisecond, 3*time.Second) },
			Stop:    func() time.Duration { return w.between(10*time.Millisecond, 2*time.Second) },
			Crashes: func(label string) bool { return label == "crashes" },
		})
		w.agents[name] = m
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
		require.NoError(t, os.WriteFile(w.tokenFile(name), []byte(w.boot.JoinTokens[name]), 0o600))
		w.startAgent(m)
	}
	return w
}

func (w *world) tokenFile(region string) string { return filepath.Join(w.dir, region, "token") }

func (w *world) startPlane() {
	plane, err := controlplane.NewInMemory(controlplane.InMemoryConfig{
		Memory: w.memory, Keyset: w.keyset, Log: w.log, Registerer: prometheus.NewRegistry(),
		Tracer: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())), Rand: w.float,
	})
	require.NoError(w.t, err)
	w.plane = start(w.ctx, func(ctx context.Context) {
		if err := service.Run(ctx, w.log, time.Minute, plane.Components()...); err != nil {
			w.t.Errorf("control plane: %v", err)
		}
	})
	w.users.plug(plane.Handler())
	for _, m := range w.agents {
		m.wire.plug(plane.Handler())
	}
	w.handler = plane.Handler()
}

// killPlane ends the control plane as kill -9 would: calls break, nothing is
// said.
func (w *world) killPlane() {
	w.users.plug(nil)
	w.users.cut(false)
	for _, m := range w.agents {
		m.wire.plug(nil)
		m.wire.cut(false)
	}
	w.plane.kill()
}

func (w *world) startAgent(m *member) {
	m.wire.plug(w.handler)
	m.process = start(w.ctx, func(ctx context.Context) {
		a, err := agent.New(ctx, agent.Config{
			Server: "http://windlass", HTTPClient: &http.Client{Transport: m.wire},
			DataDir: filepath.Join(w.dir, m.name), TokenFile: w.tokenFile(m.name),
			NewRuntime:  func(context.Context, string) (agent.Runtime, error) { return m.runtime, nil },
			RuntimeName: "simulated", Version: "test", NoSync: true,
			Log: w.log.With("agent", m.name), Registerer: prometheus.NewRegistry(),
			Tracer: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())), Rand: w.float,
		})
		if err != nil {
			if ctx.Err() == nil {
				w.t.Errorf("agent %s: %v", m.name, err)
			}
			return
		}
		defer a.Close()
		if err := service.Run(ctx, w.log, time.Minute, a.Components()...); err != nil {
			w.t.Errorf("agent %s: %v", m.name, err)
		}
	})
}

func (w *world) stop() {
	for _, m := range w.agents {
		m.process.kill()
	}
	w.killPlane()
}
