package api_test

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func regions(names ...string) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) { s.Regions = names }
}

// temporary makes a region that no agent joins.
func (h *harness) temporary(name string) (id string) {
	h.t.Helper()
	made, err := h.regionService(h.owner).CreateRegion(h.t.Context(), &windlassv1.CreateRegionRequest{Name: name})
	require.NoError(h.t, err)
	if h.away == nil {
		h.away = map[string]bool{}
	}
	h.away[made.GetRegion().GetId()] = true
	return made.GetRegion().GetId()
}

func (h *harness) deleteRegion(name string) error {
	_, err := h.regionService(h.owner).DeleteRegion(h.t.Context(), &windlassv1.DeleteRegionRequest{Region: name})
	return err
}

func TestDeleteRegion_IsRefusedWhileAnAppNamesIt(t *testing.T) {
	w := setup(t)
	w.deploy("chat", args("a"))
	w.settle("chat")
	id := w.temporary("tmp-2")
	w.deploy("chat", args("b"), regions("us-east-1", "eu-west-1", "tmp-2"))
	refused(t, w.deleteRegion("tmp-2"), connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_IN_USE, "")
	require.Equal(t, int32(2), w.settle("chat").GetLiveVersion(), "the rollout leaves out the region that never had an agent")
	err := w.deleteRegion("tmp-2")
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_IN_USE, "")
	require.ErrorContains(t, err, "apps still name region tmp-2: chat (v2)")

	w.deploy("chat", args("b"))
	w.settle("chat")
	require.NoError(t, w.deleteRegion("tmp-2"))
	app := w.settle("chat")
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_READY, app.GetStatus(), app.GetMessage())
	w.requireNoIDOf(id)
}

// requireNoIDOf requires that no answer about app chat shows the region's id instead of its name.
func (h *harness) requireNoIDOf(region string) {
	h.t.Helper()
	ctx := h.t.Context()
	x := h.watch(h.viewer, "chat")
	defer x.cancel()
	picture := x.until(func(*windlassv1.WatchAppResponse) bool { return true })
	history, err := h.history(h.viewer).ListHistory(ctx, &windlassv1.ListHistoryRequest{App: "chat"})
	require.NoError(h.t, err)
	deployments, err := h.deployments(h.viewer).ListDeployments(ctx, &windlassv1.ListDeploymentsRequest{App: "chat"})
	require.NoError(h.t, err)
	rollouts, err := h.rollouts(h.viewer).ListRollouts(ctx, &windlassv1.ListRolloutsRequest{App: "chat"})
	require.NoError(h.t, err)
	routes, err := h.routes(h.viewer).ListRoutes(ctx, &windlassv1.ListRoutesRequest{App: "chat", Ended: true})
	require.NoError(h.t, err)
	for _, shown := range []proto.Message{picture, history, deployments, rollouts, routes} {
		text, err := protojson.Marshal(shown)
		require.NoError(h.t, err)
		require.NotContains(h.t, string(text), region)
	}
	require.Contains(h.t, protojson.Format(history), "a deleted region")
}

func TestDeleteRegion_OfThePlatformNamesOnlyWorkspaces(t *testing.T) {
	w := setup(t)
	made, err := w.regionService(w.operator).CreateRegion(t.Context(), &windlassv1.CreateRegionRequest{Name: "shared-1", Platform: true})
	require.NoError(t, err)
	id := made.GetRegion().GetId()
	_, err = w.regionService(w.operator).GrantRegion(t.Context(), &windlassv1.GrantRegionRequest{Region: id, Workspace: w.workspace})
	require.NoError(t, err)
	w.deploy("chat", args("a"), regions("shared-1"))
	_, err = w.regionService(w.operator).DeleteRegion(t.Context(), &windlassv1.DeleteRegionRequest{Region: id})
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_IN_USE, "")
	require.ErrorContains(t, err, "apps still name region shared-1: 1 of workspace acme")
}

func TestGoneRegion_IsLeftOutOfAVersionMadeFromAnOlderOne(t *testing.T) {
	w := setup(t)
	id := w.temporary("tmp-2")
	w.deploy("chat", args("a"), regions("us-east-1", "eu-west-1", "tmp-2"), func(s *windlassv1.DeploymentSpec) {
		s.Overrides = []*windlassv1.Override{{Regions: []string{"tmp-2"}, ExtraArgs: []string{"--small"}}}
	})
	w.find()
	w.settle("chat")
	w.deploy("chat", args("b"))
	w.settle("chat")
	require.NoError(t, w.deleteRegion("tmp-2"))
	w.away = map[string]bool{id: true}
	res := w.rollback(&windlassv1.RollbackRequest{})
	require.Equal(t, []string{"region tmp-2 is left out: the workspace may no longer use it"}, res.GetWarnings())
	spec := w.version("chat", res.GetVersion()).GetSpec()
	require.Equal(t, []string{"us-east-1", "eu-west-1"}, spec.GetRegions())
	require.Empty(t, spec.GetOverrides())
	require.Equal(t, []string{"a"}, spec.GetArgs())
	app := w.settle("chat")
	require.Equal(t, []any{int32(3), windlassv1.AppStatus_APP_STATUS_READY}, []any{app.GetLiveVersion(), app.GetStatus()})
}

func TestGoneRegion_IsNotLeftOutWhileItServes(t *testing.T) {
	w := setup(t)
	made, err := w.regionService(w.operator).CreateRegion(t.Context(), &windlassv1.CreateRegionRequest{Name: "shared-1", Platform: true})
	require.NoError(t, err)
	id := made.GetRegion().GetId()
	grant := &windlassv1.GrantRegionRequest{Region: id, Workspace: w.workspace}
	_, err = w.regionService(w.operator).GrantRegion(t.Context(), grant)
	require.NoError(t, err)
	w.deploy("chat", args("a"), regions("us-east-1", "shared-1"))
	w.settle("chat")
	_, err = w.regionService(w.operator).RevokeGrant(t.Context(), &windlassv1.RevokeGrantRequest{Region: id, Workspace: w.workspace})
	require.NoError(t, err)
	_, err = w.apps(w.deployer).SetEnvironment(t.Context(), &windlassv1.SetEnvironmentRequest{App: "chat", Set: map[string]string{"A": "1"}})
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_IN_USE, "")
	require.ErrorContains(t, err, "app chat serves in region shared-1, which the workspace may no longer use")

	w.deploy("chat", args("a"), regions("us-east-1"))
	w.settle("chat")
	_, err = w.apps(w.deployer).SetEnvironment(t.Context(), &windlassv1.SetEnvironmentRequest{App: "chat", Set: map[string]string{"A": "1"}})
	require.NoError(t, err)
}

func TestGoneRegion_OfOneAppDoesNotStopASecretForOtherApps(t *testing.T) {
	w := setup(t)
	w.setSecret("token", "one")
	made, err := w.regionService(w.operator).CreateRegion(t.Context(), &windlassv1.CreateRegionRequest{Name: "shared-1", Platform: true})
	require.NoError(t, err)
	id := made.GetRegion().GetId()
	_, err = w.regionService(w.operator).GrantRegion(t.Context(), &windlassv1.GrantRegionRequest{Region: id, Workspace: w.workspace})
	require.NoError(t, err)
	w.deploy("alone", withSecret("token"), regions("shared-1"))
	with := w.deploy("with", withSecret("token"))
	w.settle("alone")
	w.settle("with")
	_, err = w.regionService(w.operator).RevokeGrant(t.Context(), &windlassv1.RevokeGrantRequest{Region: id, Workspace: w.workspace})
	require.NoError(t, err)

	res := w.setSecret("token", "two")
	require.Equal(t, []string{with.GetAppId()}, res.GetAppIds())
	require.Equal(t, []string{"app alone is left out, and keeps its current value: the workspace may no longer use any of the app's regions"}, res.GetWarnings())
	require.Equal(t, int32(1), w.app("alone").GetLatestVersion())
	require.Contains(t, w.said("alone"), "SecretNotTaken")
	require.Equal(t, int32(2), w.app("with").GetLatestVersion())
}
