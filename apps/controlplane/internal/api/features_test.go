package api_test

import (
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	notAllowed = windlassv1.ErrorReason_ERROR_REASON_FEATURE_NOT_ALLOWED

	multiRegionFeature = windlassv1.Feature_FEATURE_MULTI_REGION
	canaryFeature      = windlassv1.Feature_FEATURE_CANARY
	blueGreenFeature   = windlassv1.Feature_FEATURE_BLUE_GREEN
	serveFeature       = windlassv1.Feature_FEATURE_SERVE
)

func (h *harness) features() *windlassv1.WorkspaceFeatures {
	h.t.Helper()
	res, err := h.workspaces(h.viewer).GetFeatures(h.t.Context(), &windlassv1.GetFeaturesRequest{})
	require.NoError(h.t, err)
	return res.GetFeatures()
}

// setFeatures sets the features of the workspace. It names the workspace by id, because a test may rename it.
func (h *harness) setFeatures(tier string, allowed, denied []windlassv1.Feature) *windlassv1.SetFeaturesResponse {
	h.t.Helper()
	res, err := h.workspaces(h.operator).SetFeatures(h.t.Context(), &windlassv1.SetFeaturesRequest{
		Workspace: h.workspace, Tier: tier, Allowed: allowed, Denied: denied, ResourceVersion: h.features().GetResourceVersion(),
	})
	require.NoError(h.t, err)
	return res
}

func (h *harness) deny(features ...windlassv1.Feature) {
	h.t.Helper()
	h.setFeatures("", nil, features)
}

func (h *harness) setTier(name string, version int64, features ...windlassv1.Feature) error {
	_, err := h.workspaces(h.operator).SetTier(h.t.Context(), &windlassv1.SetTierRequest{Name: name, Features: features, ResourceVersion: version})
	return err
}

func inOne(s *windlassv1.DeploymentSpec) { s.Regions = []string{"us-east-1"} }

func TestFeatures_AllAreAllowedUntilATierIsSet(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		f := w.features()
		require.Len(t, f.GetFeatures(), len(windlassv1.Feature_name)-1)
		require.Equal(t, "default", f.GetTier())
		require.Zero(t, f.GetResourceVersion())

		require.NoError(t, w.setTier("basic", 0, canaryFeature))
		require.NoError(t, w.setTier("default", 0, multiRegionFeature, blueGreenFeature))
		require.Equal(t, []windlassv1.Feature{multiRegionFeature, blueGreenFeature}, w.features().GetFeatures(), "a tier applies at once")
		f = w.setFeatures("basic", []windlassv1.Feature{serveFeature}, []windlassv1.Feature{canaryFeature}).GetFeatures()
		require.Equal(t, []windlassv1.Feature{serveFeature}, f.GetFeatures())
		require.Equal(t, []windlassv1.Feature{canaryFeature}, f.GetTierFeatures())
		require.Equal(t, "acme", f.GetWorkspaceName())

		list, err := w.workspaces(w.operator).ListTiers(t.Context(), &windlassv1.ListTiersRequest{})
		require.NoError(t, err)
		require.Equal(t, []string{"basic", "default"}, []string{list.GetTiers()[0].GetName(), list.GetTiers()[1].GetName()})
		remove := func(name string) error {
			_, err := w.workspaces(w.operator).DeleteTier(t.Context(), &windlassv1.DeleteTierRequest{Name: name})
			return err
		}
		refused(t, remove("basic"), connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_IN_USE, "")
		w.setFeatures("", nil, nil)
		require.NoError(t, remove("basic"))
		refused(t, remove("basic"), connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "name")
		require.NoError(t, remove("default"))
		require.Len(t, w.features().GetFeatures(), len(windlassv1.Feature_name)-1)
		list, err = w.workspaces(w.operator).ListTiers(t.Context(), &windlassv1.ListTiersRequest{})
		require.NoError(t, err)
		require.Len(t, list.GetTiers(), 1)
		require.Equal(t, "default", list.GetTiers()[0].GetName())
	})
}

func TestFeatures_WrongRequestsAreRefused(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	set := func(key string, edit func(*windlassv1.SetFeaturesRequest)) error {
		req := &windlassv1.SetFeaturesRequest{Workspace: "acme"}
		edit(req)
		_, err := w.workspaces(key).SetFeatures(ctx, req)
		return err
	}
	refused(t, set(w.owner, func(*windlassv1.SetFeaturesRequest) {}), connect.CodePermissionDenied, windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, "")
	refused(t, set(w.operator, func(r *windlassv1.SetFeaturesRequest) { r.Tier = "none" }),
		connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "tier")
	refused(t, set(w.operator, func(r *windlassv1.SetFeaturesRequest) {
		r.Allowed, r.Denied = []windlassv1.Feature{canaryFeature}, []windlassv1.Feature{blueGreenFeature, canaryFeature}
	}), connect.CodeInvalidArgument, invalid, "denied[1]")
	refused(t, set(w.operator, func(r *windlassv1.SetFeaturesRequest) { r.Allowed = []windlassv1.Feature{63} }),
		connect.CodeInvalidArgument, invalid, "allowed[0]")
	refused(t, set(w.operator, func(r *windlassv1.SetFeaturesRequest) { r.ResourceVersion = 3 }),
		connect.CodeAborted, windlassv1.ErrorReason_ERROR_REASON_CONFLICT, "resourceVersion")
	require.NoError(t, w.setTier("basic", 0, canaryFeature))
	refused(t, w.setTier("basic", 0, blueGreenFeature), connect.CodeAborted, windlassv1.ErrorReason_ERROR_REASON_CONFLICT, "resourceVersion")
	refused(t, w.setTier("Basic", 0, canaryFeature), connect.CodeInvalidArgument, invalid, "name")
	_, err := w.workspaces(w.rival).GetFeatures(ctx, &windlassv1.GetFeaturesRequest{Workspace: "acme"})
	refused(t, err, connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "workspace")
}

func TestFeatures_ChangesAreInBothAudits(t *testing.T) {
	w := setup(t)
	require.NoError(t, w.setTier("basic", 0, canaryFeature))
	w.setFeatures("basic", nil, nil)
	kinds := func(key string) (out []string) {
		res, err := w.history(key).ListAudit(t.Context(), &windlassv1.ListAuditRequest{})
		require.NoError(t, err)
		for _, e := range res.GetEntries() {
			if kind := e.GetResourceKind(); kind == "features" || kind == "tier" {
				out = append(out, kind)
			}
		}
		slices.Sort(out)
		return out
	}
	require.Equal(t, []string{"features", "tier"}, kinds(w.operator))
	require.Equal(t, []string{"features"}, kinds(w.owner))
}

// usesOf returns, for each feature, a deploy that uses the feature, and the field that uses it.
func usesOf() map[windlassv1.Feature]struct {
	field string
	use   func(*windlassv1.DeployRequest)
} {
	type use = struct {
		field string
		use   func(*windlassv1.DeployRequest)
	}
	routing := func(p *windlassv1.RoutingPolicy) func(*windlassv1.DeployRequest) {
		return func(r *windlassv1.DeployRequest) { r.Spec.Routing = p }
	}
	return map[windlassv1.Feature]use{
		multiRegionFeature:                     {"spec.regions", func(r *windlassv1.DeployRequest) { r.Spec.Regions = []string{"us-east-1", "eu-west-1"} }},
		windlassv1.Feature_FEATURE_AUTOSCALING: {"scaling", func(r *windlassv1.DeployRequest) { r.Scaling = scalingPolicy() }},
		windlassv1.Feature_FEATURE_SCALE_TO_ZERO: {
			"spec.routing.coldStart", routing(&windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{}}),
		},
		windlassv1.Feature_FEATURE_CROSS_REGION: {
			"spec.routing.crossRegion", routing(&windlassv1.RoutingPolicy{CrossRegion: windlassv1.RoutingPolicy_CROSS_REGION_FAILOVER}),
		},
		canaryFeature: {"rollout.strategy", func(r *windlassv1.DeployRequest) {
			r.Rollout = &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, Steps: []*windlassv1.CanaryStep{{Weight: 50}}}
		}},
		blueGreenFeature: {"rollout.strategy", func(r *windlassv1.DeployRequest) {
			r.Rollout = &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN}
		}},
		windlassv1.Feature_FEATURE_ANALYSIS: {"rollout.analysis", func(r *windlassv1.DeployRequest) {
			r.Rollout = &windlassv1.RolloutPolicy{
				Analysis: []*windlassv1.AnalysisCheck{{Template: errorRate, Max: new(0.1)}},
				Waves:    []*windlassv1.Wave{{BakeTime: durationpb.New(time.Hour)}},
			}
		}},
		serveFeature: {"spec.serve", func(r *windlassv1.DeployRequest) { serving(gpusOf(1, "NVIDIA-L4"))(r.Spec) }},
		windlassv1.Feature_FEATURE_ROLES: {"spec.roles", func(r *windlassv1.DeployRequest) {
			r.Spec.Roles = []*windlassv1.RoleSpec{{Name: "prefill"}, {Name: "decode"}}
		}},
	}
}

func TestFeatures_OnlyNewUseIsRefused(t *testing.T) {
	t.Parallel()
	uses := usesOf()
	require.Len(t, uses, len(windlassv1.Feature_name)-1, "each feature has a case")
	for feature, c := range uses {
		t.Run(feature.String(), func(t *testing.T) {
			t.Parallel()
			metrics := prometheus.NewRegistry()
			w := setup(t, func(c *api.Config) { c.Registerer = metrics })
			w.hosts()
			deploy := func(edit ...func(*windlassv1.DeployRequest)) error {
				req := &windlassv1.DeployRequest{App: "chat", Spec: echo(inOne)}
				for _, f := range edit {
					f(req)
				}
				_, err := w.apps(w.deployer).Deploy(t.Context(), req)
				return err
			}
			planned := func(edit ...func(*windlassv1.DeployRequest)) *windlassv1.PlanDeployResponse {
				req := &windlassv1.DeployRequest{App: "chat", Spec: echo(inOne)}
				for _, f := range edit {
					f(req)
				}
				p, err := w.apps(w.viewer).PlanDeploy(t.Context(), &windlassv1.PlanDeployRequest{
					App: req.GetApp(), Spec: req.GetSpec(), Rollout: req.GetRollout(), Scaling: req.GetScaling(),
				})
				require.NoError(t, err)
				return p
			}
			next := func(r *windlassv1.DeployRequest) {
				r.Spec.Message, r.Spec.VersionLabel = "next", "next"
				r.Spec.Env = map[string]string{"A": "b"}
			}

			w.deny(feature)
			require.NoError(t, deploy(), "a deploy without the feature")
			w.settle("chat")
			err := deploy(c.use)
			refused(t, err, connect.CodePermissionDenied, notAllowed, c.field)
			require.ErrorContains(t, err, "an operator denied it")
			require.Contains(t, detailOf(err).GetFix(), "`windlass workspace features "+w.workspace+" --allow ")
			require.Contains(t, reasons(planned(c.use)), "FEATURE_NOT_ALLOWED "+c.field)
			n, err := testutil.GatherAndCount(metrics, "windlass_feature_refusals_total")
			require.NoError(t, err)
			require.Equal(t, 1, n, "a plan is not counted")

			w.deny()
			require.NoError(t, deploy(c.use))
			w.deny(feature)
			require.NoError(t, deploy(c.use, next), "the version in flight uses it")
			w.settle("chat")
			require.NoError(t, deploy(c.use), "the live version uses it")
			p := planned(c.use)
			i := slices.IndexFunc(p.GetFeatures(), func(f *windlassv1.PlanFeature) bool { return f.GetFeature() == feature })
			require.GreaterOrEqual(t, i, 0, "%v", p.GetFeatures())
			require.Equal(t, []any{false, false, c.field}, []any{p.GetFeatures()[i].GetAllowed(), p.GetFeatures()[i].GetStarts(), p.GetFeatures()[i].GetField()})
			require.NotContains(t, reasons(p), "FEATURE_NOT_ALLOWED "+c.field)

			w.settle("chat")
			require.NoError(t, deploy(next), "the app stops using it")
			w.settle("chat")
			refused(t, deploy(c.use), connect.CodePermissionDenied, notAllowed, c.field)
		})
	}
}

func TestFeatures_MoreRegionsCountAsNewUse(t *testing.T) {
	w := setup(t)
	made, err := w.regionService(w.owner).CreateRegion(t.Context(), &windlassv1.CreateRegionRequest{Name: "ap-south-1"})
	require.NoError(t, err)
	w.regions["ap-south-1"] = made.GetRegion().GetId()
	w.deploy("chat")
	w.settle("chat")
	w.deny(multiRegionFeature)
	_, err = w.tryDeploy("other", "")
	refused(t, err, connect.CodePermissionDenied, notAllowed, "spec.regions")
	require.Contains(t, detailOf(err).GetFix(), "Name one region")
	w.deploy("chat", args("b"))
	_, err = w.tryDeploy("chat", "", func(s *windlassv1.DeploymentSpec) { s.Regions = append(s.Regions, "ap-south-1") })
	refused(t, err, connect.CodePermissionDenied, notAllowed, "spec.regions")
	require.Contains(t, detailOf(err).GetFix(), "Keep to 2 regions")
	w.deploy("chat", func(s *windlassv1.DeploymentSpec) { s.Regions = []string{"ap-south-1", "us-east-1"} })
}

func TestFeatures_RollbackToThePreviousVersionPasses(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		for _, edit := range []func(*windlassv1.DeploymentSpec){args("a"), args("b"), inOne} {
			w.deploy("chat", edit)
			w.settle("chat")
		}
		w.deny(multiRegionFeature)
		back := func(version int32) error {
			_, err := w.apps(w.deployer).Rollback(t.Context(), &windlassv1.RollbackRequest{App: "chat", Version: version})
			return err
		}
		refused(t, back(1), connect.CodePermissionDenied, notAllowed, "version")
		require.NoError(t, back(0), "a rollback may end an outage")
	})
}

func TestFeatures_PinCountsAsNewUse(t *testing.T) {
	w := setup(t)
	w.hosts()
	w.deploy("chat", args("a"))
	w.settle("chat")
	w.deploy("chat", inOne)
	w.settle("chat")
	pin := func(weight int32, regions ...string) error {
		_, err := w.apps(w.deployer).PinVersion(t.Context(), &windlassv1.PinVersionRequest{App: "chat", Version: 1, Weight: weight, Regions: regions})
		return err
	}
	w.deny(multiRegionFeature)
	refused(t, pin(10), connect.CodePermissionDenied, notAllowed, "version")
	require.NoError(t, pin(10, "us-east-1"), "next to the live version")
	w.deny()
	require.NoError(t, pin(10, "eu-west-1", "us-east-1"))
	w.settle("chat")
	w.deny(multiRegionFeature)
	require.NoError(t, pin(20), "the version is already pinned there")
}
