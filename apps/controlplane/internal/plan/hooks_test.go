package plan

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// hooked is an app in the region us whose v2 waits at a canary step. A webhook judges v2 every minute, at the step and
// during the bake.
func hooked(t *testing.T) *simulation {
	w := newSimulation(t, "us")
	w.app.Name, w.app.ProjectID, w.app.EnvironmentID = "chat", "prj", "env"
	w.policy(&windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "1",
		Waves: []*windlassv1.Wave{{Name: "first", BakeTime: durationpb.New(5 * time.Minute)}},
		Steps: []*windlassv1.CanaryStep{{Weight: 50, Pause: "5m"}},
		Analysis: []*windlassv1.AnalysisCheck{{
			Name: "smoke", FailureLimit: 1,
			Webhook: &windlassv1.WebHook{Url: "https://hook.test/x", SigningSecret: "key"},
		}},
	})
	for range 2 {
		w.deploy(spec(2, "us"))
		w.settle()
	}
	require.Equal(t, "v1", w.app.LiveDeploymentID)
	return w
}

func TestWebHook_GetsTheFactsThatItJudges(t *testing.T) {
	w := hooked(t)
	w.now += 60_000
	w.step()
	require.Len(t, w.asked, 1)
	st := w.rolloutState.Progress.Waves[0].Regions[0]
	require.Empty(t, w.asked[0].Queries)
	call := analysis.Call{
		ID: analysis.CallID("rol-v2", "us", "smoke", st.StoppedAt, 1), Attempt: 1, Check: "smoke",
		Workspace: analysis.Named{ID: "ws"}, Project: analysis.Named{ID: "prj"}, Environment: analysis.Named{ID: "env"},
		App: analysis.Named{ID: "app", Name: "chat"}, RolloutID: "rol-v2",
		Deployment: analysis.Release{ID: "v2", Version: 2}, OldDeployment: &analysis.Release{ID: "v1", Version: 1},
		Region: "us", Wave: "first", Stage: analysis.StageStep, Step: 1, Since: st.StoppedAt,
	}
	require.Equal(t, &analysis.Hook{
		URL: "https://hook.test/x", Timeout: 5 * time.Second, SigningSecret: "key", Call: call,
	}, w.asked[0].Hook)

	w.figures("smoke", map[string]string{"smoke": "yes", "verdict": "pass"})
	w.now += 300_000
	w.settle()
	require.Equal(t, waveBaking, w.rolloutState.Progress.Waves[0].State)
	w.answers = nil
	w.now += 60_000
	w.step()
	baking := w.rolloutState.Progress.Waves[0].BakingSince
	call.ID = analysis.CallID("rol-v2", "us", "smoke", baking, 1)
	call.Stage, call.Step, call.Since = analysis.StageBake, 0, baking
	require.Equal(t, call, w.asked[0].Hook.Call)
}

func TestWebHook_CallKeepsItsIDUntilItsVerdict(t *testing.T) {
	w := hooked(t)
	var ids []string
	ask := func() analysis.Call {
		w.step()
		require.Len(t, w.asked, 1)
		return w.asked[0].Hook.Call
	}
	w.now += 60_000
	first := ask()
	for range 3 { // the process of each step died before it stored the verdict
		w.now += 5_000
		require.Equal(t, first, ask())
	}
	for attempt := range int32(3) {
		call := ask()
		require.Equal(t, attempt+1, call.Attempt)
		require.NotContains(t, ids, call.ID)
		ids = append(ids, call.ID)
		w.figures("smoke", map[string]string{"smoke": "yes", "problem": "away"})
		w.step()
		w.answers = nil
		w.now += 65_000
	}
	require.Equal(t, ids[0], first.ID)
}
