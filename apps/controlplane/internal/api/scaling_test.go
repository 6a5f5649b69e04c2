package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

const (
	invalid = windlassv1.ErrorReason_ERROR_REASON_VALIDATION
	scaled  = windlassv1.ErrorReason_ERROR_REASON_SCALED
)

func scalingPolicy(edit ...func(*windlassv1.ScalingPolicy)) *windlassv1.ScalingPolicy {
	p := &windlassv1.ScalingPolicy{Max: 8, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: "8"}}}
	for _, f := range edit {
		f(p)
	}
	return p
}

func (h *harness) deployScaled(p *windlassv1.ScalingPolicy, edit ...func(*windlassv1.DeploymentSpec)) error {
	_, err := h.apps(h.deployer).Deploy(h.t.Context(), &windlassv1.DeployRequest{App: "chat", Spec: echo(edit...), Scaling: p})
	return err
}

func (h *harness) scaledApp() model.ScaledApp {
	h.t.Helper()
	got, err := h.apps(h.viewer).GetApp(h.t.Context(), &windlassv1.GetAppRequest{App: "chat"})
	require.NoError(h.t, err)
	apps, err := h.api.ScaledApps(h.t.Context(), []string{got.GetApp().GetId(), "app_none"})
	require.NoError(h.t, err)
	require.Len(h.t, apps, 1)
	return apps[0]
}

// decision returns a decision that is based on the app's current state.
func (h *harness) decision(region string, wanted int32) model.Rescale {
	h.t.Helper()
	app, id := h.scaledApp(), h.regions[region]
	return model.Rescale{
		AppID: app.AppID, WorkspaceID: app.WorkspaceID, RegionID: id, From: app.Regions[id].Replicas, Generation: app.Regions[id].Generation,
		ScalingAt: app.Scaling.UpdatedAt, Writes: true, Entries: []model.ScalingEntry{{What: "ScalingDecided", Why: "because"}},
		Decision: &windlassv1.RegionScaling{At: time.Now().UnixMilli(), Replicas: app.Regions[id].Replicas, Wanted: wanted, Why: "because"},
	}
}

func (h *harness) getScaling() *windlassv1.GetScalingResponse {
	h.t.Helper()
	client := windlassv1connect.NewScalingServiceClient(http.DefaultClient, h.url, h.options(h.viewer)...)
	res, err := client.GetScaling(h.t.Context(), &windlassv1.GetScalingRequest{App: "chat"})
	require.NoError(h.t, err)
	return res
}

func TestScaling_ListLoadReturnsWhatWasStored(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		require.NoError(t, w.deployScaled(scalingPolicy()))
		w.settle("chat")
		app, region := w.scaledApp(), w.regions["us-east-1"]
		minute := func(n int) *windlassv1.LoadSample {
			return &windlassv1.LoadSample{At: int64(n) * 60_000, SpanMs: 60_000, Rate: new(float32(n)), Ready: 2, Desired: 3, Levels: map[string]float32{"cpu": 50}}
		}
		store := func(role string, samples ...*windlassv1.LoadSample) {
			b, err := model.EncodeLoads(samples)
			require.NoError(t, err)
			require.NoError(t, w.api.StoreLoads(ctx, []model.LoadChunk{{AppID: app.AppID, RegionID: region, Role: role, WorkspaceID: app.WorkspaceID, BeganAt: samples[0].GetAt(), Samples: b}}))
		}
		store("", minute(10), minute(11))
		store("", minute(12), minute(13))
		store("", minute(13), minute(14)) // from another process
		store("decode", minute(20))
		client := windlassv1connect.NewScalingServiceClient(http.DefaultClient, w.url, w.options(w.viewer)...)
		list := func(req *windlassv1.ListLoadRequest) (at []int64) {
			res, err := client.ListLoad(ctx, req)
			require.NoError(t, err)
			for _, s := range res.GetSamples() {
				require.EqualValues(t, 50, s.GetLevels()["cpu"])
				at = append(at, s.GetAt()/60_000)
			}
			return at
		}
		require.Equal(t, []int64{10, 11, 12, 13, 14}, list(&windlassv1.ListLoadRequest{App: "chat", Region: "us-east-1"}))
		require.Equal(t, []int64{11, 12, 13, 14}, list(&windlassv1.ListLoadRequest{App: "chat", Region: "us-east-1", Since: 11 * 60_000}))
		require.Equal(t, []int64{20}, list(&windlassv1.ListLoadRequest{App: "chat", Region: "us-east-1", Role: "decode"}))
		require.Empty(t, list(&windlassv1.ListLoadRequest{App: "chat", Region: "eu-west-1"}))
		_, err := client.ListLoad(ctx, &windlassv1.ListLoadRequest{App: "none", Region: "us-east-1"})
		require.ErrorContains(t, err, "none")
		_, err = client.ListLoad(ctx, &windlassv1.ListLoadRequest{App: "chat", Region: "nowhere"})
		require.ErrorContains(t, err, "nowhere")
	})
}

func TestScaling_NewVersionsKeepDecisions(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		require.NoError(t, w.deployScaled(scalingPolicy(func(p *windlassv1.ScalingPolicy) {
			p.Initial = new(int32(2))
			p.Overrides = []*windlassv1.ScalingOverride{{Regions: []string{"eu-west-1"}, Max: new(int32(20)), Initial: new(int32(3))}}
		})))
		w.settle("chat")
		require.Equal(t, map[string]int32{"us-east-1": 2, "eu-west-1": 3}, w.sizes("chat", 1))
		item := w.desired("chat", 1, "eu-west-1")
		require.Equal(t, []string{w.regions["eu-west-1"]}, item.Scaling.GetOverrides()[0].GetRegionIds())

		require.NoError(t, w.api.Rescale(ctx, w.decision("eu-west-1", 5)))
		require.Equal(t, map[string]int32{"us-east-1": 2, "eu-west-1": 5}, w.sizes("chat", 1))
		got := w.getScaling()
		require.Len(t, got.GetRegions(), 1)
		require.Equal(t, "eu-west-1", got.GetRegions()[0].GetRegion())
		require.EqualValues(t, 5, got.GetRegions()[0].GetWanted())

		// A new version keeps the scaled replicas, as does a change of only the policy.
		require.NoError(t, w.deployScaled(scalingPolicy(), args("--other")))
		w.settle("chat")
		require.Equal(t, map[string]int32{"us-east-1": 2, "eu-west-1": 5}, w.sizes("chat", 2))
		before := w.desired("chat", 2, "us-east-1").Generation
		require.NoError(t, w.deployScaled(scalingPolicy(func(p *windlassv1.ScalingPolicy) { p.Max = 9 }), args("--other")))
		require.Equal(t, before+1, w.desired("chat", 2, "us-east-1").Generation, "agents get the policy with a new generation")
		require.EqualValues(t, 2, w.settle("chat").GetLatestVersion())
		require.Equal(t, map[string]int32{"us-east-1": 2, "eu-west-1": 5}, w.sizes("chat", 2))

		// A region that the app has left has no decision.
		in := func(regions ...string) func(*windlassv1.DeploymentSpec) {
			return func(s *windlassv1.DeploymentSpec) { s.Regions = regions }
		}
		require.NoError(t, w.deployScaled(scalingPolicy(), args("--other"), in("us-east-1")))
		w.settle("chat")
		require.Empty(t, w.getScaling().GetRegions())

		// A file without scaling ends the scaling.
		require.NoError(t, w.deployScaled(nil, args("--other"), in("us-east-1")))
		require.Nil(t, w.getScaling().GetPolicy())
		require.Nil(t, w.desired("chat", 3, "us-east-1").Scaling)
		require.Equal(t, map[string]int32{"us-east-1": 2}, w.sizes("chat", 3))
	})
}

func TestScaling_PlanShowsTheChange(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.connected(16)
	planned := func(p *windlassv1.ScalingPolicy) (paths []string) {
		plan, err := w.apps(w.viewer).PlanDeploy(t.Context(), &windlassv1.PlanDeployRequest{App: "chat", Spec: echo(), Scaling: p})
		require.NoError(t, err)
		require.Empty(t, reasons(plan))
		for _, c := range plan.GetChanges() {
			if strings.HasPrefix(c.GetPath(), "scaling.") {
				paths = append(paths, c.GetPath()+" "+c.GetOld()+" "+c.GetNew())
			}
		}
		return paths
	}
	policy := scalingPolicy(func(p *windlassv1.ScalingPolicy) {
		p.Overrides = []*windlassv1.ScalingOverride{{Regions: []string{"us-east-1"}, Max: new(int32(20))}}
	})
	require.Contains(t, planned(policy), "scaling.max  8")
	deployed := func() bool {
		res, err := w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{App: "chat", Spec: echo(), Scaling: policy})
		require.NoError(t, err)
		require.True(t, res.GetUnchanged())
		return res.GetScalingChanged()
	}
	require.NoError(t, w.deployScaled(policy))
	require.Empty(t, planned(policy), "the policy does not change")
	require.False(t, deployed())
	policy.Max = 9
	require.Equal(t, []string{"scaling.max 8 9"}, planned(policy))
	require.True(t, deployed())
	require.Contains(t, planned(nil), "scaling.max 9 ")
}

// A field that PlanDeploy does not copy would be missing in the plan.
func TestPlan_CarriesEveryFieldOfTheDeploy(t *testing.T) {
	t.Parallel()
	req := &windlassv1.PlanDeployRequest{
		App: "chat", Spec: &windlassv1.DeploymentSpec{}, Rollout: &windlassv1.RolloutPolicy{}, Freeze: &windlassv1.FileFreeze{}, Scaling: &windlassv1.ScalingPolicy{},
	}
	deploy := api.DeployOf(req).ProtoReflect()
	fields := req.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		require.True(t, req.ProtoReflect().Has(f), "fill %s above", f.Name())
		require.True(t, deploy.Has(deploy.Descriptor().Fields().ByName(f.Name())), f.Name())
	}
}

func TestScaling_StaleDecisionIsRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		require.NoError(t, w.deployScaled(scalingPolicy()))
		w.settle("chat")
		late := w.decision("us-east-1", 7)
		require.NoError(t, w.api.Rescale(ctx, w.decision("us-east-1", 3)))
		require.ErrorIs(t, w.api.Rescale(ctx, late), model.ErrStale, "another decision came first")
		generation := w.decision("us-east-1", 4)
		generation.Generation--
		require.ErrorIs(t, w.api.Rescale(ctx, generation), model.ErrStale)
		policy := w.decision("us-east-1", 4)
		require.NoError(t, w.deployScaled(scalingPolicy(func(p *windlassv1.ScalingPolicy) { p.Max = 4 })))
		require.ErrorIs(t, w.api.Rescale(ctx, policy), model.ErrStale, "another policy came first")
		require.Equal(t, map[string]int32{"us-east-1": 3, "eu-west-1": 1}, w.sizes("chat", 1))
	})
}

func TestScaling_RefusedRaiseIsAnsweredByANewGeneration(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		require.NoError(t, w.deployScaled(scalingPolicy()))
		w.settle("chat")
		answer := w.decision("us-east-1", 1)
		answer.Renews, answer.Entries[0].What = true, "ScalingRaiseRefused"
		us, eu := w.desired("chat", 1, "us-east-1"), w.desired("chat", 1, "eu-west-1")
		require.NoError(t, w.api.Rescale(t.Context(), answer))
		require.Equal(t, us.Generation+1, w.desired("chat", 1, "us-east-1").Generation)
		require.Equal(t, eu.Generation, w.desired("chat", 1, "eu-west-1").Generation)
		require.Equal(t, map[string]int32{"us-east-1": 1, "eu-west-1": 1}, w.sizes("chat", 1))
		require.ErrorIs(t, w.api.Rescale(t.Context(), answer), model.ErrStale, "the raise is answered already")
	})
}

func TestScaling_RegionsKnowOfHoldsAndLimits(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		require.NoError(t, w.deployScaled(scalingPolicy()))
		w.settle("chat")
		us := w.desired("chat", 1, "us-east-1")
		require.Equal(t, model.Inherit, us.Alone.Instances)
		require.Empty(t, us.Alone.Holds)
		_, err := w.apps(w.deployer).Scale(ctx, &windlassv1.ScaleRequest{App: "chat", Region: "us-east-1", Replicas: 1, HoldFor: durationpb.New(time.Hour)})
		require.NoError(t, err)
		held := w.desired("chat", 1, "us-east-1")
		require.Equal(t, us.Generation+1, held.Generation, "a hold that keeps the number makes a new generation, too")
		require.Len(t, held.Alone.Holds, 1)
		_, err = w.apps(w.deployer).Scale(ctx, &windlassv1.ScaleRequest{App: "chat", Region: "us-east-1", EndHold: true})
		require.NoError(t, err)
		ended := w.desired("chat", 1, "us-east-1")
		require.Equal(t, us.Generation+2, ended.Generation)
		require.Empty(t, ended.Alone.Holds)
		require.EqualValues(t, 1, w.desired("chat", 1, "eu-west-1").Generation)
	})
}

func TestScaling_HoldByAPerson(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	scale := func(req *windlassv1.ScaleRequest) (*windlassv1.ScaleResponse, error) {
		req.App = "chat"
		return w.apps(w.deployer).Scale(ctx, req)
	}
	require.NoError(t, w.deployScaled(scalingPolicy()))
	w.settle("chat")
	_, err := scale(&windlassv1.ScaleRequest{Replicas: 5})
	refused(t, err, connect.CodeFailedPrecondition, scaled, "replicas")
	_, err = scale(&windlassv1.ScaleRequest{Replicas: 5, Region: "us-east-1", HoldFor: durationpb.New(2 * time.Hour)})
	require.NoError(t, err)
	require.Equal(t, map[string]int32{"us-east-1": 5, "eu-west-1": 1}, w.sizes("chat", 1))
	holds := w.getScaling().GetHolds()
	require.Len(t, holds, 1)
	require.Equal(t, "us-east-1", holds[0].GetRegion())
	require.InDelta(t, time.Now().Add(2*time.Hour).UnixMilli(), holds[0].GetUntil(), 60_000)
	require.ErrorIs(t, w.api.Rescale(ctx, w.decision("us-east-1", 1)), model.ErrStale, "the hold is kept")
	require.NoError(t, w.api.Rescale(ctx, w.decision("eu-west-1", 2)))
	_, err = scale(&windlassv1.ScaleRequest{EndHold: true, HoldFor: durationpb.New(time.Hour)})
	refused(t, err, connect.CodeInvalidArgument, invalid, "endHold")
	_, err = scale(&windlassv1.ScaleRequest{EndHold: true})
	require.NoError(t, err)
	require.Empty(t, w.getScaling().GetHolds())
	require.NoError(t, w.api.Rescale(ctx, w.decision("us-east-1", 1)))

	_, err = scale(&windlassv1.ScaleRequest{Replicas: 4, HoldFor: durationpb.New(time.Hour)})
	require.NoError(t, err)
	_, err = scale(&windlassv1.ScaleRequest{Replicas: 5, Region: "us-east-1", HoldFor: durationpb.New(2 * time.Hour)})
	require.NoError(t, err)
	for _, region := range []string{"us-east-1", "eu-west-1"} {
		_, err = scale(&windlassv1.ScaleRequest{EndHold: true, Region: region})
		refused(t, err, connect.CodeInvalidArgument, invalid, "region")
		require.ErrorContains(t, err, "to all regions: 4 replicas until ")
	}
	require.Len(t, w.getScaling().GetHolds(), 2, "a refused call ends no hold")
	_, err = scale(&windlassv1.ScaleRequest{EndHold: true})
	require.NoError(t, err)
	_, err = scale(&windlassv1.ScaleRequest{Replicas: 5, Region: "us-east-1", HoldFor: durationpb.New(time.Hour)})
	require.NoError(t, err)
	_, err = scale(&windlassv1.ScaleRequest{EndHold: true, Region: "us-east-1"})
	require.NoError(t, err)
	require.Empty(t, w.getScaling().GetHolds(), "the hold in the region ends")

	w.deploy("plain")
	w.settle("plain")
	_, err = w.apps(w.deployer).Scale(ctx, &windlassv1.ScaleRequest{App: "plain", Replicas: 3, HoldFor: durationpb.New(time.Hour)})
	refused(t, err, connect.CodeInvalidArgument, invalid, "holdFor")
	_, err = w.apps(w.viewer).Scale(ctx, &windlassv1.ScaleRequest{App: "chat", Replicas: 3, HoldFor: durationpb.New(time.Hour)})
	require.Equal(t, connect.CodePermissionDenied, connect.CodeOf(err))
}

func TestScaling_DuringARollout(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		policy := &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, Steps: []*windlassv1.CanaryStep{{Replicas: 1, Pause: "manual"}}}
		deploy := func(edit ...func(*windlassv1.DeploymentSpec)) {
			_, err := w.apps(w.deployer).Deploy(ctx, &windlassv1.DeployRequest{App: "chat", Spec: echo(edit...), Scaling: scalingPolicy(func(p *windlassv1.ScalingPolicy) { p.Initial = new(int32(3)) }), Rollout: policy})
			require.NoError(t, err)
			w.settle("chat")
		}
		deploy()
		deploy(args("--new"))
		app := w.scaledApp()
		us := app.Regions[w.regions["us-east-1"]]
		require.True(t, us.Moving)
		require.EqualValues(t, 3, us.Replicas)
		require.Len(t, app.Deployments, 2, "the scaler gets both versions")
		require.ErrorIs(t, w.api.Rescale(ctx, w.decision("us-east-1", 2)), model.ErrStale, "the decision was made before the rollout")
		require.NoError(t, w.api.Rescale(ctx, w.decision("us-east-1", 6)))
		w.settle("chat")
		require.EqualValues(t, 6, w.scaledApp().Regions[w.regions["us-east-1"]].Replicas)
		_, err := w.rollouts(w.deployer).Promote(ctx, &windlassv1.PromoteRequest{App: "chat"})
		require.NoError(t, err)
		for range 5 {
			if app := w.settle("chat"); app.GetLiveVersion() != 2 {
				_, _ = w.rollouts(w.deployer).Promote(ctx, &windlassv1.PromoteRequest{App: "chat"})
			}
		}
		require.Equal(t, map[string]int32{"us-east-1": 6, "eu-west-1": 3}, w.sizes("chat", 2))
	})
}

func TestScaling_BadInput(t *testing.T) {
	w := setup(t)
	metric := func(m *windlassv1.ScalingMetric) func(*windlassv1.ScalingPolicy) {
		return func(p *windlassv1.ScalingPolicy) { p.Metrics = []*windlassv1.ScalingMetric{m} }
	}
	inFlight := windlassv1.ScalingMetric_TYPE_IN_FLIGHT
	for name, c := range map[string]struct {
		edit  func(*windlassv1.ScalingPolicy)
		spec  func(*windlassv1.DeploymentSpec)
		field string
	}{
		"min above max": {edit: func(p *windlassv1.ScalingPolicy) { p.Min = new(int32(9)) }, field: "scaling.min"},
		"min above max in a region": {edit: func(p *windlassv1.ScalingPolicy) {
			p.Overrides = []*windlassv1.ScalingOverride{{Regions: []string{"us-east-1"}, Min: new(int32(9))}}
		}, field: "scaling.overrides[0].min"},
		"an override of a region without the app": {edit: func(p *windlassv1.ScalingPolicy) {
			p.Overrides = []*windlassv1.ScalingOverride{{Regions: []string{"mars"}, Max: new(int32(9))}}
		}, field: "scaling.overrides[0].regions[0]"},
		"to zero":                       {edit: func(p *windlassv1.ScalingPolicy) { p.Min = new(int32(0)) }, field: "scaling.min"},
		"target 0":                      {edit: metric(&windlassv1.ScalingMetric{Type: inFlight, Target: "0"}), field: "scaling.metrics[0].target"},
		"a target that is not a number": {edit: metric(&windlassv1.ScalingMetric{Type: inFlight, Target: "NaN"}), field: "scaling.metrics[0].target"},
		"a number for a time":           {edit: metric(&windlassv1.ScalingMetric{Type: windlassv1.ScalingMetric_TYPE_LATENCY, Target: "5"}), field: "scaling.metrics[0].target"},
		"unknown metric":                {edit: metric(&windlassv1.ScalingMetric{Type: 99, Target: "5"}), field: "scaling.metrics[0].type"},
		"thresholds of a total":         {edit: metric(&windlassv1.ScalingMetric{Type: inFlight, Target: "5", Up: "6", Down: "2"}), field: "scaling.metrics[0].up"},
		"a query with another variable": {edit: metric(&windlassv1.ScalingMetric{Type: windlassv1.ScalingMetric_TYPE_PROMETHEUS, Target: "5", Query: "up{{{pod}}}"}), field: "scaling.metrics[0].query"},
		"cron of four fields": {edit: func(p *windlassv1.ScalingPolicy) {
			p.Schedule = []*windlassv1.ScalingSchedule{{Cron: "0 8 * *", Min: new(int32(2))}}
		}, field: "scaling.schedule[0].cron"},
		"cron without a time": {edit: func(p *windlassv1.ScalingPolicy) {
			p.Schedule = []*windlassv1.ScalingSchedule{{Cron: "0 8 31 2 *", Min: new(int32(2))}}
		}, field: "scaling.schedule[0].cron"},
		"no such zone": {edit: func(p *windlassv1.ScalingPolicy) {
			p.Schedule = []*windlassv1.ScalingSchedule{{Cron: "0 8 * * *", TimeZone: "Mars/Base", Min: new(int32(2))}}
		}, field: "scaling.schedule[0].timeZone"},
		"a schedule above max": {edit: func(p *windlassv1.ScalingPolicy) {
			p.Schedule = []*windlassv1.ScalingSchedule{{Cron: "0 8 * * *", Min: new(int32(20))}}
		}, field: "scaling.schedule[0].min"},
		"replicas in the spec":    {spec: replicas(3), field: "spec.replicas"},
		"replicas in an override": {spec: overrides(sized(inRegions("us-east-1"), 3)), field: "spec.overrides[0].replicas"},
	} {
		t.Run(name, func(t *testing.T) {
			p := scalingPolicy()
			if c.edit != nil {
				c.edit(p)
			}
			if c.spec == nil {
				c.spec = func(*windlassv1.DeploymentSpec) {}
			}
			refused(t, w.deployScaled(p, c.spec), connect.CodeInvalidArgument, invalid, c.field)
			plan, err := w.apps(w.viewer).PlanDeploy(t.Context(), &windlassv1.PlanDeployRequest{App: "chat", Spec: echo(c.spec), Scaling: p})
			if connect.CodeOf(err) == connect.CodeInvalidArgument {
				return // the rule has its own message
			}
			require.NoError(t, err)
			require.False(t, plan.GetWouldRun())
			require.Equal(t, []string{"VALIDATION " + c.field}, reasons(plan))
		})
	}
	require.NoError(t, w.deployScaled(scalingPolicy(func(p *windlassv1.ScalingPolicy) { p.Min = new(int32(0)) }), func(s *windlassv1.DeploymentSpec) {
		s.Routing = &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{}}
	}))
	require.NoError(t, w.deployScaled(scalingPolicy(func(p *windlassv1.ScalingPolicy) { p.Mode = windlassv1.ScalingPolicy_MODE_ADVISE }), replicas(3)))
}

func TestScaling_QueriesNeedAPrometheus(t *testing.T) {
	t.Parallel()
	policy := scalingPolicy(func(p *windlassv1.ScalingPolicy) {
		p.Metrics = []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_PROMETHEUS, Target: "5", Query: "sum(jobs{{{selector}}})"}}
	})
	w := setup(t)
	refused(t, w.deployScaled(policy), connect.CodeFailedPrecondition, invalid, "scaling.metrics[0].type")
	w = setup(t, readsMetrics)
	require.NoError(t, w.deployScaled(policy))
	w.settle("chat")
	require.NoError(t, w.deployScaled(policy, args("b")))
	w.settle("chat")
	app := w.scaledApp()
	for _, region := range app.Regions {
		require.Equal(t, w.version("chat", 2).GetId(), region.MadeFor[0])
	}
}
