package gateways

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/reconcile"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/simulated"
	"github.com/windlass-run/windlass/apps/agent/internal/zero"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// A start takes 45 s, and a request takes 3 s. holdTime is how long requests may wait while the
	// app is at zero, and queueTime how long they may wait otherwise.
	startTime, requestTime = 45 * time.Second, 3 * time.Second
	holdTime, queueTime    = time.Minute, 10 * time.Second
)

// zeroRegion is an agent, a runtime and files that outlive the agent, and one gateway, in virtual
// time.
type zeroRegion struct {
	t       *testing.T
	files   *disk.Memory
	kept    *inbox.Memory
	runtime *simulated.Runtime
	table   int
	// follows means that the control plane is reachable and assigns a replica after a wake.
	follows bool
	// pool has the number of instances of each role if the deployment is a pool. It is nil for a deployment of one role.
	pool       map[string]int32
	generation int64
	revision   int64

	in      *inbox.Inbox
	zero    *zero.Zero
	g       *Gateways
	r       *reconcile.Reconciler
	stop    func()
	gateway *fakeGateway
}

func startZeroRegion(t *testing.T) *zeroRegion { return startZero(t, nil) }

// startZero is startZeroRegion with a pool of that many instances of each role, nil for none. Instances of a pool take
// between half of startTime and all of it to start.
func startZero(t *testing.T, pool map[string]int32) *zeroRegion {
	started := 0
	z := &zeroRegion{
		t: t, files: disk.NewMemory(), kept: inbox.NewMemory(), generation: 1, pool: pool,
		runtime: simulated.New(simulated.Config{
			Start: func() time.Duration {
				if started++; pool == nil {
					return startTime
				}
				return startTime/2 + startTime/2*time.Duration(started%3)/2
			},
			Stop: func() time.Duration { return time.Second },
		}),
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- z.runtime.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	z.open()
	t.Cleanup(func() { z.stop() })
	items := []*agentv1.Item{z.deployment(1), {
		Kind: agentv1.ItemKind_ITEM_KIND_ROUTES, Key: "app_1", Generation: 1, Content: &agentv1.Item_Routes{Routes: &agentv1.Routes{
			AppId: "app_1", Hosts: []string{"chat.test"}, Targets: []*agentv1.RouteTarget{{DeploymentId: "dep_1", Weight: 100}},
		}},
	}}
	keys, err := z.in.Snapshot(&agentv1.SnapshotBegin{Revision: 1, Count: int64(len(items))}, items)
	require.NoError(t, err)
	z.revision = 1
	z.received(keys...)
	z.gateway = &fakeGateway{z: z}
	z.runFor(startTime + 10*time.Second)
	require.NotEmpty(t, z.gateway.ready())
	return z
}

func (z *zeroRegion) received(keys ...inbox.Key) {
	z.g.Received(keys...)
	z.r.Enqueue(keys...)
}

// open starts an agent.
func (z *zeroRegion) open() {
	var err error
	z.table++
	z.in, err = inbox.OpenMemory(z.kept)
	require.NoError(z.t, err)
	z.zero, err = zero.Open(z.files, "zero.json")
	require.NoError(z.t, err)
	z.g, err = New(Config{
		Inbox: z.in, Zero: z.zero, Files: z.files, Name: "gateways.json", Around: "neighbours.binpb", Versions: "versions.json", TableID: fmt.Sprint("table-", z.table),
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	require.NoError(z.t, err)
	z.r, err = reconcile.New(reconcile.Config{
		Inbox: z.in, Zero: z.zero, Runtime: z.runtime, Gateways: z.g,
		Secrets:       func(context.Context, *agentv1.Deployment, int64) (map[string]string, error) { return nil, nil },
		ForgetSecrets: func(string) error { return nil },
		Log:           slog.New(slog.DiscardHandler), Tracer: noop.NewTracerProvider().Tracer(""),
		Region: func() string { return "us-east-1" }, Rand: func() float64 { return 0.5 },
	})
	require.NoError(z.t, err)
	r := z.r
	z.g.OnProgress(r.Proceed)
	z.g.OnWake(func(ids []string) {
		for _, id := range ids {
			r.Enqueue(inbox.Key{Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Name: id})
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- z.r.Run(ctx) }()
	go func() { done <- z.g.Run(ctx) }()
	in := z.in
	z.stop = func() {
		cancel()
		require.NoError(z.t, <-done)
		require.NoError(z.t, <-done)
		require.NoError(z.t, in.Close())
	}
}

// kill ends the agent as kill -9 does, and starts another.
func (z *zeroRegion) kill() {
	files := z.files
	z.files = files.Clone() // without the writes of the agent's shutdown
	z.in.Abandon()
	z.stop()
	z.gateway.one = nil
	z.open()
}

func (z *zeroRegion) deployment(replicas int32) *agentv1.Item {
	wake, spec := int32(1), &windlassv1.DeploymentSpec{}
	if z.pool != nil {
		wake, replicas = 100, 100*replicas
		spec.Layout = windlassv1.Layout_LAYOUT_POOLED
		spec.Roles = []*windlassv1.RoleSpec{{Name: "prefill", Instances: z.pool["prefill"]}, {Name: "decode", Instances: z.pool["decode"], Entry: true}}
	}
	return &agentv1.Item{
		Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Key: "dep_1", Generation: z.generation,
		Content: &agentv1.Item_Deployment{Deployment: &agentv1.DeploymentState{
			Action: agentv1.DeploymentState_ACTION_APPLY, WorkloadKey: "dep_1",
			Deployment: &agentv1.Deployment{Id: "dep_1", AppId: "app_1", AppName: "chat", Version: 1, Replicas: replicas, Wake: wake, Spec: spec},
		}},
	}
}

// assign sends the next generation of the deployment.
func (z *zeroRegion) assign(replicas int32) {
	z.generation++
	z.revision++
	keys, err := z.in.Delta(&agentv1.Delta{After: z.revision - 1, Upto: z.revision, Items: []*agentv1.Item{z.deployment(replicas)}})
	require.NoError(z.t, err)
	z.received(keys...)
}

// followWake assigns a replica, as the control plane does, if the agent reports that a request woke
// the deployment.
func (z *zeroRegion) followWake() {
	for _, s := range z.r.Applied() {
		if s.Key == "dep_1" && s.Code == "Woken" && s.Generation == z.generation {
			runs := "1 replica"
			if z.pool != nil {
				runs = "a whole pool"
			}
			require.Equal(z.t, "a request woke the deployment: the region runs "+runs, s.Message)
			z.assign(1)
		}
	}
}

func (z *zeroRegion) instances() map[string]windlassv1.InstanceStatus {
	out := map[string]windlassv1.InstanceStatus{}
	seen, err := z.runtime.Observe(z.t.Context())
	require.NoError(z.t, err)
	for _, d := range seen.Deployments {
		for _, in := range d.Instances {
			out[in.ID] = in.Status
		}
	}
	return out
}

// readyRoles returns how many instances of each role are ready.
func (z *zeroRegion) readyRoles() map[string]int32 {
	out := map[string]int32{}
	seen, err := z.runtime.Observe(z.t.Context())
	require.NoError(z.t, err)
	for _, d := range seen.Deployments {
		for _, in := range d.Instances {
			if in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
				out[in.Role]++
			}
		}
	}
	return out
}

// runFor runs the gateway for d, one step every 500 ms. If follows is true, it also runs the
// control plane.
func (z *zeroRegion) runFor(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		z.gateway.pull()
		z.gateway.report()
		z.gateway.wake()
		z.gateway.sendRequests()
		if z.follows {
			z.followWake()
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// clientRequest is a request of a client at the gateway.
type clientRequest struct {
	at       time.Time
	instance string
	sent     time.Time
	done     bool
}

// fakeGateway follows the gateway protocol, one step at a time.
type fakeGateway struct {
	z        *zeroRegion
	one      *gateway
	table    string
	routes   *gatewayv1.AppRoutes
	requests []*clientRequest
	woke     int
}

func (a *fakeGateway) ready() (ids []string) {
	for _, target := range a.routes.GetTargets() {
		for _, in := range target.Instances {
			if in.State == gatewayv1.Instance_STATE_READY {
				ids = append(ids, in.InstanceId)
			}
		}
	}
	return ids
}

// pull applies the states that the agent has to send.
func (a *fakeGateway) pull() {
	g := a.z.g
	var frames []*gatewayv1.WatchResponse
	if a.one == nil {
		req := &gatewayv1.WatchRequest{GatewayId: first, ProcessId: "run_1", TableId: a.table, Features: []string{featureHold}}
		if a.routes != nil {
			req.Have = []*gatewayv1.AppVersion{{AppId: "app_1", Generation: a.routes.Generation, Change: a.routes.Change}}
		}
		one, err := g.openStream(req, true)
		require.NoError(a.z.t, err)
		a.one = one
	}
	select {
	case <-g.complete:
	default:
		return
	}
	if !a.one.begun {
		frames = g.wholeTable(a.one)
	} else {
		var err error
		frames, err = g.changedApps(a.one)
		require.NoError(a.z.t, err)
	}
	for _, f := range frames {
		if f.GetBegin() != nil {
			a.table = f.GetBegin().TableId
		}
		for _, app := range f.GetApps().GetApps() {
			a.routes = app
		}
	}
	a.sendRequests()
}

func (a *fakeGateway) report() {
	if a.one == nil || !a.one.begun || a.routes == nil {
		return
	}
	flight := map[string]int32{}
	for _, q := range a.requests {
		if q.instance != "" && !q.done && !slices.Contains(a.ready(), q.instance) {
			flight[q.instance]++
		}
	}
	req := &gatewayv1.ReportRequest{GatewayId: first, ProcessId: "run_1", TableId: a.table, Served: []*gatewayv1.Served{
		{AppId: "app_1", Generation: a.routes.Generation, InstancesChange: a.routes.Change},
	}}
	for id, n := range flight {
		req.Instances = append(req.Instances, &gatewayv1.InstanceHealth{InstanceId: id, InFlight: n})
	}
	a.z.g.mu.Lock()
	require.True(a.z.t, a.z.g.hub.applyReport(req, time.Now()))
	a.z.g.mu.Unlock()
	a.z.g.progress()
}

// wake calls the agent while requests are held.
func (a *fakeGateway) wake() {
	if a.routes.GetHeld() && slices.ContainsFunc(a.requests, func(q *clientRequest) bool { return q.instance == "" }) {
		ctx := context.WithValue(a.z.t.Context(), callerKey{}, Caller{Verified: true})
		_, err := a.z.g.Wake(ctx, &gatewayv1.WakeRequest{GatewayId: first, AppId: "app_1"})
		require.NoError(a.z.t, err)
		a.woke++
	}
}

func (a *fakeGateway) ask() {
	a.requests = append(a.requests, &clientRequest{at: time.Now()})
	a.sendRequests()
}

// sendRequests sends the requests that can be sent, and ends requests after requestTime. It fails
// the test if a request waits for too long.
func (a *fakeGateway) sendRequests() {
	for _, q := range a.requests {
		wait := queueTime
		if a.routes.GetHeld() {
			wait = holdTime
		}
		switch {
		case q.done:
		case q.instance != "":
			if time.Since(q.sent) < requestTime {
				require.Contains(a.z.t, a.z.instances(), q.instance, "the instance stopped with a request: 502")
			} else {
				q.done = true
			}
		case !a.routes.GetHeld() && len(a.ready()) > 0:
			q.instance, q.sent = a.ready()[0], time.Now()
			require.Contains(a.z.t, a.z.instances(), q.instance, "the instance is gone: 502")
			if a.z.pool != nil {
				require.Len(a.z.t, a.z.readyRoles(), 2, "the pool lacks a role: 502")
			}
		default:
			require.LessOrEqual(a.z.t, time.Since(q.at), wait, "503: held %v, ready %v", a.routes.GetHeld(), a.ready())
		}
	}
}

// schedules returns all different orders of the steps.
func schedules(steps string) []string {
	count := map[rune]int{}
	for _, s := range steps {
		count[s]++
	}
	kinds := slices.Sorted(maps.Keys(count))
	var out []string
	var next func(so string)
	next = func(so string) {
		if len(so) == len(steps) {
			out = append(out, so)
			return
		}
		for _, k := range kinds {
			if count[k] > 0 {
				count[k]--
				next(so + string(k))
				count[k]++
			}
		}
	}
	next("")
	return out
}

// The steps of the agent and the gateway are: a request arrives (a), the gateway applies what the
// agent sends (p), reports what it serves (r) and calls Wake (w), the agent is killed (k). The
// steps of the control plane are: its decision to go to zero arrives (d), and its decision to run a
// replica arrives (u). The test runs every order in which each step except u occurs once, and every
// order in which each step except k occurs once. It runs some of the orders in which p and r occur
// twice, and in which each step occurs once. With ALL_SCHEDULES=1, it runs all of these.
func TestZero_EveryInterleavingOfRequestDecisionAndWake(t *testing.T) {
	all := append(schedules("daprwk"), schedules("daprwu")...)
	for i, s := range append(schedules("daprprwk"), schedules("daprwku")...) {
		if i%40 == 0 || os.Getenv("ALL_SCHEDULES") != "" {
			all = append(all, s)
		}
	}
	pool := map[string]int32{"prefill": 2, "decode": 1}
	for _, one := range []struct {
		name    string
		follows bool
		pool    map[string]int32
	}{{"", false, nil}, {" with the control plane", true, nil}, {" of a pool", false, pool}, {" of a pool with the control plane", true, pool}} {
		for _, schedule := range all {
			ok := t.Run(schedule+one.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					z := startZero(t, one.pool)
					z.follows = one.follows
					for _, step := range schedule {
						switch step {
						case 'd':
							z.assign(0)
						case 'u':
							z.assign(1)
						case 'a':
							z.gateway.ask()
						case 'p':
							z.gateway.pull()
						case 'r':
							z.gateway.report()
						case 'w':
							z.gateway.wake()
						case 'k':
							z.kill()
						}
						synctest.Wait()
					}
					z.runFor(holdTime + 10*time.Second)
					require.True(t, z.gateway.requests[0].done)
				})
			})
			if !ok {
				return
			}
		}
	}
}

func TestZero(t *testing.T) {
	asleep := func(t *testing.T) *zeroRegion {
		z := startZeroRegion(t)
		z.assign(0)
		z.runFor(10 * time.Second)
		require.True(t, z.gateway.routes.Held)
		require.Empty(t, z.instances())
		return z
	}
	t.Run("gateways hold requests before instances stop", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			z := startZeroRegion(t)
			z.assign(0)
			time.Sleep(time.Second)
			require.Len(t, z.instances(), 1, "the gateway does not serve the new state yet")
			z.gateway.pull()
			require.True(t, z.gateway.routes.Held)
			time.Sleep(time.Second)
			require.Equal(t, []windlassv1.InstanceStatus{windlassv1.InstanceStatus_INSTANCE_STATUS_READY}, slices.Collect(maps.Values(z.instances())))
			z.gateway.report()
			time.Sleep(2 * time.Second)
			require.Empty(t, z.instances())
		})
	})
	t.Run("instances wait for a gateway that does not acknowledge, until the deadline", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			z := startZeroRegion(t)
			z.assign(0)
			time.Sleep(Patience - time.Second)
			require.Len(t, z.instances(), 1)
			time.Sleep(5 * time.Second)
			require.Empty(t, z.instances())
		})
	})
	t.Run("no instance stops while a gateway cannot hold requests", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			z := startZeroRegion(t)
			z.gateway.one.holdsRequests = false
			z.g.mu.Lock()
			z.g.renewAsleep()
			z.g.mu.Unlock()
			z.assign(0)
			z.runFor(2 * Patience)
			require.Len(t, z.instances(), 1)
			require.False(t, z.gateway.routes.Held)
			require.Len(t, z.gateway.ready(), 1)
			var why string
			for _, s := range z.r.Applied() {
				if s.Key == "dep_1" {
					why = s.Message
				}
			}
			require.Contains(t, why, "does not hold requests")
		})
	})
	t.Run("the first request wakes the app without the control plane, and is answered", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			z := asleep(t)
			z.gateway.ask()
			z.gateway.wake()
			synctest.Wait()
			time.Sleep(10 * time.Millisecond)
			require.Len(t, z.instances(), 1, "an instance starts at once")
			z.runFor(startTime + 5*time.Second)
			require.True(t, z.gateway.requests[0].done)
			require.False(t, z.gateway.routes.Held)
			require.Less(t, z.gateway.requests[0].sent.Sub(z.gateway.requests[0].at), startTime+time.Second)
			require.InDelta(t, startTime.Seconds(), z.zero.StartTime("app_1").Seconds(), 1)
		})
	})
	t.Run("a woken deployment reports it, and the next generation does not restart instances", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			z := asleep(t)
			z.gateway.ask()
			z.runFor(startTime + 5*time.Second)
			code := func() (code string) {
				for _, s := range z.r.Applied() {
					if s.Key == "dep_1" && s.Generation == z.generation {
						code = s.Phase.String() + s.Code
					}
				}
				return code
			}
			require.Equal(t, "PHASE_APPLIEDWoken", code())
			before := z.instances()
			z.followWake()
			z.runFor(5 * time.Second)
			require.Equal(t, "PHASE_APPLIED", code())
			require.Equal(t, before, z.instances())
			z.assign(0)
			z.runFor(5 * time.Second)
			require.Empty(t, z.instances(), "the control plane knew of the wake")
		})
	})
	t.Run("a generation without replicas from before the wake stops nothing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			z := asleep(t)
			z.gateway.ask()
			z.gateway.wake()
			z.assign(0)
			z.runFor(startTime + 5*time.Second)
			require.True(t, z.gateway.requests[0].done)
			require.Len(t, z.instances(), 1)
		})
	})
	t.Run("after the control plane wakes the app, requests are held until an instance is ready", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			z := asleep(t)
			z.assign(1)
			z.runFor(startTime / 2)
			require.True(t, z.gateway.routes.Held)
			z.kill()
			z.runFor(startTime / 4)
			require.True(t, z.gateway.routes.Held)
			z.runFor(startTime / 2)
			require.False(t, z.gateway.routes.Held)
			require.Zero(t, z.gateway.woke)
		})
	})
	t.Run("the first request wakes the app after a day and a restart of agent and gateway", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			z := asleep(t)
			time.Sleep(24 * time.Hour)
			z.kill()
			kept := z.gateway.routes
			z.gateway = &fakeGateway{z: z, routes: kept} // from its file
			z.gateway.ask()
			z.gateway.wake() // before the gateway has a stream
			z.runFor(startTime + 10*time.Second)
			require.True(t, z.gateway.requests[0].done)
		})
	})
	t.Run("Wake starts nothing for an unknown app, an unverified gateway or an app that is awake", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			z := startZeroRegion(t)
			as := func(verified bool) context.Context {
				return context.WithValue(t.Context(), callerKey{}, Caller{Verified: verified})
			}
			_, err := z.g.Wake(as(true), &gatewayv1.WakeRequest{GatewayId: first, AppId: "app_2"})
			require.ErrorContains(t, err, "does not route")
			_, err = z.g.Wake(as(false), &gatewayv1.WakeRequest{GatewayId: first, AppId: "app_1"})
			require.ErrorContains(t, err, "not authenticated")
			_, err = z.g.Wake(as(true), &gatewayv1.WakeRequest{GatewayId: first, AppId: "app_1"})
			require.NoError(t, err)
			require.Empty(t, z.zero.Starting())
		})
	})
}

func TestZero_RolesOfAPoolGoAndComeBackTogether(t *testing.T) {
	asleep := func(t *testing.T) *zeroRegion {
		z := startZero(t, map[string]int32{"prefill": 2, "decode": 3})
		require.Equal(t, map[string]int32{"prefill": 2, "decode": 3}, z.readyRoles())
		z.pool = map[string]int32{"prefill": 1, "decode": 2}
		z.assign(0)
		z.runFor(10 * time.Second)
		require.True(t, z.gateway.routes.Held)
		require.Empty(t, z.instances())
		return z
	}
	t.Run("every role stops, after gateways hold requests", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			z := startZero(t, map[string]int32{"prefill": 2, "decode": 3})
			z.gateway.ask()
			z.assign(0)
			time.Sleep(time.Second)
			z.gateway.pull()
			z.gateway.report()
			time.Sleep(time.Second)
			require.Equal(t, map[string]int32{"prefill": 2, "decode": 3}, z.readyRoles(), "a request is in flight, and its prefill server stays as well")
			z.runFor(requestTime + 5*time.Second)
			require.True(t, z.gateway.requests[0].done)
			require.Empty(t, z.instances())
		})
	})
	t.Run("a request brings back every role, with the numbers of the newest generation", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			z := asleep(t)
			z.gateway.ask()
			z.runFor(startTime + 5*time.Second)
			require.True(t, z.gateway.requests[0].done)
			require.Equal(t, map[string]int32{"prefill": 1, "decode": 2}, z.readyRoles())
			before := z.instances()
			z.followWake()
			z.runFor(5 * time.Second)
			require.Equal(t, before, z.instances(), "the answer of the control plane restarts no instance")
		})
	})
	t.Run("requests are released once an instance of every role is ready", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			z := asleep(t)
			z.gateway.ask()
			for z.gateway.requests[0].instance == "" {
				if len(z.readyRoles()) < 2 {
					require.True(t, z.gateway.routes.Held)
				}
				z.runFor(500 * time.Millisecond)
			}
			require.False(t, z.gateway.routes.Held)
			require.Positive(t, z.zero.StartTime("app_1"))
			z.runFor(2 * startTime)
			require.Equal(t, map[string]int32{"prefill": 1, "decode": 2}, z.readyRoles())
		})
	})
	t.Run("a generation with other numbers that crosses the wake stops no role", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			z := asleep(t)
			z.gateway.ask()
			z.gateway.wake()
			z.pool = map[string]int32{"prefill": 2, "decode": 1}
			z.assign(0)
			z.runFor(startTime + 5*time.Second)
			require.True(t, z.gateway.requests[0].done)
			z.runFor(startTime)
			require.Equal(t, map[string]int32{"prefill": 2, "decode": 1}, z.readyRoles())
		})
	})
	t.Run("the agent dies while the roles start", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			z := asleep(t)
			z.gateway.ask()
			z.gateway.wake()
			z.runFor(startTime / 4)
			z.kill()
			z.runFor(startTime + 5*time.Second)
			require.True(t, z.gateway.requests[0].done)
			require.Equal(t, map[string]int32{"prefill": 1, "decode": 2}, z.readyRoles())
		})
	})
}
