package rollout_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// steps returns how many steps the harness's workflow has taken.
func (h *harness) steps() (n uint64) {
	families, err := h.registry.Gather()
	require.NoError(h.t, err)
	for _, f := range families {
		if f.GetName() == "deployment_workflow_step_duration_seconds" {
			n = f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	return n
}

// say writes a person's change of the rollout in flight.
func (h *harness) say(appID string, word func(*model.Progress)) {
	now := time.Now().UnixMilli()
	h.update(func(tx store.Tx) error {
		if _, err := tx.LockApp(h.ws, appID); err != nil {
			return err
		}
		s, err := tx.GetRolloutStates([]string{appID})
		if err != nil {
			return err
		}
		word(s[0].Progress)
		if err := tx.PutRolloutState(s[0]); err != nil {
			return err
		}
		return tx.Wake([]string{appID}, now, now)
	})
}

func promote(t *testing.T) func(*model.Progress) {
	return func(c *model.Progress) {
		_, err := plan.Promote(c, "ada", false, time.Now().UnixMilli())
		require.NoError(t, err)
	}
}

// TestHold_CostsAStepAMinute checks that a rollout that waits uses no retry and meets no deadline, whatever it waits
// for. Meanwhile the workflow may die and come back.
func TestHold_CostsAStepAMinute(t *testing.T) {
	for name, c := range map[string]struct {
		policy *windlassv1.RolloutPolicy
		// on ends the wait. nil: the policy's time ends it.
		on func(*testing.T) func(*model.Progress)
	}{
		"a canary held by hand": {on: promote, policy: &windlassv1.RolloutPolicy{
			Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "1", Waves: []*windlassv1.Wave{{MaxParallel: 2}},
			Steps: []*windlassv1.CanaryStep{{Weight: 50, Pause: "manual"}},
		}},
		"a green version that waits for promotion": {on: promote, policy: &windlassv1.RolloutPolicy{
			Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, Promotion: "manual", Waves: []*windlassv1.Wave{{MaxParallel: 2}},
		}},
		"a wave that bakes": {policy: &windlassv1.RolloutPolicy{
			MaxSurge: "1", Waves: []*windlassv1.Wave{{MaxParallel: 2, BakeTime: durationpb.New(time.Hour + time.Minute)}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, nil, "us-east-1", "eu-west-1")
				stop := h.runInMemory()
				h.policy = c.policy
				app := h.newApp("chat")
				first := h.deploy(app, nil)
				h.awaitStatus(app, ready)

				second := h.deploy(app, nil)
				began := time.Now()
				time.Sleep(time.Minute)
				steps, rol := h.steps(), h.app(app).RolloutID
				require.NotEmpty(t, rol, "it waits")
				require.Equal(t, first, h.app(app).LiveDeploymentID)

				time.Sleep(30 * time.Minute)
				stop()
				time.Sleep(time.Minute)
				h.runInMemory()
				time.Sleep(29 * time.Minute)
				require.Equal(t, rol, h.app(app).RolloutID)
				require.Equal(t, first, h.app(app).LiveDeploymentID)
				require.LessOrEqual(t, h.steps()-steps, uint64(75))

				if c.on != nil {
					h.say(app, c.on(t))
				}
				h.await("it is live", 5*time.Minute, func() bool { return h.app(app).LiveDeploymentID == second })
				if c.on == nil {
					require.Less(t, time.Since(began), time.Hour+2*time.Minute, "no later than the policy says")
				}
				h.await("it is over", time.Hour, func() bool { return h.app(app).RolloutID == "" })
			})
		})
	}
}
