package gateways

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// pairs returns a deployment with two groups. Each group has a router, which is the entry role, and
// a decode instance.
func pairs(change ...func(all []runtime.Instance)) runtime.ObservedDeployment {
	const ready = windlassv1.InstanceStatus_INSTANCE_STATUS_READY
	d := runtime.ObservedDeployment{
		DeploymentID: "dep", TemplateHash: "1",
		Roles: []runtime.RoleCount{{Name: "decode", Instances: 1, TemplateHash: "1"}, {Name: "router", Instances: 1, Entry: true, TemplateHash: "1"}},
		Instances: []runtime.Instance{
			{ID: "d0", Role: "decode", Group: 0, Address: "d0:80", Status: ready, TemplateHash: "1"},
			{ID: "r0", Role: "router", Group: 0, Address: "r0:80", Status: ready, TemplateHash: "1"},
			{ID: "d1", Role: "decode", Group: 1, Address: "d1:80", Status: ready, TemplateHash: "1"},
			{ID: "r1", Role: "router", Group: 1, Address: "r1:80", Status: ready, TemplateHash: "1"},
		},
	}
	for _, c := range change {
		c(d.Instances)
	}
	return d
}

func isEntry(d *runtime.ObservedDeployment, in *runtime.Instance) bool { return d.IsEntry(in.Role) }

func TestTable_RoutesToTheEntryOfCompleteGroups(t *testing.T) {
	const running, draining = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING, windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
	for name, c := range map[string]struct {
		change func(all []runtime.Instance)
		want   map[string]gatewayv1.Instance_State
	}{
		"all are ready": {func([]runtime.Instance) {}, map[string]gatewayv1.Instance_State{
			"r0": gatewayv1.Instance_STATE_READY, "r1": gatewayv1.Instance_STATE_READY,
		}},
		"an instance of a group is not ready": {func(all []runtime.Instance) { all[0].Status = running }, map[string]gatewayv1.Instance_State{
			"r0": gatewayv1.Instance_STATE_DRAINING, "r1": gatewayv1.Instance_STATE_READY,
		}},
		"an instance of a group leaves": {func(all []runtime.Instance) { all[2].Status = draining }, map[string]gatewayv1.Instance_State{
			"r0": gatewayv1.Instance_STATE_READY, "r1": gatewayv1.Instance_STATE_DRAINING,
		}},
		"an entry lost its health": {func(all []runtime.Instance) {
			all[1].Status, all[1].Reason = running, runtime.ReasonHealthCheckFailed
		}, map[string]gatewayv1.Instance_State{
			"r0": gatewayv1.Instance_STATE_DRAINING, "r1": gatewayv1.Instance_STATE_READY,
		}},
		"an entry starts": {func(all []runtime.Instance) { all[1].Status, all[1].Reason = running, runtime.ReasonNotReady }, map[string]gatewayv1.Instance_State{
			"r0": gatewayv1.Instance_STATE_NOT_READY, "r1": gatewayv1.Instance_STATE_READY,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			tab := newTable(func(string) *agentv1.DeploymentState { return nil })
			tab.setObserved([]runtime.ObservedDeployment{pairs(c.change)})
			got := map[string]gatewayv1.Instance_State{}
			for _, in := range tab.reachableInstances("dep", "dep", isEntry, never) {
				got[in.InstanceId] = in.State
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestRoutable_EntryOfACompleteGroupIsReached(t *testing.T) {
	c := newRoutableRegion(t)
	c.setReady() // instances that ran before the agent count without a report
	g := c.addGateway("g1")
	broken := func(all []runtime.Instance) {
		all[0].Status, all[0].Reason = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING, runtime.ReasonNotReady
	}
	c.see(pairs(broken))
	require.Empty(t, c.h.routable.waiting["d1"], "no gateway needs to reach d1")
	require.NotNil(t, c.h.routable.waiting["r1"])
	require.Nil(t, c.h.routable.ready["r0"], "the group of r0 is not complete")
	c.report(g)
	c.see(pairs())
	require.NotNil(t, c.h.routable.waiting["r0"], "the group of r0 is complete, so gateways must reach r0")
	c.report(g)
	c.requireFindings(noFindings)
}
