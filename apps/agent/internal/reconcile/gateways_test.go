package reconcile

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// doors are gateways whose answers the test sets.
type doors struct {
	noGateways
	mu             sync.Mutex
	behind         string // the result of Routed
	sending        bool   // a gateway sends to the deployment that will be removed
	left           time.Duration
	routed         []int64
	leaving, stays []string
}

func (d *doors) set(change func(*doors)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

func (d *doors) Route(_ *agentv1.Routes, _, generation int64) {
	d.set(func(d *doors) { d.routed = append(d.routed, generation) })
}

func (d *doors) See(runtime.Observation) {}

func (d *doors) Routed(string, int64, int64) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.behind
}

func (d *doors) Leave(id string, seen *runtime.Observation) (string, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leaving = append(d.leaving, id)
	if d.sending || seen == nil {
		return "a gateway sends to the deployment", d.left
	}
	return "", 0
}

func (d *doors) Stay(id string) { d.set(func(d *doors) { d.stays = append(d.stays, id) }) }

func startWithGateways(t *testing.T, d *doors) *harness {
	rt := simulate()
	in, err := inbox.OpenMemory(inbox.NewMemory())
	require.NoError(t, err)
	r, err := New(Config{
		Inbox: in, Runtime: rt, Gateways: d,
		Secrets:       func(context.Context, *agentv1.Deployment, int64) (map[string]string, error) { return nil, nil },
		ForgetSecrets: func(string) error { return nil },
		Log:           slog.New(slog.DiscardHandler), Tracer: noop.NewTracerProvider().Tracer(""),
		Region: func() string { return "us-east-1" }, Rand: func() float64 { return 0.5 },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return &harness{t: t, in: in, rt: rt, r: r}
}

func route(generation int64) *agentv1.Item {
	return &agentv1.Item{
		Kind: agentv1.ItemKind_ITEM_KIND_ROUTES, Key: "app_1", Epoch: 1, Generation: generation,
		Content: &agentv1.Item_Routes{Routes: &agentv1.Routes{AppId: "app_1", Hosts: []string{"a.test"}, Targets: []*agentv1.RouteTarget{{DeploymentId: "dep_1", Weight: 1}}}},
	}
}

func TestRoute_IsAppliedOnceGatewaysServeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &doors{behind: "waits for gateway 1"}
		g := startWithGateways(t, d)
		g.snapshot(1, route(1))
		time.Sleep(time.Second)
		g.requireState("app_1", 1, 1, isPending, false)
		require.Equal(t, codeGateways, g.state("app_1").Code)
		require.Equal(t, "waits for gateway 1", g.state("app_1").Message)
		d.set(func(d *doors) { require.Contains(t, d.routed, int64(1)) })

		d.set(func(d *doors) { d.behind = "" })
		g.r.Proceed()
		time.Sleep(time.Second)
		g.requireState("app_1", 1, 1, isApplied, false)

		d.set(func(d *doors) { d.behind = "a new gateway does not serve the route yet" })
		g.r.Enqueue(inbox.Key{Kind: agentv1.ItemKind_ITEM_KIND_ROUTES, Name: "app_1"})
		time.Sleep(time.Second)
		g.requireState("app_1", 1, 1, isApplied, false)
		g.delta(route(2))
		time.Sleep(time.Second)
		g.requireState("app_1", 1, 2, isPending, false)
	})
}

func TestRemoval_WaitsForGatewaysUntilItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &doors{sending: true, left: 30 * time.Second}
		g := startWithGateways(t, d)
		g.snapshot(1, item("dep_1", 1, 2, apply), item("dep_2", 1, 1, apply))
		time.Sleep(time.Second)
		g.delta(item("dep_1", 1, 3, remove))
		time.Sleep(20 * time.Second)
		g.requireState("dep_1", 1, 3, isPending, false)
		require.Equal(t, codeDraining, g.state("dep_1").Code)
		require.Equal(t, "a gateway sends to the deployment", g.state("dep_1").Message)
		require.Contains(t, g.rt.Running(), "dep_1")

		g.delta(item("dep_1", 1, 4, apply))
		time.Sleep(time.Second)
		d.set(func(d *doors) { require.Contains(t, d.stays, "dep_1", "the deployment is wanted again") })
		g.delta(item("dep_1", 1, 5, remove))
		time.Sleep(time.Second)
		d.set(func(d *doors) { d.sending = false })
		g.r.Proceed()
		time.Sleep(11 * time.Second)
		g.requireState("dep_1", 1, 5, isApplied, true)

		d.set(func(d *doors) { d.sending = true })
		g.delta(item("dep_2", 1, 2, remove))
		time.Sleep(20 * time.Second)
		g.requireState("dep_2", 1, 2, isPending, false)
		d.set(func(d *doors) { d.sending = false }) // without a call of Proceed
		time.Sleep(21 * time.Second)
		g.requireState("dep_2", 1, 2, isApplied, true)
	})
}
