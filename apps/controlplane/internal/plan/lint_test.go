package plan

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// rolledTo is an app of four replicas in us whose v2 went as far as the policy lets it
// by itself.
func rolledTo(t *testing.T, policy *windlassv1.RolloutPolicy) *world {
	w := newWorld(t, "us")
	w.policy(policy)
	for range 2 {
		w.deploy(spec(4, "us"))
		w.settle()
	}
	return w
}

// change is a plan that changes one row, and the route with it.
func (w *world) change(deployment string, edit func(*model.Topology)) Output {
	row := w.rows[rowKey{deployment, "us"}]
	edit(&row)
	return Output{Topology: []model.Topology{row}, Routes: []model.Route{w.rts["us"]}}
}

func TestLintFindsAPlanThatGoesBeyondAStep(t *testing.T) {
	w := rolledTo(t, &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "4",
		Steps: []*windlassv1.CanaryStep{{Weight: 25, Pause: Manual}},
	})
	require.Equal(t, int32(25), w.rows[rowKey{"v2", "us"}].Weight)
	require.Empty(t, Lint(w.input(), w.change("v2", func(*model.Topology) {})))
	require.Equal(t, []string{"us: v2 is told to run 2 replicas, and its step is 1"},
		Lint(w.input(), w.change("v2", func(t *model.Topology) { t.Replicas = 2 })))
	shift := w.change("v2", func(t *model.Topology) { t.Weight = 40 })
	shift.Topology = append(shift.Topology, w.change("v1", func(t *model.Topology) { t.Weight = 60 }).Topology...)
	require.Equal(t, []string{"us: v2 gets 40 % of the traffic, and its step is 25 %"}, Lint(w.input(), shift))
}

func TestLintFindsAPlanThatTouchesWhatIsRetained(t *testing.T) {
	w := rolledTo(t, &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, Retain: durationpb.New(time.Hour),
	})
	require.Equal(t, []string{"v2", "v1"}, []string{w.app.LiveDeploymentID, w.staging.Course.Retained()})
	require.Empty(t, Lint(w.input(), w.change("v1", func(t *model.Topology) { t.Generation++ })))
	for _, edit := range []func(*model.Topology){
		func(t *model.Topology) { t.Replicas = 3 },
		func(t *model.Topology) { t.Weight = 1 },
		func(t *model.Topology) { t.Status = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING },
	} {
		require.Len(t, Lint(w.input(), w.change("v1", edit)), 1)
	}
}
