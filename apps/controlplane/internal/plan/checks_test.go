package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// scriptAnalysis reads checks in a script's short form.
func scriptAnalysis(t *testing.T, text string) (out []*windlassv1.AnalysisCheck) {
	for _, one := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' }) {
		parts := strings.Split(one, "/")
		c := &windlassv1.AnalysisCheck{Name: parts[0]}
		name := "TEMPLATE_" + strings.ToUpper(strings.ReplaceAll(parts[0], "-", "_"))
		if n, ok := windlassv1.AnalysisCheck_Template_value[name]; ok {
			c.Template = windlassv1.AnalysisCheck_Template(n)
		} else {
			c.Query = `sum(` + parts[0] + `{{{selector}}})`
		}
		for _, setting := range parts[1:] {
			key, value, _ := strings.Cut(setting, "=")
			n, err := strconv.ParseFloat(value, 64)
			wait, notWait := time.ParseDuration(value)
			require.True(t, err == nil || notWait == nil, setting)
			if c.VersusOld == nil && (key == "ratio" || key == "difference") {
				c.VersusOld = &windlassv1.VersusOld{}
			}
			switch key {
			case "max":
				c.Max = &n
			case "min":
				c.Min = &n
			case "samples":
				c.MinSamples = int32(n)
			case "ratio":
				c.VersusOld.MaxRatio = &n
			case "difference":
				c.VersusOld.MaxDifference = &n
			case "failures":
				c.FailureLimit = int32(n)
			case "interval":
				c.Interval = durationpb.New(wait)
			case "hold":
				c.HoldLimit = durationpb.New(wait)
			case "hook":
				c.Query, c.Webhook = "", &windlassv1.WebHook{Url: "https://hook.test", Timeout: durationpb.New(wait)}
			default:
				t.Fatalf("unknown setting %q of a check", key)
			}
		}
		analysis.WithDefaults(c)
		out = append(out, c)
	}
	return out
}

// figures makes measurements of the check return the figures in the script.
func (w *simulation) figures(check string, opts map[string]string) {
	if w.answers == nil {
		w.answers = map[string]analysis.Figures{}
	}
	delete(w.answers, check)
	f := analysis.Figures{Problem: opts["problem"]}
	for key, to := range map[string]**float64{"new": &f.New, "samples": &f.NewSamples, "old": &f.Old, "oldsamples": &f.OldSamples} {
		if opts[key] != "" {
			n, err := strconv.ParseFloat(opts[key], 64)
			require.NoError(w.t, err)
			*to = &n
		}
	}
	if verdict := opts["verdict"]; verdict != "" {
		said, _, err := analysis.ParseAnswer(fmt.Appendf(nil, `{"verdict": %q, "message": %q}`, verdict, opts["says"]))
		require.NoError(w.t, err)
		f.Answer = said
	}
	if len(opts) > 1 { // the check's name is one of them
		w.answers[check] = f
	}
}

func describeChecks(b *strings.Builder, wave model.WaveProgress) {
	for _, r := range wave.Regions {
		for _, check := range r.Checks {
			fmt.Fprintf(b, "    %s %s: %s", r.RegionID, check.Name, strings.ToLower(strings.TrimPrefix(check.State.String(), "STATE_")))
			if check.Failures > 0 {
				fmt.Fprintf(b, " failures=%d", check.Failures)
			}
			b.WriteString("\n")
		}
	}
}

// take measures the due checks, if there are answers, and reports whether there were any.
func (w *simulation) take(out Output) bool {
	w.asked = out.Measure
	w.measured = nil
	for _, m := range out.Measure {
		if f, ok := w.answers[m.Check]; ok {
			w.measured = append(w.measured, Measurement{RegionID: m.RegionID, Check: m.Check, Since: m.Since, At: w.now, Figures: f})
		}
	}
	return len(w.measured) > 0
}

// merge merges first, whose measurements were requested, with the output of the step after the measurement.
func (w *simulation) merge(first Output) Output {
	second := w.step()
	second.History = append(slices.Clone(first.History), second.History...)
	second.Deployments = append(slices.Clone(first.Deployments), second.Deployments...)
	second.Topology = append(slices.Clone(first.Topology), second.Topology...)
	second.Routes = append(slices.Clone(first.Routes), second.Routes...)
	if second.App == nil {
		second.App = first.App
	}
	if second.RolloutState == nil {
		second.RolloutState = first.RolloutState
	}
	if second.Rollout == nil {
		second.Rollout = first.Rollout
	}
	return second
}

func TestChecks_AskPrometheusOnlyWhatIsDue(t *testing.T) {
	w := newSimulation(t, "us")
	w.policy(&windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "1",
		Steps:    []*windlassv1.CanaryStep{{Weight: 50, Pause: "5m"}},
		Analysis: scriptAnalysis(t, "queue-length/max=3/ratio=2/interval=1m"),
	})
	w.app.Name = "chat"
	w.deploy(spec(2, "us"))
	w.settle()
	w.deploy(spec(2, "us"))
	for range 10 {
		w.step()
		w.obey("us")
	}
	require.Empty(t, w.asked)
	require.Equal(t, w.now+60_000, w.rolloutState.Progress.Waves[0].Regions[0].Checks[0].DueAt)
	w.now += 60_000
	w.step()
	require.Len(t, w.asked, 1)
	q := w.asked[0].Queries
	series := `{__name__=~"vllm:num_requests_waiting|sglang:num_queue_reqs|tgi_queue_size",windlass_deployment="v2",windlass_region="us"}[60s]`
	require.Equal(t, "avg(avg_over_time("+series+"))", q.New)
	require.Equal(t, "sum(count_over_time("+series+"))", q.NewSamples)
	require.Contains(t, q.Old, `windlass_deployment="v1"`)
	require.NotEmpty(t, q.OldSamples)
	// There is no measurement. The planner soon requests it again, and the check holds meanwhile.
	require.Equal(t, w.now+minPoll, w.next)

	// A measurement of another step, or from before it was due, is ignored.
	at := w.asked[0]
	zero := 0.0
	for _, late := range []Measurement{
		{RegionID: "us", Check: at.Check, Since: at.Since - 1, At: w.now},
		{RegionID: "us", Check: at.Check, Since: at.Since, At: w.now - 1},
		{RegionID: "eu", Check: at.Check, Since: at.Since, At: w.now},
		{RegionID: "us", Check: "other", Since: at.Since, At: w.now},
	} {
		late.Figures = analysis.Figures{New: &zero, NewSamples: &zero}
		w.measured = []Measurement{late}
		require.False(t, Next(w.input(), w.now).Changed())
	}
}

func TestChecks_BeyondTheBoundOfAStepAreMeasuredNext(t *testing.T) {
	var regions []string
	for i := range MaxRegions {
		regions = append(regions, "r"+strconv.Itoa(i))
	}
	w := newSimulation(t, regions...)
	w.policy(&windlassv1.RolloutPolicy{
		MaxSurge: "1", Waves: []*windlassv1.Wave{{MaxParallel: MaxRegions, BakeTime: durationpb.New(time.Minute)}},
		Analysis: scriptAnalysis(t, "queue-length/max=3/interval=1m,gpu-use/max=0.9/interval=1m,other/max=1/interval=1m"),
	})
	w.deploy(spec(1, regions...))
	w.settle()
	w.deploy(spec(1, regions...))
	for range 10 {
		w.step()
		for _, r := range regions {
			w.obey(r)
		}
	}
	w.now += 60_000
	most := 0
	for range 5 {
		for _, check := range []string{"queue-length", "gpu-use", "other"} {
			w.figures(check, map[string]string{check: "yes", "new": "0.5", "samples": "100"})
		}
		out := Next(w.input(), w.now)
		most = max(most, len(out.Measure))
		w.step()
		w.now += minPoll
	}
	require.Equal(t, MaxMeasure, most)
	require.Equal(t, "v2", w.app.LiveDeploymentID)
}

func TestChecks_ErrorOfASourceIsShortAndReadable(t *testing.T) {
	require.Equal(t, "fine", cleanText("fine"))
	long := cleanText("x" + strings.Repeat("é", maxSaid))
	require.LessOrEqual(t, len(long), maxSaid+len("\uFFFD..."))
	require.True(t, utf8.ValidString(long))
	require.True(t, utf8.ValidString(cleanText("\xff\xfe")))
}

func TestChecks_MeasuredTogetherAreDueTogether(t *testing.T) {
	w := newSimulation(t, "us")
	w.policy(&windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "1", Steps: []*windlassv1.CanaryStep{{Weight: 50, Pause: "1h"}},
		Analysis: scriptAnalysis(t, "queue-length/max=3/interval=1m,gpu-use/max=1/interval=1m"),
	})
	for range 2 {
		w.deploy(spec(2, "us"))
		w.settle()
	}
	w.now += 60_000
	w.step()
	require.Len(t, w.asked, 2)
	n := 0.5
	for i, m := range w.asked {
		w.measured = append(w.measured, Measurement{
			RegionID: m.RegionID, Check: m.Check, Since: m.Since, At: w.now + int64(i)*700,
			Figures: analysis.Figures{New: &n, NewSamples: new(100.0)},
		})
	}
	w.now += 1000
	w.step()
	checks := w.rolloutState.Progress.Waves[0].Regions[0].Checks
	require.Equal(t, checks[0].DueAt, checks[1].DueAt)
}

// drawAnalysis draws checks of one figure, by itself or against the old version's.
func drawAnalysis(t *rapid.T) (out []*windlassv1.AnalysisCheck) {
	for i := range rapid.IntRange(0, 2).Draw(t, "checks") {
		limit := 0.5
		c := &windlassv1.AnalysisCheck{
			Name: "c" + strconv.Itoa(i), Query: "q{{{selector}}}", FailureLimit: rapid.Int32Range(0, 2).Draw(t, "failures"),
			Interval: durationpb.New(time.Duration(rapid.IntRange(1, 60).Draw(t, "interval")) * time.Second),
		}
		switch rapid.IntRange(0, 3).Draw(t, "bound") {
		case 0:
			c.Max = &limit
		case 1:
			c.VersusOld = &windlassv1.VersusOld{MaxDifference: &limit}
		case 2:
			c.Max, c.VersusOld = &limit, &windlassv1.VersusOld{MaxRatio: &limit}
		case 3:
			c.Query, c.Webhook = "", &windlassv1.WebHook{Url: "https://hook.test"}
		}
		if rapid.Bool().Draw(t, "limited") {
			c.HoldLimit = durationpb.New(time.Minute)
		}
		out = append(out, c)
	}
	return out
}

// answer sets how due checks are measured from now on: 0 by the version's quality, 1 not at all, 2 without a figure.
func (f *stagedSimulation) answer(how int) {
	f.answers = map[string]analysis.Figures{}
	good, poor, old := 0.1, 0.9, 0.3
	figures := analysis.Figures{New: &good, Old: &old, Answer: &analysis.Answer{Verdict: analysis.Passed}}
	if f.poor["v"+strconv.Itoa(int(f.app.LatestVersion))] {
		figures.New, figures.Answer = &poor, &analysis.Answer{Verdict: analysis.Failed}
	}
	if how == 2 {
		figures = analysis.Figures{Problem: "away"}
	}
	for _, c := range []string{"c0", "c1"} {
		if how != 1 {
			f.answers[c] = figures
		}
	}
}

// TestChecks_PoorVersionIsNeverLiveProperty requires that a version with bad figures goes back, whatever else happens,
// even if regions are scaled to zero and back. Without promotions and skipped bakes, the figures alone decide.
func TestChecks_PoorVersionIsNeverLiveProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		policy := drawPolicy(t)
		if policy.Strategy == windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN && policy.Promotion == strategy.Manual {
			policy.Promotion = "auto"
		}
		for _, s := range policy.Steps {
			s.Pause = ""
		}
		limit := 0.5
		check := &windlassv1.AnalysisCheck{Name: "c0", Query: "q", Max: &limit, Interval: durationpb.New(30 * time.Second)}
		if rapid.Bool().Draw(t, "hook") {
			check.Query, check.Max, check.Webhook = "", nil, &windlassv1.WebHook{Url: "https://hook.test"}
		}
		policy.Analysis = []*windlassv1.AnalysisCheck{check}
		if len(policy.Waves) == 0 {
			policy.Waves = []*windlassv1.Wave{{}}
		}
		for _, w := range policy.Waves {
			w.BakeTime = durationpb.New(max(time.Second, w.GetBakeTime().AsDuration()))
		}
		f := newStagedSimulation(t, policy)
		// Each region under analysis has the old version and will have the new one.
		f.poor[f.deploy(spec(2, "eu", "us"))] = true
		for range rapid.IntRange(0, 60).Draw(t, "length") {
			f.answer(rapid.IntRange(0, 2).Draw(t, "answers"))
			region := rapid.SampledFrom(places).Draw(t, "region")
			switch rapid.IntRange(0, 8).Draw(t, "event") {
			case 7, 8:
				if _, st := progressIn(f.rolloutState.Progress, region); st != nil && isForward(st.State) {
					n := rapid.SampledFrom([]int32{0, 2}).Draw(t, "size")
					f.zeroed = f.zeroed || n == 0
					Resize(f.rolloutState.Progress, AskedIn(region, n))
				}
			case 0:
				f.now += rapid.Int64Range(0, 120_000).Draw(t, "pause")
			case 1:
				f.setRegion(region, func(r *model.Region) { r.Status = windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE })
			case 2:
				f.setRegion(region, func(r *model.Region) {
					r.Status, r.LastReportAt = windlassv1.RegionStatus_REGION_STATUS_CONNECTED, f.now
				})
			case 3:
				_, _ = Pause(f.rolloutState.Progress, "ada", "", f.now)
			case 4:
				_, _ = Resume(f.rolloutState.Progress)
			default:
				f.obeyAll(region)
			}
			f.step()
		}
		Resize(f.rolloutState.Progress, AskedIn("", 2)) // otherwise people would have to decide whether it goes on without replicas
		f.heal()
		require.Equal(t, "v1", f.app.LiveDeploymentID)
		require.NotEqual(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED, f.rol[1].Status)
	})
}

// Instances that a version took over have figures under the name of the version for which they were made. No other
// version serves next to them, so nothing can be compared.
func TestChecks_KeptInstancesAreMeasuredByTheirName(t *testing.T) {
	w := newSimulation(t, "us")
	w.policy(&windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "1", Steps: []*windlassv1.CanaryStep{{Weight: 50, Pause: "1m"}},
		Analysis: scriptAnalysis(t, "queue-length/max=3/interval=1m,gpu-use/ratio=1.5/interval=1m,smoke/hook=5s/interval=1m"),
	})
	pass := func() (asked []Measure) {
		t.Helper()
		w.now += 60_000
		w.step()
		asked = w.asked
		for _, m := range asked {
			w.measured = append(w.measured, Measurement{
				RegionID: m.RegionID, Check: m.Check, Since: m.Since, At: w.now,
				Figures: analysis.Figures{New: new(0.5), NewSamples: new(100.0), Old: new(0.5), OldSamples: new(100.0), Answer: &analysis.Answer{Verdict: analysis.Passed}},
			})
		}
		w.settle()
		return asked
	}
	w.deploy(spec(2, "us"))
	w.settle()
	for _, want := range []struct{ version, made string }{{"v2", "v2|v1"}, {"v3", "v3|v1|v2"}} {
		w.deployAlike(spec(2, "us"))
		w.settle()
		asked := pass()
		require.Equal(t, want.version, w.app.LiveDeploymentID)
		require.Len(t, asked, 2, "nothing is compared")
		require.Contains(t, asked[0].Queries.New, `windlass_deployment=~"`+want.made+`",windlass_region="us"`)
		require.Empty(t, asked[0].Queries.Old)
		require.Equal(t, analysis.StageStep, asked[1].Hook.Call.Stage)
	}

	w.deploy(spec(2, "us"))
	w.settle()
	w.now += 60_000
	w.step()
	require.Len(t, w.asked, 3)
	require.Contains(t, w.asked[0].Queries.New, `windlass_deployment="v4",windlass_region="us"`)
	require.Contains(t, w.asked[1].Queries.Old, `windlass_deployment=~"v3|v1|v2",windlass_region="us"`)
}
