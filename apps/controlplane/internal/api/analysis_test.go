package api_test

import (
	"net/netip"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func readsMetrics(cfg *api.Config) { cfg.ReadsMetrics = true }

const (
	errorRate   = windlassv1.AnalysisCheck_TEMPLATE_ERROR_RATE
	queueLength = windlassv1.AnalysisCheck_TEMPLATE_QUEUE_LENGTH
)

func TestAnalysis_ContradictionNamesItsField(t *testing.T) {
	w := setup(t, readsMetrics)
	steps := []*windlassv1.CanaryStep{{Weight: 10, Pause: "5m"}}
	of := func(strategy windlassv1.RolloutPolicy_Strategy, checks ...*windlassv1.AnalysisCheck) *windlassv1.RolloutPolicy {
		p := &windlassv1.RolloutPolicy{Strategy: strategy, Analysis: checks}
		if strategy == windlassv1.RolloutPolicy_STRATEGY_CANARY {
			p.Steps = steps
		}
		return p
	}
	canaryOf := func(checks ...*windlassv1.AnalysisCheck) *windlassv1.RolloutPolicy { return of(3, checks...) }
	waved := func(p *windlassv1.RolloutPolicy, bake time.Duration) *windlassv1.RolloutPolicy {
		p.Waves = []*windlassv1.Wave{{BakeTime: durationpb.New(bake)}}
		return p
	}
	ratio := func() *windlassv1.VersusOld { return &windlassv1.VersusOld{MaxRatio: new(1.2)} }
	for name, c := range map[string]struct {
		policy *windlassv1.RolloutPolicy
		field  string
	}{
		"no measurement":               {canaryOf(&windlassv1.AnalysisCheck{Name: "a", Max: new(1.0)}), "rollout.analysis[0].template"},
		"two measurements":             {canaryOf(&windlassv1.AnalysisCheck{Template: errorRate, Query: "up", Max: new(1.0)}), "rollout.analysis[0].query"},
		"a query without a name":       {canaryOf(&windlassv1.AnalysisCheck{Query: "up", Max: new(1.0)}), "rollout.analysis[0].name"},
		"no bound":                     {canaryOf(&windlassv1.AnalysisCheck{Template: errorRate}), "rollout.analysis[0]"},
		"an empty comparison":          {canaryOf(&windlassv1.AnalysisCheck{Template: errorRate, VersusOld: &windlassv1.VersusOld{}}), "rollout.analysis[0]"},
		"min above max":                {canaryOf(&windlassv1.AnalysisCheck{Template: errorRate, Max: new(0.1), Min: new(0.2)}), "rollout.analysis[0].max"},
		"min ratio above max":          {canaryOf(&windlassv1.AnalysisCheck{Template: errorRate, VersusOld: &windlassv1.VersusOld{MaxRatio: new(1.0), MinRatio: new(2.0)}}), "rollout.analysis[0].versusOld.maxRatio"},
		"a name twice":                 {canaryOf(&windlassv1.AnalysisCheck{Template: errorRate, Max: new(1.0)}, &windlassv1.AnalysisCheck{Template: errorRate, Max: new(1.0)}), "rollout.analysis[1].name"},
		"an unknown variable":          {canaryOf(&windlassv1.AnalysisCheck{Name: "a", Query: "up{pod=\"{{pod}}\"}", Max: new(1.0)}), "rollout.analysis[0].query"},
		"a query without the version":  {canaryOf(&windlassv1.AnalysisCheck{Name: "a", Query: "up{region=\"{{region}}\"}", VersusOld: ratio()}), "rollout.analysis[0].query"},
		"samples without a count":      {canaryOf(&windlassv1.AnalysisCheck{Name: "a", Query: "up", Max: new(1.0), MinSamples: 5}), "rollout.analysis[0].minSamples"},
		"samples without a minimum":    {canaryOf(&windlassv1.AnalysisCheck{Name: "a", Query: "up", Max: new(1.0), SamplesQuery: "up"}), "rollout.analysis[0].samplesQuery"},
		"a template's samples":         {canaryOf(&windlassv1.AnalysisCheck{Template: errorRate, Max: new(1.0), SamplesQuery: "up"}), "rollout.analysis[0].samplesQuery"},
		"a pause too short":            {canaryOf(&windlassv1.AnalysisCheck{Template: errorRate, Max: new(1.0), Interval: durationpb.New(6 * time.Minute)}), "rollout.analysis[0].interval"},
		"a bake too short":             {waved(canaryOf(&windlassv1.AnalysisCheck{Template: errorRate, Max: new(1.0)}), 30*time.Second), "rollout.analysis[0].interval"},
		"a promotion too early":        {&windlassv1.RolloutPolicy{Strategy: 4, Promotion: "auto after 10s", InitialWeight: 5, Analysis: []*windlassv1.AnalysisCheck{{Template: errorRate, Max: new(1.0)}}}, "rollout.analysis[0].interval"},
		"rolling without a bake":       {of(1, &windlassv1.AnalysisCheck{Template: errorRate, Max: new(1.0)}), "rollout.analysis[0]"},
		"a comparison in a bake":       {waved(of(1, &windlassv1.AnalysisCheck{Template: errorRate, VersusOld: ratio()}), time.Hour), "rollout.analysis[0].versusOld"},
		"no requests before promotion": {of(4, &windlassv1.AnalysisCheck{Template: errorRate, Max: new(1.0)}), "rollout.analysis[0].template"},
		"a comparison at 100%":         {&windlassv1.RolloutPolicy{Strategy: 3, Steps: []*windlassv1.CanaryStep{{Weight: 100, Pause: "5m"}}, Analysis: []*windlassv1.AnalysisCheck{{Template: errorRate, VersusOld: ratio()}}}, "rollout.analysis[0].versusOld"},
		"not a number":                 {canaryOf(&windlassv1.AnalysisCheck{Template: errorRate, Max: new(nan())}), "rollout.analysis[0].max"},
		"an interval of 0":             {canaryOf(&windlassv1.AnalysisCheck{Template: errorRate, Max: new(1.0), Interval: durationpb.New(0)}), "rollout.analysis[0].interval"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.deployBy("chat", c.policy)
			refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, c.field)
		})
	}
	for name, policy := range map[string]*windlassv1.RolloutPolicy{
		"canary": canaryOf(&windlassv1.AnalysisCheck{Template: errorRate, Max: new(0.1), VersusOld: ratio()},
			&windlassv1.AnalysisCheck{Name: "own", Query: "sum(rate(x{{{selector}}}[{{window}}]))", SamplesQuery: "sum(y)", MinSamples: 3, VersusOld: ratio()}),
		"rolling":    waved(of(1, &windlassv1.AnalysisCheck{Template: errorRate, Max: new(0.1)}), time.Hour),
		"blue-green": of(4, &windlassv1.AnalysisCheck{Template: queueLength, Max: new(3.0)}),
	} {
		_, err := w.deployBy("chat", policy)
		require.NoError(t, err, name)
	}
}

func hookAt(url string) *windlassv1.AnalysisCheck {
	return &windlassv1.AnalysisCheck{Name: "smoke", Webhook: &windlassv1.WebHook{Url: url}}
}

func TestWebHook_ContradictionNamesItsField(t *testing.T) {
	const url = "https://hook.test/smoke"
	w := setup(t)
	with := func(edit func(*windlassv1.AnalysisCheck)) *windlassv1.AnalysisCheck {
		c := hookAt(url)
		edit(c)
		return c
	}
	for name, c := range map[string]struct {
		check *windlassv1.AnalysisCheck
		field string
	}{
		"no address":        {hookAt(""), "webhook.url"},
		"no scheme":         {hookAt("hook.test/smoke"), "webhook.url"},
		"another scheme":    {hookAt("gopher://hook.test"), "webhook.url"},
		"a password":        {hookAt("https://ada:hunter2@hook.test"), "webhook.url"},
		"a fragment":        {hookAt(url + "#hunter2"), "webhook.url"},
		"no name":           {with(func(c *windlassv1.AnalysisCheck) { c.Name = "" }), "name"},
		"a query":           {with(func(c *windlassv1.AnalysisCheck) { c.Query = "up" }), "query"},
		"a template":        {with(func(c *windlassv1.AnalysisCheck) { c.Template = errorRate }), "template"},
		"a bound":           {with(func(c *windlassv1.AnalysisCheck) { c.Max = new(0.1) }), "max"},
		"another bound":     {with(func(c *windlassv1.AnalysisCheck) { c.VersusOld = &windlassv1.VersusOld{MaxRatio: new(1.0)} }), "versusOld"},
		"samples":           {with(func(c *windlassv1.AnalysisCheck) { c.MinSamples = 3 }), "minSamples"},
		"a window":          {with(func(c *windlassv1.AnalysisCheck) { c.Window = durationpb.New(time.Minute) }), "window"},
		"no time":           {with(func(c *windlassv1.AnalysisCheck) { c.Webhook.Timeout = durationpb.New(0) }), "webhook.timeout"},
		"too much time":     {with(func(c *windlassv1.AnalysisCheck) { c.Webhook.Timeout = durationpb.New(16 * time.Second) }), "webhook.timeout"},
		"no secret's name":  {with(func(c *windlassv1.AnalysisCheck) { c.Webhook.SigningSecret = "Hunter2!" }), "webhook.signingSecret"},
		"a pause too short": {with(func(c *windlassv1.AnalysisCheck) { c.Interval = durationpb.New(6 * time.Minute) }), "interval"},
	} {
		t.Run(name, func(t *testing.T) {
			p := canary(&windlassv1.CanaryStep{Weight: 10, Pause: "5m"})
			p.Analysis = []*windlassv1.AnalysisCheck{c.check}
			_, err := w.deployBy("chat", p)
			refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "rollout.analysis[0]."+c.field)
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
	p := &windlassv1.RolloutPolicy{Strategy: 1, Analysis: []*windlassv1.AnalysisCheck{hookAt(url)}}
	_, err := w.deployBy("chat", p)
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "rollout.analysis[0]")
	p.Waves = []*windlassv1.Wave{{BakeTime: durationpb.New(time.Hour)}}
	_, err = w.deployBy("chat", p)
	require.NoError(t, err, "a webhook needs no metrics, and can decide while waves bake")
}

func TestWebHook_AddressThatMayNotBeCalledIsRefused(t *testing.T) {
	w := setup(t, func(cfg *api.Config) {
		cfg.AllowsHookAt = func(a netip.Addr) bool { return !a.IsLoopback() }
	})
	deploy := func(check *windlassv1.AnalysisCheck) error {
		p := canary(&windlassv1.CanaryStep{Weight: 10, Pause: "5m"})
		p.Analysis = []*windlassv1.AnalysisCheck{check}
		_, err := w.deployBy("chat", p)
		return err
	}
	for _, url := range []string{"http://127.0.0.1:80/x", "https://[::1]/x"} {
		refused(t, deploy(hookAt(url)), connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "rollout.analysis[0].webhook.url")
	}
	signed := hookAt("https://198.51.100.1/x")
	signed.Webhook.SigningSecret = "checks"
	refused(t, deploy(signed), connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_SECRET, "rollout.analysis[0].webhook.signingSecret")
	w.setSecret("checks", "hunter2")
	require.NoError(t, deploy(signed))
}

func TestWebHook_IsShownWithItsDefaults(t *testing.T) {
	w := setup(t)
	p := canary(&windlassv1.CanaryStep{Weight: 50, Pause: "1h"})
	p.Analysis = []*windlassv1.AnalysisCheck{hookAt("https://hook.test/smoke")}
	for _, arg := range []string{"a", "b"} {
		_, err := w.deployBy("chat", p, args(arg))
		require.NoError(t, err)
		w.settle("chat")
	}
	_, progress := w.progress("chat")
	c := progress.GetPolicy().GetAnalysis()[0]
	require.Equal(t, []time.Duration{time.Minute, 5 * time.Second}, []time.Duration{c.GetInterval().AsDuration(), c.GetWebhook().GetTimeout().AsDuration()})
	require.Nil(t, c.Window, "a webhook gets no default for the window")
}

func nan() float64 {
	zero := 0.0
	return zero / zero
}

func TestAnalysis_WithoutPrometheusUsesGateways(t *testing.T) {
	w := setup(t)
	p := canary(&windlassv1.CanaryStep{Weight: 10, Pause: "5m"})
	p.Analysis = []*windlassv1.AnalysisCheck{{Template: errorRate, Max: new(0.1)}}
	_, err := w.deployBy("chat", p)
	require.NoError(t, err)
	for _, c := range []*windlassv1.AnalysisCheck{{Template: queueLength, Max: new(3.0)}, {Name: "mine", Query: "up", Max: new(1.0)}} {
		p.Analysis = append(p.Analysis[:1], c)
		_, err = w.deployBy("chat", p)
		refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "rollout.analysis[1]")
	}
}

func TestAnalysis_IsShownWithDefaultsAndProgress(t *testing.T) {
	w := setup(t, readsMetrics)
	p := canary(&windlassv1.CanaryStep{Weight: 50, Pause: "1h"})
	p.Analysis = []*windlassv1.AnalysisCheck{{Template: errorRate, Max: new(0.1)}}
	for _, arg := range []string{"a", "b"} {
		_, err := w.deployBy("chat", p, args(arg))
		require.NoError(t, err)
		w.settle("chat")
	}
	_, progress := w.progress("chat")
	c := progress.GetPolicy().GetAnalysis()[0]
	require.Equal(t, "error-rate", c.GetName())
	require.Equal(t, []any{int32(10), time.Minute, 5 * time.Minute}, []any{c.GetMinSamples(), c.GetInterval().AsDuration(), c.GetWindow().AsDuration()})
	var shown []*windlassv1.CheckProgress
	for _, wave := range progress.GetWaves() {
		for _, g := range wave.GetRegions() {
			shown = append(shown, g.GetChecks()...)
		}
	}
	require.Len(t, shown, 1)
	require.Equal(t, windlassv1.CheckProgress_STATE_WAITING, shown[0].GetState())
	require.Nil(t, shown[0].Figure)
	require.Greater(t, shown[0].GetDueAt(), time.Now().UnixMilli())
}
