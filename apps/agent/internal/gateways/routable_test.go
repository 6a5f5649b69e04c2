package gateways

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// counted is a region whose gateways do as the test says.
type counted struct {
	t   *testing.T
	h   *hub
	now time.Time
	// seen is what runs, by deployment.
	seen  []runtime.ObservedDeployment
	begun bool
}

func newCounted(t *testing.T) *counted {
	c := &counted{t: t, now: time.Unix(1_800_000_000, 0)}
	c.h = newHub(newTable(func(string) *agentv1.DeploymentState { return nil }), 0, Grace)
	c.h.touched(c.h.route(&agentv1.Routes{AppId: "app", Hosts: []string{"app.test"}, Targets: []*agentv1.RouteTarget{{DeploymentId: "dep", Weight: 100}}}, 1, 1))
	return c
}

// runs has instances of the deployment be ready, at addresses of their names.
func (c *counted) runs(ids ...string) {
	d := runtime.ObservedDeployment{DeploymentID: "dep"}
	for _, id := range ids {
		d.Instances = append(d.Instances, runtime.Instance{ID: id, Address: id + ":80", Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY})
	}
	c.see(d)
}

func (c *counted) see(all ...runtime.ObservedDeployment) {
	c.seen = all
	c.h.touched(c.h.see(all))
	c.h.meet(all, !c.begun)
	c.begun = true
}

// joins has a gateway come that serves all that there is.
func (c *counted) joins(id string) *gateway {
	g := c.h.open(id, "", nil, false, c.now)
	c.h.begin(g, c.now)
	c.reports(g)
	return g
}

// reports has the gateway serve what there is, and tell of these instances.
func (c *counted) reports(g *gateway, instances ...*gatewayv1.InstanceHealth) {
	c.t.Helper()
	r := &gatewayv1.ReportRequest{GatewayId: g.id, Instances: instances}
	for _, a := range c.h.take(g) {
		r.Served = append(r.Served, &gatewayv1.Served{AppId: a.AppId, InstancesChange: a.Change})
	}
	require.True(c.t, c.h.heed(r, c.now))
}

func unproven(id, reason string) *gatewayv1.InstanceHealth {
	return &gatewayv1.InstanceHealth{InstanceId: id, Unproven: true, Reason: reason}
}

// holds asserts why instances do not count.
func (c *counted) holds(want map[string]string) {
	c.t.Helper()
	got := map[string]string{}
	for _, d := range c.h.mask(c.seen) {
		for _, in := range d.Instances {
			if in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
				if in.Reason != "" {
					require.Equal(c.t, runtime.ReasonEjected, in.Reason)
					got[in.ID] = "ready: " + in.Message
				}
				continue
			}
			require.Equal(c.t, windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING, in.Status)
			require.Equal(c.t, runtime.ReasonNotRoutable, in.Reason)
			got[in.ID] = in.Message
		}
	}
	require.Equal(c.t, want, got)
	for _, d := range c.seen {
		for _, in := range d.Instances {
			require.Equal(c.t, windlassv1.InstanceStatus_INSTANCE_STATUS_READY, in.Status, "what was seen is not changed")
		}
	}
}

// none: all instances that are ready count.
var none = map[string]string{}

func TestRoutable_NewInstanceIsReachedByEveryGateway(t *testing.T) {
	c := newCounted(t)
	c.runs("old")
	a, b := c.joins("gw_a"), c.joins("gw_b")
	c.holds(none)

	c.runs("old", "new")
	c.holds(map[string]string{"new": "waits for gateway gw_a to know of it"})
	c.reports(a, unproven("new", ""))
	c.holds(map[string]string{"new": "waits for gateway gw_a to reach it"})
	c.reports(a, unproven("new", "ConnectError"))
	c.holds(map[string]string{"new": "gateway gw_a cannot reach it at new:80: ConnectError"})
	c.reports(a, unproven("new", "GET /health answered 503"))
	c.holds(map[string]string{"new": "through gateway gw_a it does not pass its check at new:80: GET /health answered 503"})
	c.reports(a)
	c.holds(map[string]string{"new": "waits for gateway gw_b to know of it"})
	c.reports(b)
	c.holds(none)

	// It counts on, whatever a gateway that comes later has not reached yet.
	c.h.close(b, c.now)
	late := c.h.open("gw_c", "", nil, false, c.now)
	c.h.begin(late, c.now)
	c.reports(late, unproven("old", ""), unproven("new", "ConnectError"))
	c.holds(none)
}

func TestRoutable_AsksOnlyGatewaysThatReport(t *testing.T) {
	c := newCounted(t)
	c.runs("old")
	a, b := c.joins("gw_a"), c.joins("gw_b")
	c.runs("old", "new")
	c.reports(a)
	c.holds(map[string]string{"new": "waits for gateway gw_b to know of it"})
	c.h.close(b, c.now)
	c.holds(none)

	// One that has come and said nothing yet is not waited for, and one that leaves is not.
	c.runs("old", "new", "third")
	b = c.h.open("gw_b", "", nil, false, c.now)
	c.h.begin(b, c.now)
	c.reports(a)
	c.holds(none)
	c.reports(b)
	c.runs("old", "new", "third", "fourth")
	c.reports(a)
	require.True(t, c.h.heed(&gatewayv1.ReportRequest{GatewayId: b.id, Leaving: true}, c.now))
	c.holds(none)
}

func TestRoutable_ReadyAgainIsReachedAgain(t *testing.T) {
	c := newCounted(t)
	c.runs("one")
	a := c.joins("gw_a")
	c.holds(none)
	c.see(runtime.ObservedDeployment{DeploymentID: "dep", Instances: []runtime.Instance{{ID: "one", Address: "one:80", Status: windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING}}})
	c.reports(a)
	c.runs("one")
	c.holds(map[string]string{"one": "waits for gateway gw_a to know of it"})
	c.reports(a)
	c.holds(none)
	// Another address under the same name is another process.
	c.see(runtime.ObservedDeployment{DeploymentID: "dep", Instances: []runtime.Instance{{ID: "one", Address: "else:80", Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY}}})
	c.holds(map[string]string{"one": "waits for gateway gw_a to know of it"})
	c.reports(a)
	c.holds(none)
	// One that goes on as another deployment's is the same.
	c.h.touched(c.h.route(&agentv1.Routes{AppId: "app", Hosts: []string{"app.test"}, Targets: []*agentv1.RouteTarget{{DeploymentId: "next", Weight: 100}}}, 1, 2))
	c.see(runtime.ObservedDeployment{DeploymentID: "next", Instances: c.seen[0].Instances})
	c.holds(none)
	c.reports(a)
	c.see()
	require.Empty(t, c.h.ready)
	require.Empty(t, c.h.waiting)
}

func TestRoutable_ReportsWhatEveryGatewayEjected(t *testing.T) {
	c := newCounted(t)
	c.runs("one", "two")
	a, b := c.joins("gw_a"), c.joins("gw_b")
	out := &gatewayv1.InstanceHealth{InstanceId: "one", Ejected: true, Reason: "ServerErrors"}
	c.reports(a, out)
	c.holds(none)
	c.reports(b, out)
	c.holds(map[string]string{"one": "ready: no gateway sends to it for what requests found: ServerErrors"})
	list := c.h.mask(c.seen)[0].Instances
	c.reports(b, out)
	require.Same(t, &list[0], &c.h.mask(c.seen)[0].Instances[0], "the same list while nothing changed")
	c.reports(a)
	c.holds(none)
	require.Same(t, &c.seen[0].Instances[0], &c.h.mask(c.seen)[0].Instances[0])

	// An instance that no gateway can connect to is not ready.
	gone := &gatewayv1.InstanceHealth{InstanceId: "two", Ejected: true, Unproven: true, Reason: "ConnectError"}
	c.reports(a, gone)
	c.holds(none)
	c.reports(b, gone)
	c.holds(map[string]string{"two": "no gateway can connect to it at two:80"})
	c.reports(a)
	c.holds(none)
}

func TestRoutable_WithoutGatewaysFollowsTheAgent(t *testing.T) {
	c := newCounted(t)
	c.runs("one")
	c.runs("one", "two")
	c.holds(none)
	require.Empty(t, c.h.ready, "no gateway looks at instances")
	a := c.joins("gw_a")
	c.holds(none)
	c.runs("one", "two", "three")
	c.holds(map[string]string{"three": "waits for gateway gw_a to know of it"})
	c.reports(a)
	c.holds(none)
	// A deployment without a route has no way through a gateway.
	other := runtime.ObservedDeployment{DeploymentID: "other", Instances: []runtime.Instance{{ID: "x", Address: "x:80", Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY}}}
	c.see(append(c.seen, other)...)
	c.holds(none)
}

// A gateway that starts knows no better, and sends to what was ready where few are well.
func TestWatch_SaysWhetherAnUnreadyInstanceWasReady(t *testing.T) {
	const running = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING
	tab := newTable(func(string) *agentv1.DeploymentState { return nil })
	tab.see([]runtime.ObservedDeployment{{DeploymentID: "dep", Instances: []runtime.Instance{
		{ID: "a", Address: "a:80", Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY},
		{ID: "b", Address: "b:80", Status: running, Reason: runtime.ReasonHealthCheckFailed},
		{ID: "c", Address: "c:80", Status: running, Reason: runtime.ReasonNotReady},
		{ID: "d", Address: "d:80", Status: windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING, Reason: runtime.ReasonHealthCheckFailed},
	}}})
	told := map[string]*bool{}
	for _, in := range tab.instances("dep", "dep") {
		told[in.InstanceId] = in.WasReady
	}
	require.Equal(t, map[string]*bool{"a": nil, "b": new(true), "c": new(false), "d": nil}, told)
}

// What a deployment took over is not what its health check is of.
func TestWatch_NamesInstancesOfAnotherVersion(t *testing.T) {
	const ready = windlassv1.InstanceStatus_INSTANCE_STATUS_READY
	tab := newTable(func(string) *agentv1.DeploymentState { return &agentv1.DeploymentState{WorkloadKey: "key"} })
	tab.see([]runtime.ObservedDeployment{
		{DeploymentID: "new", TemplateHash: "2", Instances: []runtime.Instance{
			{ID: "a", Address: "a:80", Status: ready, TemplateHash: "2"}, {ID: "b", Address: "b:80", Status: ready, TemplateHash: "1"},
		}},
		{DeploymentID: "old", TemplateHash: "1", Instances: []runtime.Instance{{ID: "c", Address: "c:80", Status: ready, TemplateHash: "1"}}},
	})
	other := map[string]bool{}
	for _, in := range tab.instances("new", "key") {
		other[in.InstanceId] = in.OtherVersion
	}
	require.Equal(t, map[string]bool{"a": false, "b": true, "c": true}, other)
}
