package rollout_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// gauge is a Prometheus that answers with one figure after some time.
type gauge struct {
	mu     sync.Mutex
	figure *float64
	takes  time.Duration
	asked  int
	// dies ends the step that measures before it writes the result.
	dies func()
}

func (g *gauge) Measure(_ context.Context, due []plan.Measure) (out []plan.Measurement) {
	g.mu.Lock()
	g.asked++
	takes, figure, dies := g.takes, g.figure, g.dies
	g.mu.Unlock()
	time.Sleep(takes)
	if dies != nil {
		dies()
	}
	for _, m := range due {
		out = append(out, plan.Measurement{
			RegionID: m.RegionID, Check: m.Check, Since: m.Since, At: time.Now().UnixMilli(), Figures: analysis.Figures{New: figure},
		})
	}
	return out
}

func (g *gauge) set(f func(*gauge)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(g)
}

func (g *gauge) questions() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked
}

// analysed is a policy whose one step lasts two minutes and is measured each minute.
func analysed(failures int32) *windlassv1.RolloutPolicy {
	return &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "1",
		Waves:    []*windlassv1.Wave{{MaxParallel: 2}},
		Steps:    []*windlassv1.CanaryStep{{Weight: 50, Pause: "2m"}},
		Analysis: []*windlassv1.AnalysisCheck{{Name: "errors", Query: "x", Max: new(0.5), Interval: durationpb.New(time.Minute), FailureLimit: failures}},
	}
}

func (h *harness) checks(appID string) (out []model.CheckProgress) {
	h.view(func(tx store.Tx) error {
		s, err := tx.GetRolloutStates([]string{appID})
		if err != nil || len(s) == 0 || s[0].Progress == nil {
			return err
		}
		for _, w := range s[0].Progress.Waves {
			for _, r := range w.Regions {
				out = append(out, r.Checks...)
			}
		}
		return nil
	})
	return out
}

func TestMeasurement_DecidesBetweenForwardAndBack(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		h.policy = analysed(0)
		app := h.newApp("chat")
		first := h.deploy(app, nil)
		h.awaitStatus(app, ready)
		require.Zero(t, h.gauge.questions(), "a first deployment is not analysed")

		second := h.deploy(app, nil)
		h.await("it is held", 10*time.Minute, func() bool {
			c := h.checks(app)
			return len(c) == 2 && c[0].State == windlassv1.CheckProgress_STATE_HELD && c[1].State == c[0].State
		})
		time.Sleep(time.Hour)
		require.Equal(t, first, h.app(app).LiveDeploymentID, "without a figure it does not go on, however long it waits")
		require.InDelta(t, 64, h.gauge.questions(), 8, "one question a minute for all regions and checks, or two where they drift apart")
		h.gauge.set(func(g *gauge) { g.figure = new(0.1) })
		h.await("it is live", 10*time.Minute, func() bool { return h.app(app).LiveDeploymentID == second })

		h.gauge.set(func(g *gauge) { g.figure = new(0.9) })
		bad := h.deploy(app, nil)
		h.await("it is back", 10*time.Minute, func() bool { return h.app(app).RolloutID == "" })
		require.Equal(t, plan.ReasonAnalysisFailed, h.deployment(bad).Reason)
		require.Contains(t, h.deployment(bad).Message, "figure 0.9, at most 0.5")
		h.requireAlone(app, second)
		require.Contains(t, h.decisions(app), "CheckFailed")
		require.Contains(t, h.decisions(app), "RolloutGoingBack")
	})
}

func TestMeasurement_CountsOnceOverSteps(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		h.policy = analysed(3)
		app := h.newApp("chat")
		h.deploy(app, nil)
		h.awaitStatus(app, ready)
		h.gauge.set(func(g *gauge) { g.figure, g.takes = new(0.9), 5*time.Second })
		h.deploy(app, nil)
		h.await("both regions wait", 10*time.Minute, func() bool { return len(h.checks(app)) == 2 })
		due := max(h.checks(app)[0].DueAt, h.checks(app)[1].DueAt)
		time.Sleep(time.Until(time.UnixMilli(due)))
		// This is as if several processes of the control plane had been woken.
		var steps sync.WaitGroup
		for range 4 {
			steps.Go(func() { require.NoError(t, h.stepper.Step(context.Background(), app)) })
		}
		steps.Wait()
		for _, c := range h.checks(app) {
			require.Equal(t, int32(1), c.Failures)
		}
	})
}

func TestMeasurement_SurvivesACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil, "us-east-1")
		h.policy = analysed(0)
		h.runInMemory()
		app := h.newApp("chat")
		first := h.deploy(app, nil)
		h.awaitStatus(app, ready)
		deaths := 0
		h.gauge.set(func(g *gauge) {
			g.figure = new(0.9)
			g.dies = func() {
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
		bad := h.deploy(app, nil)
		h.await("it is back", 10*time.Minute, func() bool { return h.app(app).RolloutID == "" && h.app(app).LatestVersion == 2 })
		require.Equal(t, plan.ReasonAnalysisFailed, h.deployment(bad).Reason)
		require.Equal(t, 4, deaths)
		require.Equal(t, int32(1), h.checks(app)[0].Failures, "a measurement that was cut off is no failure")
		h.requireAlone(app, first)
	})
}
