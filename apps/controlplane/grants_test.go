package controlplane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// operator calls this process with the platform's key.
func (h *harness) operator(p *plane) windlassv1connect.RegionServiceClient {
	client := rpc.NewHTTPClient(rpc.HTTPClientConfig{})
	h.t.Cleanup(client.CloseIdleConnections)
	return windlassv1connect.NewRegionServiceClient(client, p.url, rpc.ClientOptions(rpc.ClientConfig{Token: func() string { return h.boot.OperatorKey }})...)
}

// items waits until the stream has brought the app's routes and an item of the deployment with a generation above
// newerThan.
func (a *agent) items(deployment, app string, newerThan int64) (of *agentv1.Item, routes *agentv1.Item) {
	a.t.Helper()
	a.until(func(f *agentv1.WatchResponse) bool {
		for _, it := range f.GetDelta().GetItems() {
			switch {
			case it.Key == deployment && it.Generation > newerThan:
				of = it
			case it.Key == app:
				routes = it
			}
		}
		return of != nil && routes != nil
	})
	return of, routes
}

// applied reports that the items are applied. code and ready are the code and the ready instances of the deployment's
// item.
func (a *agent) applied(code string, ready int32, items ...*agentv1.Item) {
	a.t.Helper()
	a.sequence++
	req := &agentv1.ReportRequest{SessionId: a.session, Epoch: a.hello.Epoch, Fence: a.hello.Fence, Sequence: a.sequence}
	for _, it := range items {
		state := &agentv1.AppliedState{Kind: it.Kind, Key: it.Key, Epoch: it.Epoch, Generation: it.Generation, Phase: agentv1.AppliedState_PHASE_APPLIED}
		if it.Kind == agentv1.ItemKind_ITEM_KIND_DEPLOYMENT {
			state.Code = code
			req.Rollups = append(req.Rollups, &agentv1.DeploymentRollup{DeploymentId: it.Key, Generation: it.Generation, Ready: ready, ReadyReplicas: ready})
		}
		req.Applied = append(req.Applied, state)
	}
	_, err := a.calls.Report(a.t.Context(), req)
	require.NoError(a.t, err)
}

// A request can wake an app at zero only while its workspace may use the region. After the grant is revoked, the
// agent stops instances that a request woke meanwhile.
func TestRevokedGrant_AgentCannotWakeTheApp(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "us")
	p := w.start(planeConfig{beat: never})
	operator, user := w.operator(p), w.user(p)
	ctx := t.Context()
	_, err := operator.CreateRegion(ctx, &windlassv1.CreateRegionRequest{Name: "shared", Platform: true})
	require.NoError(t, err)
	grant := func() {
		_, err := operator.GrantRegion(ctx, &windlassv1.GrantRegionRequest{Region: "shared", Workspace: "default"})
		require.NoError(t, err)
	}
	grant()
	token, err := operator.CreateJoinToken(ctx, &windlassv1.CreateJoinTokenRequest{Region: "shared"})
	require.NoError(t, err)
	w.boot.JoinTokens["shared"] = token.Token
	a := w.join(p, "shared")
	a.watch(p)

	deployed, err := user.apps.Deploy(ctx, &windlassv1.DeployRequest{App: "chat", Spec: &windlassv1.DeploymentSpec{
		Command: []string{"serve"}, Regions: []string{"shared"}, Replicas: new(int32(1)),
		Routing: &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{}},
	}})
	require.NoError(t, err)
	d, routes := a.items(deployed.DeploymentId, deployed.AppId, 0)
	a.applied("", 1, d, routes)
	require.Eventually(t, func() bool {
		got, err := user.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: "chat"})
		return err == nil && got.GetApp().GetStatus() == windlassv1.AppStatus_APP_STATUS_READY
	}, patience, 10*time.Millisecond)
	_, err = user.apps.Scale(ctx, &windlassv1.ScaleRequest{App: "chat", Replicas: 0})
	require.NoError(t, err)
	d = a.assigned(deployed.DeploymentId)
	require.Equal(t, []int32{0, 1}, []int32{d.GetDeployment().GetDeployment().GetReplicas(), d.GetDeployment().GetDeployment().GetWake()})
	a.applied("", 0, d)

	_, err = operator.RevokeGrant(ctx, &windlassv1.RevokeGrantRequest{Region: "shared", Workspace: "default"})
	require.NoError(t, err)
	a.applied("Woken", 1, d) // a request woke the app before the agent received the change
	d, routes = a.items(deployed.DeploymentId, deployed.AppId, d.Generation)
	require.Equal(t, []int32{0, 0}, []int32{d.GetDeployment().GetDeployment().GetReplicas(), d.GetDeployment().GetDeployment().GetWake()})
	require.Empty(t, routes.GetRoutes().GetHosts())
	require.Empty(t, routes.GetRoutes().GetTargets())
	a.applied("", 0, d, routes)

	grant()
	d, routes = a.items(deployed.DeploymentId, deployed.AppId, d.Generation)
	require.Equal(t, []int32{0, 1}, []int32{d.GetDeployment().GetDeployment().GetReplicas(), d.GetDeployment().GetDeployment().GetWake()})
	require.NotEmpty(t, routes.GetRoutes().GetHosts())
	require.NotEmpty(t, routes.GetRoutes().GetTargets())
}
