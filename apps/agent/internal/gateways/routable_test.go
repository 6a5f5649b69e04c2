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

// routableRegion is a region whose gateways the test controls.
type routableRegion struct {
	t   *testing.T
	h   *hub
	now time.Time
	// seen has the observed instances, by deployment.
	seen  []runtime.ObservedDeployment
	begun bool
}

func newRoutableRegion(t *testing.T) *routableRegion {
	c := &routableRegion{t: t, now: time.Unix(1_800_000_000, 0)}
	c.h = newHub(newTable(func(string) *agentv1.DeploymentState { return nil }), 0, Grace)
	c.h.markDirty(c.h.setRoute(&agentv1.Routes{AppId: "app", Hosts: []string{"app.test"}, Targets: []*agentv1.RouteTarget{{DeploymentId: "dep", Weight: 100}}}, 1, 1))
	return c
}

// setReady sets the instances of the deployment. All are ready, and their addresses are made from
// their ids.
func (c *routableRegion) setReady(ids ...string) {
	d := runtime.ObservedDeployment{DeploymentID: "dep"}
	for _, id := range ids {
		d.Instances = append(d.Instances, runtime.Instance{ID: id, Address: id + ":80", Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY})
	}
	c.see(d)
}

func (c *routableRegion) see(all ...runtime.ObservedDeployment) {
	c.seen = all
	c.h.markDirty(c.h.setObserved(all))
	c.h.updateCandidates(all, !c.begun)
	c.begun = true
}

// addGateway connects a gateway that serves the whole table.
func (c *routableRegion) addGateway(id string) *gateway {
	g := c.h.openStream(id, "", nil, false, c.now)
	c.h.beginTable(g, c.now)
	c.report(g)
	return g
}

// report sends a report of the gateway. It says that the gateway serves the whole table, and has
// these findings about instances.
func (c *routableRegion) report(g *gateway, instances ...*gatewayv1.InstanceHealth) {
	c.t.Helper()
	r := &gatewayv1.ReportRequest{GatewayId: g.id, Instances: instances}
	for _, a := range c.h.takeDirty(g) {
		r.Served = append(r.Served, &gatewayv1.Served{AppId: a.AppId, InstancesChange: a.Change})
	}
	require.True(c.t, c.h.applyReport(r, c.now))
}

func unproven(id, reason string) *gatewayv1.InstanceHealth {
	return &gatewayv1.InstanceHealth{InstanceId: id, Unproven: true, Reason: reason}
}

// requireFindings requires these messages, by instance. A message that begins with "ready: " is of
// an instance that counts.
func (c *routableRegion) requireFindings(want map[string]string) {
	c.t.Helper()
	got := map[string]string{}
	for _, d := range c.h.applyFindings(c.seen) {
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
			require.Equal(c.t, windlassv1.InstanceStatus_INSTANCE_STATUS_READY, in.Status, "the observation is not changed")
		}
	}
}

// noFindings means that all ready instances count.
var noFindings = map[string]string{}

func TestRoutable_NewInstanceWaitsForEveryGateway(t *testing.T) {
	c := newRoutableRegion(t)
	c.setReady("old")
	a, b := c.addGateway("gw_a"), c.addGateway("gw_b")
	c.requireFindings(noFindings)

	c.setReady("old", "new")
	c.requireFindings(map[string]string{"new": "waits for gateway gw_a to receive it"})
	c.report(a, unproven("new", ""))
	c.requireFindings(map[string]string{"new": "waits for gateway gw_a to reach it"})
	c.report(a, unproven("new", "ConnectError"))
	c.requireFindings(map[string]string{"new": "gateway gw_a cannot reach it at new:80: ConnectError"})
	c.report(a, unproven("new", "GET /health answered 503"))
	c.requireFindings(map[string]string{"new": "through gateway gw_a it does not pass its check at new:80: GET /health answered 503"})
	c.report(a)
	c.requireFindings(map[string]string{"new": "waits for gateway gw_b to receive it"})
	c.report(b)
	c.requireFindings(noFindings)

	// The instance still counts, although a gateway that connects later has not reached it yet.
	c.h.closeStream(b, c.now)
	late := c.h.openStream("gw_c", "", nil, false, c.now)
	c.h.beginTable(late, c.now)
	c.report(late, unproven("old", ""), unproven("new", "ConnectError"))
	c.requireFindings(noFindings)
}

func TestRoutable_WaitsOnlyForGatewaysThatReport(t *testing.T) {
	c := newRoutableRegion(t)
	c.setReady("old")
	a, b := c.addGateway("gw_a"), c.addGateway("gw_b")
	c.setReady("old", "new")
	c.report(a)
	c.requireFindings(map[string]string{"new": "waits for gateway gw_b to receive it"})
	c.h.closeStream(b, c.now)
	c.requireFindings(noFindings)

	// Instances do not wait for a gateway before its first report, nor for a gateway that is leaving.
	c.setReady("old", "new", "third")
	b = c.h.openStream("gw_b", "", nil, false, c.now)
	c.h.beginTable(b, c.now)
	c.report(a)
	c.requireFindings(noFindings)
	c.report(b)
	c.setReady("old", "new", "third", "fourth")
	c.report(a)
	require.True(t, c.h.applyReport(&gatewayv1.ReportRequest{GatewayId: b.id, Leaving: true}, c.now))
	c.requireFindings(noFindings)
}

func TestRoutable_InstanceThatIsReadyAgainWaitsAgain(t *testing.T) {
	c := newRoutableRegion(t)
	c.setReady("one")
	a := c.addGateway("gw_a")
	c.requireFindings(noFindings)
	c.see(runtime.ObservedDeployment{DeploymentID: "dep", Instances: []runtime.Instance{{ID: "one", Address: "one:80", Status: windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING}}})
	c.report(a)
	c.setReady("one")
	c.requireFindings(map[string]string{"one": "waits for gateway gw_a to receive it"})
	c.report(a)
	c.requireFindings(noFindings)
	// An instance with the same id and another address is another process.
	c.see(runtime.ObservedDeployment{DeploymentID: "dep", Instances: []runtime.Instance{{ID: "one", Address: "else:80", Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY}}})
	c.requireFindings(map[string]string{"one": "waits for gateway gw_a to receive it"})
	c.report(a)
	c.requireFindings(noFindings)
	// An instance that another deployment takes over does not wait again.
	c.h.markDirty(c.h.setRoute(&agentv1.Routes{AppId: "app", Hosts: []string{"app.test"}, Targets: []*agentv1.RouteTarget{{DeploymentId: "next", Weight: 100}}}, 1, 2))
	c.see(runtime.ObservedDeployment{DeploymentID: "next", Instances: c.seen[0].Instances})
	c.requireFindings(noFindings)
	c.report(a)
	c.see()
	require.Empty(t, c.h.ready)
	require.Empty(t, c.h.waiting)
}

func TestRoutable_ReportsInstancesThatEveryGatewayEjected(t *testing.T) {
	c := newRoutableRegion(t)
	c.setReady("one", "two")
	a, b := c.addGateway("gw_a"), c.addGateway("gw_b")
	out := &gatewayv1.InstanceHealth{InstanceId: "one", Ejected: true, Reason: "ServerErrors"}
	c.report(a, out)
	c.requireFindings(noFindings)
	c.report(b, out)
	c.requireFindings(map[string]string{"one": "ready: no gateway sends to it, because requests failed: ServerErrors"})
	list := c.h.applyFindings(c.seen)[0].Instances
	c.report(b, out)
	require.Same(t, &list[0], &c.h.applyFindings(c.seen)[0].Instances[0], "the list is the same while nothing changes")
	c.report(a)
	c.requireFindings(noFindings)
	require.Same(t, &c.seen[0].Instances[0], &c.h.applyFindings(c.seen)[0].Instances[0])

	// An instance that no gateway can connect to is not ready.
	gone := &gatewayv1.InstanceHealth{InstanceId: "two", Ejected: true, Unproven: true, Reason: "ConnectError"}
	c.report(a, gone)
	c.requireFindings(noFindings)
	c.report(b, gone)
	c.requireFindings(map[string]string{"two": "no gateway can connect to it at two:80"})
	c.report(a)
	c.requireFindings(noFindings)
}

func TestRoutable_WithoutGatewaysCountsAsTheRuntimeReports(t *testing.T) {
	c := newRoutableRegion(t)
	c.setReady("one")
	c.setReady("one", "two")
	c.requireFindings(noFindings)
	require.Empty(t, c.h.ready, "no gateway checks instances")
	a := c.addGateway("gw_a")
	c.requireFindings(noFindings)
	c.setReady("one", "two", "three")
	c.requireFindings(map[string]string{"three": "waits for gateway gw_a to receive it"})
	c.report(a)
	c.requireFindings(noFindings)
	// Gateways do not reach instances of a deployment without a route.
	other := runtime.ObservedDeployment{DeploymentID: "other", Instances: []runtime.Instance{{ID: "x", Address: "x:80", Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY}}}
	c.see(append(c.seen, other)...)
	c.requireFindings(noFindings)
}

// A gateway that has just started sends to instances that were ready before, if few instances are ready.
func TestTable_MarksUnreadyInstancesThatWereReady(t *testing.T) {
	const running = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING
	tab := newTable(func(string) *agentv1.DeploymentState { return nil })
	tab.setObserved([]runtime.ObservedDeployment{{DeploymentID: "dep", Instances: []runtime.Instance{
		{ID: "a", Address: "a:80", Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY},
		{ID: "b", Address: "b:80", Status: running, Reason: runtime.ReasonHealthCheckFailed},
		{ID: "c", Address: "c:80", Status: running, Reason: runtime.ReasonNotReady},
		{ID: "d", Address: "d:80", Status: windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING, Reason: runtime.ReasonHealthCheckFailed},
	}}})
	told := map[string]*bool{}
	for _, in := range tab.reachableInstances("dep", "dep", isEntry, never) {
		told[in.InstanceId] = in.WasReady
	}
	require.Equal(t, map[string]*bool{"a": nil, "b": new(true), "c": new(false), "d": nil}, told)
}

// The health check of a deployment does not apply to instances that it took over from another version.
func TestTable_MarksInstancesOfAnotherVersion(t *testing.T) {
	const ready = windlassv1.InstanceStatus_INSTANCE_STATUS_READY
	tab := newTable(func(string) *agentv1.DeploymentState { return &agentv1.DeploymentState{WorkloadKey: "key"} })
	tab.setObserved([]runtime.ObservedDeployment{
		{DeploymentID: "new", TemplateHash: "2", Instances: []runtime.Instance{
			{ID: "a", Address: "a:80", Status: ready, TemplateHash: "2"}, {ID: "b", Address: "b:80", Status: ready, TemplateHash: "1"},
		}},
		{DeploymentID: "old", TemplateHash: "1", Instances: []runtime.Instance{{ID: "c", Address: "c:80", Status: ready, TemplateHash: "1"}}},
	})
	other := map[string]bool{}
	for _, in := range tab.reachableInstances("new", "key", isEntry, never) {
		other[in.InstanceId] = in.OtherVersion
	}
	require.Equal(t, map[string]bool{"a": false, "b": true, "c": true}, other)
}
