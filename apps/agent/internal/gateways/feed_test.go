package gateways

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// The previous agent process routed an app to one deployment, and this process receives a route to
// another. Until the feed's clients serve the new route, they send requests to the first
// deployment.
func TestFeed_ReleasesNoInstanceRoutedBeforeARestart(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	h := newHub(newTable(func(string) *agentv1.DeploymentState { return nil }), 0, time.Minute)
	h.countKept([]string{"feed"}, now)
	f := h.addFeed("feed")
	h.recordFeed(f, nil, true, nil, now)
	for app, deployment := range map[string]string{"app_1": "dep_2", "app_2": "dep_3"} {
		h.markDirty(h.setRoute(&agentv1.Routes{AppId: app, Hosts: []string{app + ".test"}, Targets: []*agentv1.RouteTarget{{DeploymentId: deployment, Weight: 1}}}, 1, 2))
	}
	h.markDirty(h.setObserved([]runtime.ObservedDeployment{
		{DeploymentID: "dep_1", Instances: []runtime.Instance{{ID: "ins_1", Address: "10.0.0.1:1", Status: windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING}}},
		{DeploymentID: "dep_2", Instances: []runtime.Instance{{ID: "ins_2", Address: "10.0.0.2:1", Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY}}},
	}))
	h.beginTable(f, now)
	changes := map[string]int64{}
	for _, a := range h.takeDirty(f) {
		changes[a.AppId] = a.Change
	}
	require.False(t, h.isReleased("ins_1"), "before the clients serve anything")
	waits := changes["app_1"]
	delete(changes, "app_1")
	h.recordFeed(f, changes, true, nil, now)
	require.Empty(t, h.whyNotServed("app_2", 1, 2))
	require.NotEmpty(t, h.whyNotServed("app_1", 1, 2))
	require.False(t, h.isReleased("ins_1"), "the old route still leads to it")
	h.recordFeed(f, map[string]int64{"app_1": waits}, true, nil, now)
	require.Empty(t, h.whyNotServed("app_1", 1, 2))
	require.True(t, h.isReleased("ins_1"))
}
