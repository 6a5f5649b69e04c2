package fleettest

import (
	"context"
	"crypto/rand"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
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

// fleet has the control planes on one database, the regions, and the network between them.
type fleet struct {
	t      testing.TB
	ctx    context.Context
	cancel context.CancelFunc
	log    *slog.Logger
	keyset []byte
	memory *controlplane.Memory
	boot   controlplane.BootstrapResult
	trace  *trace
	check  *checker

	scheduler *scheduler // nil: Go's own

	// fate decides what users do and what breaks.
	fate dice

	mu      sync.Mutex
	seed    uint64
	instant int64 // of the newest draw
	draws   map[string]uint64

	replicas []*replica
	regions  []*region
	users    *node
	// faultsOn means that faults are on. ended means that nothing new may begin.
	faultsOn, ended atomic.Bool
	running         sync.WaitGroup // calls that are under way

	apps        windlassv1connect.AppServiceClient
	deployments windlassv1connect.DeploymentServiceClient
	regionAPI   windlassv1connect.RegionServiceClient
}

// process is a program whose parts end one after the other when it is killed. With one common context, they
// would end in the order of their addresses, which differs between runs.
type process struct {
	w       *fleet
	cancel  []context.CancelFunc
	running sync.WaitGroup
}

// kill ends the process. No part of it runs afterwards.
func (p *process) kill() {
	for _, cancel := range p.cancel {
		p.w.happens()
		cancel()
	}
	p.running.Wait()
}

// add runs a part after a delay. The delays differ, so the timers of two parts never fire at the same
// instant.
func (p *process) add(after time.Duration, run func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = append(p.cancel, cancel)
	p.running.Go(func() {
		if sleep(ctx, after) == nil {
			run(ctx)
		}
	})
}

// addAll adds a program's parts. None of them may end by itself.
func (w *fleet) addAll(p *process, name string, components []service.Component) {
	for i, c := range components {
		p.add(time.Duration(1+i)*time.Millisecond+dice{w, name}.between(0, time.Millisecond), func(ctx context.Context) {
			if err := c.Run(ctx); ctx.Err() == nil {
				w.check.violatef("a part of a program ended", place{}, "%s: %s: %v", name, c.Name, err)
			}
		})
	}
}

// happens makes the scheduler's next random choices depend on only the seed and the time.
func (w *fleet) happens() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drawn("")
}

// drawn returns a random number. It depends on the seed, the time, the caller's name who, and the number of
// earlier draws with this name at this instant. It does not depend on other callers.
func (w *fleet) drawn(who string) uint64 {
	now := time.Now().UnixNano()
	if now != w.instant {
		w.instant = now
		clear(w.draws)
	}
	w.draws[who]++
	h := fnv.New64a()
	_, _ = h.Write([]byte(who)) // never fails
	x := splitmix(splitmix(w.seed^h.Sum64()) ^ splitmix(uint64(now)) + w.draws[who])
	if w.scheduler != nil {
		w.scheduler.event(x)
	}
	return x
}

// entropy is the source of crypto/rand while the fleet runs.
type entropy struct{ w *fleet }

func (e entropy) Read(p []byte) (int, error) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	x := e.w.drawn("entropy")
	for i := range p {
		if i%8 == 0 {
			x = splitmix(x)
		}
		p[i] = byte(x >> (i % 8 * 8))
	}
	return len(p), nil
}

// dice draw the random numbers of one part of the fleet.
type dice struct {
	w   *fleet
	who string
}

func (d dice) float() float64 {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	return float64(d.w.drawn(d.who)>>11) / (1 << 53)
}

func (d dice) intn(n int) int { return int(d.float() * float64(n)) }

// between draws a duration.
func (d dice) between(low, high time.Duration) time.Duration {
	return low + time.Duration(d.float()*float64(high-low))
}

// sleep waits until d has passed or ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// size is the size of a fleet.
type size struct{ replicas, regions, apps int }

func newFleet(t testing.TB, seed uint64, of size, s *scheduler, keepTrace bool) *fleet {
	keyset, err := seal.Generate()
	require.NoError(t, err)
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("WINDLASS_FLEET_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &fleet{
		t: t, ctx: ctx, cancel: cancel, keyset: keyset, log: log, scheduler: s,
		memory: controlplane.NewMemory(),
		trace:  newTrace(keepTrace),
		seed:   seed, draws: map[string]uint64{},
	}
	w.fate = dice{w, "fate"}
	rand.Reader = entropy{w}
	w.check = newChecker(w)
	w.memory.Observe(w.check.onWrite)
	var names []string
	for i := range of.regions {
		names = append(names, regionName(i))
	}
	w.boot, err = w.memory.Bootstrap(ctx, controlplane.BootstrapConfig{Workspace: "default", Regions: names})
	require.NoError(t, err)

	w.users = newNode(w, "users")
	client := &http.Client{Transport: w.users}
	options := rpc.ClientOptions(rpc.ClientConfig{Token: func() string { return w.boot.APIKey }})
	w.apps = windlassv1connect.NewAppServiceClient(client, "http://"+balancer, options...)
	w.deployments = windlassv1connect.NewDeploymentServiceClient(client, "http://"+balancer, options...)
	w.regionAPI = windlassv1connect.NewRegionServiceClient(client, "http://"+balancer, options...)

	for i := range of.replicas {
		name := fmt.Sprintf("cp-%d", i+1)
		w.replicas = append(w.replicas, &replica{w: w, name: name})
	}
	for _, r := range w.replicas {
		r.start()
	}
	for _, name := range names {
		w.regions = append(w.regions, w.newRegion(name))
	}
	for _, r := range w.regions {
		r.start()
	}
	return w
}

func regionName(i int) string { return fmt.Sprintf("region-%02d", i) }

// tokenFile is where agents find their join tokens.
const tokenFile = "token"

func tracer() *sdktrace.TracerProvider {
	return sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
}

// stop ends everything, and returns when all goroutines have ended.
func (w *fleet) stop() {
	w.ended.Store(true)
	w.trace.over = true
	w.cancel()
	for _, n := range w.nodes() {
		n.end()
	}
	for _, r := range w.regions {
		r.process.kill()
	}
	for _, r := range w.replicas {
		r.kill()
	}
	w.running.Wait()
}

// end breaks all calls that are under way, even held ones.
func (n *node) end() {
	n.cut("", true)
	n.release("")
}

// region is a region of the fleet. Its agents come and go. Its instances and its disk stay.
type region struct {
	w       *fleet
	name    string
	runtime *agent.Simulated

	mu      sync.Mutex
	disk    *agent.Memory
	served  *servedRoutes // by the agents on disk
	node    *node
	process *process
	agents  int
	past    []*node // of agents that were replaced by another agent
}

func (w *fleet) newRegion(name string) *region {
	r := &region{w: w, name: name, disk: agent.NewMemory(tokenFile, w.boot.JoinTokens[name]), served: &servedRoutes{apps: map[string]servedRoute{}}}
	r.runtime = agent.NewSimulated(agent.SimulatedConfig{
		Region:  name,
		Start:   func() time.Duration { return dice{w, name}.between(10*time.Millisecond, 3*time.Second) },
		Stop:    func() time.Duration { return dice{w, name}.between(10*time.Millisecond, 2*time.Second) },
		Crashes: func(label string) bool { return label == "crashes" },
		CPU:     func(app, _ string) (float64, bool) { return w.cpu(name, app) },
		Applied: func(id string, _, generation int64) { w.check.onApplied(r, id, generation) },
		Removed: func(id string) { w.check.onRemoved(r, id) },
		Ready:   func(id, instance string) { w.check.onReady(r, id, instance) },
	})
	return r
}

// start starts an agent, which takes over from any earlier agent.
func (r *region) start() {
	w := r.w
	r.mu.Lock()
	defer r.mu.Unlock()
	r.agents++
	name := fmt.Sprintf("%s/%d", r.name, r.agents)
	node, held, disk := newNode(w, name), r.runtime.Take(), r.disk
	log := slog.New(routesLog{w.log.With("agent", name).Handler(), r.served})
	node.unreliable = true
	r.node = node
	p := &process{w: w}
	r.process = p
	p.add(0, func(ctx context.Context) {
		a, err := agent.New(ctx, agent.Config{
			Server: "http://" + balancer, HTTPClient: &http.Client{Transport: node},
			Memory: disk, TokenFile: tokenFile,
			NewRuntime:  func(context.Context, string) (agent.Runtime, error) { return held, nil },
			RuntimeName: "simulated", Version: "test", SpansHosts: true,
			Log: log, Registerer: prometheus.NewRegistry(), Tracer: tracer(), Rand: dice{w, name}.float,
		})
		if err != nil {
			if ctx.Err() == nil {
				w.check.violatef("an agent does not start", place{region: r.name}, "%v", err)
			}
			return
		}
		defer a.Close()
		parts := &process{w: w}
		w.addAll(parts, name, a.Components())
		<-ctx.Done()
		parts.kill()
	})
}
