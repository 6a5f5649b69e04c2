package cli

import (
	"bytes"
	"slices"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// renderRollout returns the table of a rollout.
func renderRollout(t *testing.T, ro *windlassv1.Rollout) string {
	t.Helper()
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	rolloutTable(w, &windlassv1.WatchAppResponse{App: &windlassv1.App{Name: "echo", Message: "what the workflow says"}, Rollout: ro})
	require.NoError(t, w.Flush())
	return b.String()
}

func TestRolloutStatus_ShowsWhatItWaitsForAndHowToGoOn(t *testing.T) {
	eu := &windlassv1.RegionProgress{
		Region: "eu", State: windlassv1.RegionProgress_STATE_ROLLING, Step: 2, Steps: 2, WaitsForPromotion: true, Replicas: 4,
		Old: &windlassv1.VersionProgress{Version: 1, Replicas: 3, Ready: 3, Weight: 60},
		New: &windlassv1.VersionProgress{Version: 2, Replicas: 2, Ready: 2, Weight: 40},
	}
	ro := &windlassv1.Rollout{
		Version: 2, FromVersion: 1, Status: windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING, CreatedBy: "ada",
		Progress: &windlassv1.RolloutProgress{
			Policy: &windlassv1.RolloutPolicy{
				Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY,
				Steps:    []*windlassv1.CanaryStep{{Replicas: 1, Pause: "10m"}, {Weight: 40, Pause: "manual"}},
			},
			Waves: []*windlassv1.WaveProgress{{Name: "1", State: windlassv1.WaveProgress_STATE_ROLLING, Regions: []*windlassv1.RegionProgress{eu}}},
		},
	}
	text := renderRollout(t, ro)
	require.Contains(t, text, "waits for promotion: windlass rollout promote echo\n")
	require.Contains(t, text, "canary, step 1: 1 replica 10m, step 2: 40% manual, max surge 25%, max unavailable 0\n")
	require.Regexp(t, `eu +step 2 of 2, waits for promotion +3/3 +2/2 +4 +60/40`, text)

	require.NotContains(t, text, "OTHERS")
	eu.Old.Weight, eu.Others = 35, []*windlassv1.VersionProgress{{Version: 7, Replicas: 1, Ready: 1, Weight: 25}}
	text = renderRollout(t, ro)
	require.Regexp(t, `TRAFFIC +OTHERS +SINCE`, text)
	require.Regexp(t, `4 +35/40 +v7 1/1 25% +`, text)
	eu.Old.Weight, eu.Others = 60, nil

	eu.Relapses, eu.RelapseLimit = 2, 5
	require.Regexp(t, `eu +step 2 of 2, waits for promotion, became unready 2 times, limit 5 +3/3`, renderRollout(t, ro))
	eu.Relapses, eu.RelapseLimit = 0, 0

	ro.Progress.PromotionHeld = true
	require.Contains(t, renderRollout(t, ro), "promote echo: an earlier rollout went back")

	eu.Step, eu.WaitsForPromotion, eu.StepUntil = 1, false, time.Now().Add(90*time.Second).UnixMilli()
	text = renderRollout(t, ro)
	require.Regexp(t, `eu +step 1 of 2, 1m\d\ds left`, text)
	require.Contains(t, text, "running: what the workflow says")

	ro.PreviewUrls = []string{"http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000", "http://10.0.0.4:8000", "http://10.0.0.5:8000"}
	require.Regexp(t, `(?m)^Preview: +http://10.0.0.1:8000\n.*2:8000\n.*3:8000\n +and 2 more: -o json$`, renderRollout(t, ro))

	eu.WaitsForCapacitySince = time.Now().Add(-90 * time.Second).UnixMilli()
	require.Regexp(t, `eu +waits for room for 1m3\ds`, renderRollout(t, ro))
}

func TestRolloutStatus_ShowsTheCheckThatHoldsIt(t *testing.T) {
	now := time.Now().UnixMilli()
	region := &windlassv1.RegionProgress{
		Region: "eu", State: windlassv1.RegionProgress_STATE_ROLLING, Step: 1, Steps: 2, StepUntil: now - 1000,
		Checks: []*windlassv1.CheckProgress{
			{
				Name: "error-rate", State: windlassv1.CheckProgress_STATE_FAILED, Figure: new(0.062), OldFigure: new(0.01),
				Samples: new(120.2), OldSamples: new(999.8), Failures: 1, FailureLimit: 2, MeasuredAt: now - 5000, DueAt: now + 55_500,
				Message: "figure 0.062, at most 0.05",
			},
			{
				Name: "latency-p95", State: windlassv1.CheckProgress_STATE_HELD, HeldSince: now - 90_000, MeasuredAt: now - 5000,
				Message: "there is no figure of the new version",
			},
		},
	}
	wave := &windlassv1.WaveProgress{Name: "1", State: windlassv1.WaveProgress_STATE_ROLLING, Regions: []*windlassv1.RegionProgress{region}}
	ro := &windlassv1.Rollout{
		Version: 2, FromVersion: 1, Status: windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING, CreatedBy: "ada",
		Progress: &windlassv1.RolloutProgress{
			Policy: &windlassv1.RolloutPolicy{
				Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, Steps: []*windlassv1.CanaryStep{{Weight: 10}, {Weight: 50}},
				Analysis: []*windlassv1.AnalysisCheck{{Name: "error-rate"}, {Name: "latency-p95"}},
			},
			Waves: []*windlassv1.WaveProgress{wave},
		},
	}
	text := renderRollout(t, ro)
	require.Contains(t, text, "check error-rate, check latency-p95")
	require.Regexp(t, `error-rate +eu +failed +0\.062 +0\.01 +120/1000 +1 of 2 +5s +in 55s +figure 0.062, at most 0.05`, text)
	require.Regexp(t, `latency-p95 +eu +held for 1m30s +- +- +- +0 of 0 +5s +- +there is no figure`, text)
	require.Regexp(t, `Status: +held: latency-p95 in eu for 1m30s: there is no figure of the new version; .windlass rollout promote. goes on`, text)

	wave.State, wave.BakingUntil = windlassv1.WaveProgress_STATE_BAKING, now-1
	require.Contains(t, renderRollout(t, ro), "`windlass rollout skip-bake` goes on")
	wave.BakingUntil = now + 60_000
	require.NotContains(t, renderRollout(t, ro), "held: latency-p95")
}

func TestRolloutStatus_ShowsTheRetainedVersion(t *testing.T) {
	now := time.Now().UnixMilli()
	text := renderRollout(t, &windlassv1.Rollout{
		Version: 2, FromVersion: 1, Status: windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED, CreatedAt: now - 5000, FinishedAt: now,
		Progress: &windlassv1.RolloutProgress{
			RetainedUntil: now + 3_600_000,
			Policy: &windlassv1.RolloutPolicy{
				Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, Promotion: "auto", Retain: durationpb.New(time.Hour),
			},
		},
	})
	require.Regexp(t, `succeeded after 5s: v1 is retained for 59m\d\ds: windlass rollback echo`, text)
	require.Contains(t, text, "blue-green, initial weight 0%, promotion auto, retain 1h00m")
}

// This test leaves out fields that all strategies have, because their texts depend on their values. Other tests cover
// them.
func TestPolicyText_ShowsEveryFieldOfAStrategy(t *testing.T) {
	ofAll := []string{"strategy", "waves", "waitForCapacity", "autoRollback", "deadlines", "startApproval"}
	fields := (&windlassv1.RolloutPolicy{}).ProtoReflect().Descriptor().Fields()
	for value := range windlassv1.RolloutPolicy_Strategy_name {
		for i := range fields.Len() {
			f := fields.Get(i)
			p := &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_Strategy(value)}
			if slices.Contains(ofAll, f.JSONName()) || f.JSONName() == "retain" && p.Strategy == windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN {
				continue
			}
			before := policyText(p)
			m := p.ProtoReflect()
			switch {
			case f.IsList():
				m.Mutable(f).List().AppendMutable()
			case f.Kind() == protoreflect.MessageKind:
				m.Mutable(f)
			case f.Kind() == protoreflect.StringKind:
				m.Set(f, protoreflect.ValueOfString("7"))
			default:
				m.Set(f, protoreflect.ValueOfInt32(7))
			}
			require.NotEqual(t, before, policyText(p), "%s of %s", f.JSONName(), p.Strategy)
		}
	}
}
