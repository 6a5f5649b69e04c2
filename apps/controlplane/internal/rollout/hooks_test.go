package rollout_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// judge is a webhook without a network.
type judge struct {
	mu    sync.Mutex
	says  analysis.Verdict
	calls []analysis.Call
	// dies ends the step that calls before it stores the verdict.
	dies func()
}

func (j *judge) Measure(_ context.Context, due []plan.Measure) (out []plan.Measurement) {
	j.mu.Lock()
	dies := j.dies
	for _, m := range due {
		j.calls = append(j.calls, m.Hook.Call)
		out = append(out, plan.Measurement{
			RegionID: m.RegionID, Check: m.Check, Since: m.Since, At: time.Now().UnixMilli(),
			Figures: analysis.Figures{Answer: &analysis.Answer{Verdict: j.says, Message: "so it is"}},
		})
	}
	j.mu.Unlock()
	if dies != nil {
		dies()
	}
	return out
}

func (j *judge) set(f func(*judge)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f(j)
}

func (j *judge) called() []analysis.Call {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.calls)
}

// judged is a policy whose one step lasts two minutes and is judged each minute, by a figure
// and by a webhook.
func judged() *windlassv1.RolloutPolicy {
	p := analysed(0)
	p.Analysis = append(p.Analysis, &windlassv1.AnalysisCheck{
		Name: "smoke", Interval: durationpb.New(time.Minute), FailureLimit: 1, Webhook: &windlassv1.WebHook{Url: "https://hook.test"},
	})
	return p
}

func TestWebHooks_CountWithFigures(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		h.policy = judged()
		h.gauge.set(func(g *gauge) { g.figure = new(0.1) })
		app := h.newApp("chat")
		first := h.deploy(app, nil)
		h.awaitStatus(app, ready)
		require.Empty(t, h.judge.called(), "a first deployment is not analysed")

		second := h.deploy(app, nil)
		h.await("the webhook holds it", 10*time.Minute, func() bool { return len(h.judge.called()) >= 6 })
		require.Equal(t, first, h.app(app).LiveDeploymentID, "an inconclusive check does not let it go on")
		for _, c := range h.judge.called() {
			require.Equal(t, []any{"chat", second, first, analysis.StageStep}, []any{c.App.Name, c.Deployment.ID, c.OldDeployment.ID, c.Stage})
		}
		h.judge.set(func(j *judge) { j.says = analysis.Passed })
		h.await("it is live", 10*time.Minute, func() bool { return h.app(app).LiveDeploymentID == second })

		h.judge.set(func(j *judge) { j.says = analysis.Failed })
		bad := h.deploy(app, nil)
		h.await("it is back", 10*time.Minute, func() bool { return h.app(app).RolloutID == "" })
		require.Equal(t, plan.ReasonAnalysisFailed, h.deployment(bad).Reason)
		require.Contains(t, h.deployment(bad).Message, "smoke: so it is; failures: 2, limit 1")
		h.requireAlone(app, second)
	})
}

func TestWebHook_IsCalledWithTheSameIDAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil, "us-east-1")
		h.policy = judged()
		h.policy.Analysis, h.policy.Steps[0].Pause = h.policy.Analysis[1:], "5m"
		h.runInMemory()
		app := h.newApp("chat")
		h.deploy(app, nil)
		h.awaitStatus(app, ready)
		deaths := 0
		h.judge.set(func(j *judge) {
			j.says = analysis.Passed
			j.dies = func() {
				if deaths++; deaths <= 3 {
					panic("killed")
				}
			}
		})
		inner := h.stepper.Step
		survived := rollout.Step(func(ctx context.Context, id string) (err error) {
			defer func() {
				if recover() != nil {
					err = context.Canceled
				}
			}()
			return inner(ctx, id)
		})
		h.setStep(survived)
		second := h.deploy(app, nil)
		h.await("it is live", 20*time.Minute, func() bool { return h.app(app).LiveDeploymentID == second })
		calls := h.judge.called()
		require.Greater(t, len(calls), 4)
		for _, c := range calls[1:4] {
			require.Equal(t, calls[0], c, "a call without a stored answer is repeated unchanged")
		}
		require.NotEqual(t, calls[3].ID, calls[4].ID)
		require.Equal(t, int32(2), calls[4].Attempt)
	})
}
