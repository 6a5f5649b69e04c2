package appspec

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func analysisWithDefaults(checks []*windlassv1.AnalysisCheck) {
	for _, c := range checks {
		analysis.WithDefaults(c)
		c.Interval = durationpb.New(analysis.Interval(c))
		if h := c.GetWebhook(); h != nil {
			h.Timeout = durationpb.New(analysis.Timeout(h))
		} else {
			c.Window = durationpb.New(analysis.Window(c))
		}
	}
}

// checkAnalysis validates each check of the policy, and requires that the rollout leaves time to measure it.
func checkAnalysis(p *windlassv1.RolloutPolicy, field string) error {
	names := map[string]bool{}
	for i, c := range p.GetAnalysis() {
		at := fmt.Sprintf("%s[%d]", field, i)
		if err := checkQuery(c, at); err != nil {
			return err
		}
		if err := checkBounds(c, at); err != nil {
			return err
		}
		if n := analysis.Name(c); names[n] {
			return apierr.InvalidFix(at+".name", fmt.Sprintf("two checks are named %q", n), "Give each a name of its own.")
		}
		names[analysis.Name(c)] = true
		if err := checkWhen(p, c, at); err != nil {
			return err
		}
	}
	return nil
}

// checkQuery validates what the check measures.
func checkQuery(c *windlassv1.AnalysisCheck, at string) error {
	template := c.GetTemplate() != windlassv1.AnalysisCheck_TEMPLATE_UNSPECIFIED
	if c.GetWebhook() != nil {
		return checkHook(c, at)
	}
	switch {
	case template && c.GetQuery() != "":
		return apierr.InvalidFix(at+".query", "the check has a template and a query", "Use one of the two.")
	case !template && c.GetQuery() == "":
		return apierr.InvalidFix(at+".template", "the check has no template, query or webhook",
			"Set a template (error-rate, latency-p95, time-to-first-token, queue-length, gpu-use), a query in PromQL, or a webhook.")
	case !template && c.GetName() == "":
		return apierr.InvalidFix(at+".name", "a check with a query has no name", "Set a name that says what the check measures.")
	case template && c.GetSamplesQuery() != "":
		return apierr.InvalidFix(at+".samplesQuery", "the template counts its samples itself", "Leave samplesQuery out, or write your own query instead of the template.")
	case !template && c.GetMinSamples() > 0 && c.GetSamplesQuery() == "":
		return apierr.InvalidFix(at+".minSamples", "nothing counts the samples of a query", "Add a samplesQuery, such as sum(increase(requests_total{{{selector}}}[{{window}}])).")
	case c.GetSamplesQuery() != "" && c.GetMinSamples() == 0:
		return apierr.InvalidFix(at+".samplesQuery", "samples are counted, but there is no minimum", "Set minSamples.")
	}
	for _, f := range []struct{ name, query string }{{"query", c.GetQuery()}, {"samplesQuery", c.GetSamplesQuery()}} {
		if _, err := analysis.Expand(f.query, analysis.Subject{}); err != nil {
			return apierr.InvalidFix(at+"."+f.name, err.Error(), "The variables are {{"+strings.Join(analysis.Variables(), "}}, {{")+"}}.")
		}
	}
	if c.GetQuery() != "" && analysis.Compares(c) && !analysis.NamesVersion(c.GetQuery()) {
		return apierr.InvalidFix(at+".query", "the query gives the same value for both versions, so versusOld would compare it with itself",
			"Select the version's series with {{selector}}, {{deployment}} or {{version}}.")
	}
	return nil
}

// checkHook validates a check whose verdict comes from a webhook.
func checkHook(c *windlassv1.AnalysisCheck, at string) error {
	for _, other := range []struct {
		name string
		set  bool
	}{
		{"template", c.GetTemplate() != windlassv1.AnalysisCheck_TEMPLATE_UNSPECIFIED},
		{"query", c.GetQuery() != ""},
		{"samplesQuery", c.GetSamplesQuery() != ""},
		{"minSamples", c.GetMinSamples() != 0},
		{"window", c.GetWindow() != nil},
		{"max", c.Max != nil},
		{"min", c.Min != nil},
		{"versusOld", c.GetVersusOld() != nil},
	} {
		if other.set {
			return apierr.InvalidFix(at+"."+other.name, other.name+" applies to measured values, but a webhook decides the verdict itself", "Leave it out, or write a separate check for it.")
		}
	}
	if c.GetName() == "" {
		return apierr.InvalidFix(at+".name", "a check with a webhook has no name", "Set a name that says what the webhook checks.")
	}
	if _, err := analysis.ParseHookURL(c.GetWebhook().GetUrl()); err != nil {
		return apierr.InvalidFix(at+".webhook.url", err.Error(), "Write for example https://checks.example.com/smoke, and set signingSecret to sign calls.")
	}
	return nil
}

// checkBounds validates the bounds of the measured value.
func checkBounds(c *windlassv1.AnalysisCheck, at string) error {
	if !analysis.Absolute(c) && !analysis.Compares(c) {
		return apierr.InvalidFix(at, "nothing limits the value: the check could not fail", "Set max, min, or versusOld.maxRatio, for example 1.2.")
	}
	v := c.GetVersusOld()
	for _, b := range []struct {
		name        string
		most, least *float64
	}{
		{"max", c.Max, c.Min},
		{"versusOld.maxRatio", copyVersus(v).MaxRatio, copyVersus(v).MinRatio},
		{"versusOld.maxDifference", copyVersus(v).MaxDifference, copyVersus(v).MinDifference},
	} {
		if b.most != nil && b.least != nil && *b.most < *b.least {
			return apierr.InvalidFix(at+"."+b.name, fmt.Sprintf("no value is both at most %g and at least %g", *b.most, *b.least), "Swap the two, or leave one out.")
		}
	}
	return nil
}

func copyVersus(v *windlassv1.VersusOld) *windlassv1.VersusOld {
	if v == nil {
		return &windlassv1.VersusOld{}
	}
	return v
}

// checkWhen fails if a step or a bake ends before the first measurement of the check, or if the check is never
// measured.
func checkWhen(p *windlassv1.RolloutPolicy, c *windlassv1.AnalysisCheck, at string) error {
	interval := analysis.Interval(c)
	bakes := false
	for i, w := range p.GetWaves() {
		bake := w.GetBakeTime().AsDuration()
		bakes = bakes || bake > 0
		if bake > 0 && bake < interval && analysis.Absolute(c) {
			return apierr.InvalidFix(at+".interval", fmt.Sprintf("the check is measured every %s, but waves[%d] bakes for %s, which ends before the first measurement", interval, i, bake),
				"Measure more often, or bake longer.")
		}
	}
	steps := strategy.Of(p).Steps(p)
	for _, s := range steps {
		switch {
		case !s.Manual && s.Pause > 0 && s.Pause < interval:
			return apierr.InvalidFix(at+".interval", fmt.Sprintf("the check is measured every %s, but %s ends after %s, before the first measurement", interval, s.WaitField, s.Pause),
				"Measure more often, or wait longer at the step.")
		case s.Weight == strategy.Full && analysis.Compares(c):
			return apierr.InvalidFix(at+".versusOld", fmt.Sprintf("at a step of %s, whose wait is %s, the old version gets no traffic: there is nothing to compare with", s, s.WaitField),
				"Remove the step of 100 %, because the new version gets all traffic after the last step anyway. Or use max or min.")
		}
	}
	if len(steps) > 0 && steps[0].Whole && steps[0].Weight == 0 && analysis.NeedsRequests(c) {
		return apierr.InvalidFix(at+".template", "initialWeight is 0, so the new version gets no requests before it is promoted: the check would hold the promotion for ever",
			"Set initialWeight to 1 or more, or use a query that needs no requests from users.")
	}
	if len(steps) == 0 {
		if !bakes {
			return apierr.InvalidFix(at, "the check would never be measured: the strategy has no steps, and no wave bakes",
				"Give waves a bakeTime, or use strategy "+strategy.WithSteps()+".")
		}
		if !analysis.Absolute(c) {
			return apierr.InvalidFix(at+".versusOld", "when a wave bakes, the old version no longer serves: there is nothing to compare with",
				"Use max or min, or strategy "+strategy.WithSteps()+".")
		}
	}
	return nil
}
