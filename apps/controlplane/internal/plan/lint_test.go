package plan

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// rolledTo is an app with four replicas in us, whose v2 went as far as the policy allows
// without people.
func rolledTo(t *testing.T, policy *windlassv1.RolloutPolicy) *simulation {
	w := newSimulation(t, "us")
	w.policy(policy)
	for range 2 {
		w.deploy(spec(4, "us"))
		w.settle()
	}
	return w
}

// change returns a plan that changes a row and the route.
func (w *simulation) change(deployment string, edit func(*model.Topology)) Output {
	row := w.rows[rowKey{deployment, "us"}]
	edit(&row)
	return Output{Topology: []model.Topology{row}, Routes: []model.Route{w.rts["us"]}}
}

func TestLint_FindsAPlanThatGoesBeyondAStep(t *testing.T) {
	w := rolledTo(t, &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "4",
		Steps: []*windlassv1.CanaryStep{{Weight: 25, Pause: strategy.Manual}},
	})
	require.Equal(t, int32(25), w.rows[rowKey{"v2", "us"}].Weight)
	require.Empty(t, Lint(w.input(), w.change("v2", func(*model.Topology) {})))
	require.Equal(t, []string{"us: v2 is told to run 2 replicas, and its step is 1"},
		Lint(w.input(), w.change("v2", func(t *model.Topology) { t.Replicas = 2 })))
	shift := w.change("v2", func(t *model.Topology) { t.Weight = 40 })
	shift.Topology = append(shift.Topology, w.change("v1", func(t *model.Topology) { t.Weight = 60 }).Topology...)
	require.Equal(t, []string{"us: v2 gets 40 % of the traffic, and its step is 25 %"}, Lint(w.input(), shift))
}

func TestLint_FindsAPlanThatChangesRetainedDeployments(t *testing.T) {
	w := rolledTo(t, &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, Retain: durationpb.New(time.Hour),
	})
	require.Equal(t, []string{"v2", "v1"}, []string{w.app.LiveDeploymentID, w.rolloutState.Progress.Retained()})
	require.Empty(t, Lint(w.input(), w.change("v1", func(t *model.Topology) { t.Generation++ })))
	for _, edit := range []func(*model.Topology){
		func(t *model.Topology) { t.Replicas = 3 },
		func(t *model.Topology) { t.Weight = 1 },
		func(t *model.Topology) { t.Status = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING },
	} {
		require.Len(t, Lint(w.input(), w.change("v1", edit)), 1)
	}
}

func TestLint_FindsAPlanThatGoesOnWithoutFigures(t *testing.T) {
	w := rolledTo(t, &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "4", Steps: []*windlassv1.CanaryStep{{Weight: 25, Pause: "1m"}},
		Waves:    []*windlassv1.Wave{{BakeTime: durationpb.New(time.Minute)}},
		Analysis: scriptAnalysis(t, "queue-length/max=3/interval=30s"),
	})
	goesOn := func(edit func(*model.WaveProgress)) []string {
		s := w.rolloutState.Clone()
		edit(&s.Progress.Waves[0])
		return Lint(w.input(), Output{RolloutState: &s})
	}
	takes := func(c *model.WaveProgress) { c.Regions[0].Step++ }
	require.Equal(t, []string{"us: step 1 is over, and its analysis is not"}, goesOn(takes))
	w.rolloutState.Progress.Waves[0].Regions[0].PromotedBy = "ada"
	require.Empty(t, goesOn(takes))
	w.rolloutState.Progress.Waves[0].Regions[0].PromotedBy = ""
	w.rolloutState.Progress.Waves[0].Regions[0].Checks[0].State = checkPassed
	require.Empty(t, goesOn(takes))

	w.rolloutState.Progress.Waves[0].Regions[0].StoppedAt = 0
	w.rolloutState.Progress.Waves[0].State, w.rolloutState.Progress.Waves[0].BakingSince = waveBaking, w.now
	done := func(c *model.WaveProgress) { c.State = waveDone }
	require.Equal(t, []string{"us: the bake of wave 1 is over, and its analysis is not"}, goesOn(done))
	w.rolloutState.Progress.Waves[0].SkippedBy = "ada"
	require.Empty(t, goesOn(done))
}

func TestLint_FindsReplicasLostInATransfer(t *testing.T) {
	w := newSimulation(t, "eu", "us")
	w.policy(&windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{Regions: []string{"eu"}}, {Regions: []string{"us"}}}})
	w.deploy(spec(4, "eu", "us"))
	w.settle()
	w.deployAlike(spec(4, "eu", "us"))
	w.step()
	transfer := func(replicas int32) Output {
		out := w.change("v1", func(t *model.Topology) {
			t.Replicas, t.Weight, t.Transferred, t.Generation = 0, 0, true, t.Generation+1
		})
		successor := w.rows[rowKey{"v1", "us"}]
		successor.DeploymentID, successor.Generation, successor.Workload, successor.WorkloadVersion, successor.Replicas = "v2", 1, "v1", 1, replicas
		out.Topology = append(out.Topology, successor)
		return out
	}
	require.Empty(t, Lint(w.input(), transfer(4)))
	require.Equal(t, []string{"us: 1 of 4 replicas are left to serve, and at least 4 must serve"}, Lint(w.input(), transfer(1)))
}

func TestLint_FindsAWorkloadThatTwoRowsOfARegionWant(t *testing.T) {
	w := newSimulation(t, "us", "eu")
	w.deploy(spec(2, "us", "eu"))
	w.settle()
	old := w.rows[rowKey{"v1", "us"}]
	successor := old
	successor.DeploymentID, successor.Generation, successor.Workload, successor.WorkloadVersion = "v2", 1, "v1", 1
	require.Equal(t, []string{"us: v1 and v2 should run with workload v1"}, Lint(w.input(), Output{Topology: []model.Topology{successor}}))

	old.Status, old.Generation = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING, old.Generation+1
	require.Empty(t, Lint(w.input(), Output{Topology: []model.Topology{successor, old}}), "the old row lets go of the workload at once")
	successor.RegionID = "eu"
	require.Equal(t, []string{"eu: v1 and v2 should run with workload v1"}, Lint(w.input(), Output{Topology: []model.Topology{successor, old}}))
}

func TestLint_FindsAPlanThatPassesAGate(t *testing.T) {
	w := rolledTo(t, &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "4",
		Steps: []*windlassv1.CanaryStep{{Weight: 25, Pause: strategy.Manual}, {Weight: 50, Approval: &windlassv1.Approval{}}},
		Waves: []*windlassv1.Wave{{Approval: &windlassv1.Approval{}}},
	})
	passes := func(edit func(*model.WaveProgress)) []string {
		s := w.rolloutState.Clone()
		edit(&s.Progress.Waves[0])
		return Lint(w.input(), Output{RolloutState: &s})
	}
	st := &w.rolloutState.Progress.Waves[0].Regions[0]
	one := func(c *model.WaveProgress) { c.Regions[0].Step = 1 }
	both := func(c *model.WaveProgress) { c.Regions[0].Step = 2 }
	unpromoted := []string{"us: step 1 is over without a promotion"}
	needs := "us: step 2 is over, and needs approval by a key of role owner"
	require.Equal(t, unpromoted, passes(one))
	w.rolloutState.Progress.Sizes["us"], w.rolloutState.Progress.OldSizes["us"] = 0, 0
	require.Equal(t, unpromoted, passes(one), "without replicas, the step needs a promotion, too")
	st.PromotedBy = "ada"
	require.Empty(t, passes(one))
	require.Equal(t, []string{needs}, passes(both), "an approval is for one step")
	st.PromotedBy, w.rolloutState.Progress.FullBy = "", "ada"
	require.Equal(t, []string{needs}, passes(both))
	w.rolloutState.Progress.FullBy = ""

	st.State = regionWaiting
	require.Empty(t, passes(func(c *model.WaveProgress) { c.Regions[0].State, c.Regions[0].Step = regionRolling, 2 }), "the old version has no replicas in the region")
	w.rolloutState.Progress.OldSizes["us"] = 1
	require.Len(t, passes(func(c *model.WaveProgress) { c.Regions[0].State, c.Regions[0].Step = regionRolling, 2 }), 2)

	st.State, st.Step = regionMoved, 2
	live := Output{App: new(w.app)}
	live.App.LiveDeploymentID = "v2"
	over := []string{"wave 1: it is over, and needs approval by a key of role owner"}
	require.Equal(t, over, passes(func(c *model.WaveProgress) { c.State = waveDone }))
	require.Equal(t, over, Lint(w.input(), live))
	w.rolloutState.Progress.Waves[0].Approvals = []model.Approval{{ByID: "key-olga"}}
	require.Empty(t, passes(func(c *model.WaveProgress) { c.State = waveDone }))
}
