package api_test

import (
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const regionClosed = windlassv1.ErrorReason_ERROR_REASON_REGION_CLOSED

// shared makes a region of the platform, which acme may use.
func (h *harness) shared(name string) {
	h.t.Helper()
	made, err := h.regionService(h.operator).CreateRegion(h.t.Context(), &windlassv1.CreateRegionRequest{Name: name, Platform: true})
	require.NoError(h.t, err)
	h.regions[name] = made.GetRegion().GetId()
	h.grant(name)
}

func (h *harness) grant(region string) {
	h.t.Helper()
	_, err := h.regionService(h.operator).GrantRegion(h.t.Context(), &windlassv1.GrantRegionRequest{Region: region, Workspace: "acme"})
	require.NoError(h.t, err)
}

func (h *harness) ungrant(region string) {
	h.t.Helper()
	_, err := h.regionService(h.operator).RevokeGrant(h.t.Context(), &windlassv1.RevokeGrantRequest{Region: region, Workspace: "acme"})
	require.NoError(h.t, err)
}

func (h *harness) scale(region string, n int32) error {
	_, err := h.apps(h.deployer).Scale(h.t.Context(), &windlassv1.ScaleRequest{App: "chat", Region: region, Replicas: n})
	return err
}

func requireClosed(t *testing.T, err error) {
	t.Helper()
	refused(t, err, connect.CodePermissionDenied, regionClosed, "region")
	require.ErrorContains(t, err, "the workspace may no longer use region shared-1: running instances stay, but the app cannot grow there")
}

func TestRevokedGrant_LetsNothingGrow(t *testing.T) {
	w := setup(t)
	w.shared("shared-1")
	both := regions("us-east-1", "shared-1")
	w.deploy("chat", args("a"), both)
	w.settle("chat")
	w.deploy("chat", args("b"), both)
	w.settle("chat")
	_, err := w.pin(1, 10, pinnedWith(1, "shared-1"))
	require.NoError(t, err)
	w.settle("chat")
	w.ungrant("shared-1")

	requireClosed(t, w.scale("shared-1", 3))
	requireClosed(t, w.scale("", 3))
	_, err = w.pin(1, 10, pinnedWith(2))
	requireClosed(t, err)
	_, err = w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{App: "chat", Spec: echo(args("b"), both, replicas(4))})
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_REGION, "spec.regions[1]")
	require.Equal(t, []int32{2, 100}, w.rowsOf("chat", 2)["shared-1"][:2])
	require.Equal(t, []int32{2, 100}, w.rowsOf("chat", 2)["us-east-1"][:2])

	require.NoError(t, w.scale("us-east-1", 3))
	require.NoError(t, w.scale("shared-1", 1))
	requireClosed(t, w.scale("shared-1", 2))
	_, err = w.pin(1, 20, pinnedWith(1))
	require.NoError(t, err, "a new weight starts no instance")
	w.settle("chat")
	w.grant("shared-1")
	require.NoError(t, w.scale("shared-1", 2))
}

func TestRevokedGrant_HoldsARolloutThatHadBegun(t *testing.T) {
	w := setup(t)
	w.shared("shared-1")
	both := regions("us-east-1", "shared-1")
	w.deploy("chat", args("a"), both)
	w.settle("chat")
	policy := &windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{Name: "first", Regions: []string{"us-east-1"}}, {Name: "second", Regions: []string{"shared-1"}}}}
	begun, err := w.deployBy("chat", policy, args("b"), both)
	require.NoError(t, err)
	require.NoError(t, w.stepper.Step(t.Context(), begun.GetAppId()))
	_, err = w.rollouts(w.deployer).PauseRollout(t.Context(), &windlassv1.PauseRolloutRequest{App: "chat"})
	require.NoError(t, err)
	w.ungrant("shared-1")
	requireClosed(t, w.scale("shared-1", 3))
	resumed, err := w.rollouts(w.deployer).ResumeRollout(t.Context(), &windlassv1.ResumeRolloutRequest{App: "chat"})
	require.NoError(t, err)
	require.Contains(t, resumed.GetEffect(), "nothing starts in region shared-1, which the workspace may no longer use")
	app := w.settle("chat")
	require.Equal(t, int32(1), app.GetLiveVersion())
	require.Contains(t, app.GetMessage(), "shared-1 is closed to the workspace: ask an operator for the grant, or deploy without the region")
	require.Empty(t, w.rowsOf("chat", 2)["shared-1"])
	require.NotEmpty(t, w.rowsOf("chat", 2)["us-east-1"])

	woken := w.woken()
	w.grant("shared-1")
	require.Equal(t, []string{app.GetId()}, woken())
	require.Equal(t, int32(2), w.settle("chat").GetLiveVersion())
}

func TestRevokedGrant_IsConsideredByAPlan(t *testing.T) {
	w := setup(t)
	w.shared("shared-1")
	both := regions("us-east-1", "shared-1")
	for _, name := range []string{"a", "b"} {
		w.deploy("chat", args(name), both)
		w.settle("chat")
	}
	_, err := w.pin(1, 10, pinnedWith(1, "shared-1"))
	require.NoError(t, err)
	w.settle("chat")
	_, err = w.pin(1, 10, pinnedWith(2, "shared-1"))
	require.NoError(t, err)
	grows := func() bool {
		p := w.planned("chat", nil, args("c"), regions("us-east-1"))
		return slices.ContainsFunc(movesOf(p)["shared-1"], func(move string) bool { return strings.Contains(move, "v1 2 ") })
	}
	require.True(t, grows())
	w.ungrant("shared-1")
	require.False(t, grows())
}

func TestEvictWorkspace_StopsAllThatItRunsInTheRegion(t *testing.T) {
	w := setup(t)
	w.shared("shared-1")
	both := regions("us-east-1", "shared-1")
	for _, name := range []string{"a", "b"} {
		w.deploy("chat", args(name), both)
		w.settle("chat")
	}
	_, err := w.pin(1, 10, pinnedWith(1, "shared-1"))
	require.NoError(t, err)
	w.deploy("search", regions("shared-1"))
	w.settle("chat")
	w.settle("search")
	before := w.usage()

	evict := &windlassv1.EvictWorkspaceRequest{Region: "shared-1", Workspace: "acme", Why: "unpaid"}
	_, err = w.regionService(w.owner).EvictWorkspace(t.Context(), evict)
	refused(t, err, connect.CodePermissionDenied, isDenied, "")
	res, err := w.regionService(w.operator).EvictWorkspace(t.Context(), evict)
	require.NoError(t, err)
	require.Equal(t, []any{int32(2), int32(5), false}, []any{res.GetApps(), res.GetReplicas(), res.GetMore()})
	w.settle("chat")
	w.settle("search")
	_, err = w.regionService(w.operator).EvictWorkspace(t.Context(), evict)
	refused(t, err, failed, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")

	require.Empty(t, w.rowsOf("chat", 1)["shared-1"], "a pinned version ran there")
	require.Zero(t, w.rowsOf("chat", 2)["shared-1"][0])
	require.Zero(t, w.rowsOf("search", 1)["shared-1"][0])
	require.Equal(t, []int32{2, 100}, w.rowsOf("chat", 2)["us-east-1"][:2])
	require.Contains(t, w.said("search"), "Evicted")
	require.Equal(t, before.Instances-5, w.usage().Instances)
	requireClosed(t, w.scale("shared-1", 1))
	for _, key := range []string{w.operator, w.owner} {
		got, err := w.history(key).ListAudit(t.Context(), &windlassv1.ListAuditRequest{})
		require.NoError(t, err)
		var kinds []string
		for _, e := range got.GetEntries() {
			if e.GetResourceId() == w.regions["shared-1"] {
				kinds = append(kinds, e.GetActor()+" "+e.GetResourceKind())
			}
		}
		require.Subset(t, kinds, []string{"operator region_eviction", "operator region_grant"})
	}
}

// cold configures requests to wait while the app is at zero, including requests in regions without the app.
func cold(s *windlassv1.DeploymentSpec) {
	s.Routing = &windlassv1.RoutingPolicy{
		CrossRegion: windlassv1.RoutingPolicy_CROSS_REGION_FAILOVER, ColdStart: &windlassv1.ColdStart{Elsewhere: true},
	}
}

// wakes reports whether the desired state of the region allows a request to wake the version. hosts are the hosts of
// its gateways. Other regions must have the same hosts.
func (h *harness) wakes(app string, version int32, region string) (wakes bool, hosts []string) {
	h.t.Helper()
	it := h.desired(app, version, region)
	require.NoError(h.t, h.store.View(h.t.Context(), func(tx store.Tx) error {
		routes, err := tx.DesiredItems(model.KindRoutes, map[string][]string{it.RegionID: {it.Deployment.AppID}})
		if err != nil {
			return err
		}
		require.Len(h.t, routes, 1)
		hosts = routes[0].Route.Hosts
		across, err := tx.CrossRegion()
		require.Equal(h.t, len(hosts) > 0, slices.ContainsFunc(across, func(r model.AppRegion) bool {
			return r.AppID == it.Deployment.AppID && r.RegionID == it.RegionID
		}), "routes of other regions")
		return err
	}))
	return it.Topology.WakeTo(it.Deployment.Spec) > 0, hosts
}

func TestRevokedGrant_NoRequestWakesAnAppAtZero(t *testing.T) {
	for name, revoke := range map[string]func(*harness){
		"revoked": func(w *harness) { w.ungrant("shared-1") },
		"evicted": func(w *harness) {
			res, err := w.regionService(w.operator).EvictWorkspace(w.t.Context(), &windlassv1.EvictWorkspaceRequest{Region: "shared-1", Workspace: "acme"})
			require.NoError(w.t, err)
			require.Zero(w.t, res.GetApps(), "the app does not run there")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			w.shared("shared-1")
			w.deploy("chat", cold, regions("us-east-1", "shared-1"))
			w.settle("chat")
			require.NoError(t, w.scale("", 0))
			app := w.settle("chat")
			for _, region := range []string{"us-east-1", "shared-1"} {
				wakes, hosts := w.wakes("chat", 1, region)
				require.True(t, wakes, region)
				require.NotEmpty(t, hosts, region)
			}

			woken := w.woken()
			revoke(w)
			require.Equal(t, []string{app.GetId()}, woken())
			require.Equal(t, windlassv1.AppStatus_APP_STATUS_READY, w.settle("chat").GetStatus())
			wakes, hosts := w.wakes("chat", 1, "shared-1")
			require.False(t, wakes)
			require.Empty(t, hosts)
			wakes, hosts = w.wakes("chat", 1, "us-east-1")
			require.True(t, wakes, "the region is granted")
			require.NotEmpty(t, hosts)
			require.Contains(t, w.said("chat"), "RegionClosed")
			res, err := w.deployments(w.viewer).GetDeployment(t.Context(), &windlassv1.GetDeploymentRequest{App: "chat", Version: 1})
			require.NoError(t, err)
			for _, r := range res.GetDeployment().GetRegions() {
				require.Equal(t, r.GetRegion() == "shared-1", r.GetReason() == "RegionClosed", r.GetRegion())
			}

			w.grant("shared-1")
			w.settle("chat")
			wakes, hosts = w.wakes("chat", 1, "shared-1")
			require.True(t, wakes)
			require.NotEmpty(t, hosts)
			require.Contains(t, w.said("chat"), "RegionOpened")
		})
	}
}

// An app that is scaled to zero after the grant was revoked is not woken either.
func TestEvictWorkspace_NoRequestWakesTheApp(t *testing.T) {
	w := setup(t)
	w.shared("shared-1")
	w.deploy("chat", cold, regions("us-east-1", "shared-1"))
	w.settle("chat")
	_, err := w.regionService(w.operator).EvictWorkspace(t.Context(), &windlassv1.EvictWorkspaceRequest{Region: "shared-1", Workspace: "acme"})
	require.NoError(t, err)
	w.settle("chat")
	wakes, hosts := w.wakes("chat", 1, "shared-1")
	require.False(t, wakes)
	require.Empty(t, hosts)
}

func TestAudit_ShowsAWorkspaceTheCallsOfOperators(t *testing.T) {
	w := setup(t)
	w.shared("shared-1")
	w.ungrant("shared-1")
	_, err := w.setQuota(w.operator, &windlassv1.Limits{Apps: new(int64(3))})
	require.NoError(t, err)
	got, err := w.history(w.owner).ListAudit(t.Context(), &windlassv1.ListAuditRequest{})
	require.NoError(t, err)
	var kinds []string
	for _, e := range got.GetEntries()[:3] {
		require.Equal(t, "operator", e.GetActor())
		kinds = append(kinds, e.GetResourceKind())
	}
	require.Equal(t, []string{"quota", "region_grant", "region_grant"}, kinds)
}
