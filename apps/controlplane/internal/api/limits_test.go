package api_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestProgressDeadline_SpecAndPolicyMayNotDiffer(t *testing.T) {
	w := setup(t)
	policy := &windlassv1.RolloutPolicy{Deadlines: &windlassv1.Deadlines{Progress: durationpb.New(5 * time.Minute)}}
	own := func(d time.Duration) func(*windlassv1.DeploymentSpec) {
		return func(s *windlassv1.DeploymentSpec) { s.ProgressDeadline = durationpb.New(d) }
	}
	_, err := w.deployBy("chat", policy, own(time.Minute))
	refused(t, err, connect.CodeInvalidArgument, validation, "rollout.deadlines.progress")
	_, err = w.deployBy("chat", policy, own(5*time.Minute))
	require.NoError(t, err)
}

func TestProgressDeadline_ComesFromThePolicy(t *testing.T) {
	w := setup(t)
	policy := &windlassv1.RolloutPolicy{Deadlines: &windlassv1.Deadlines{Progress: durationpb.New(5 * time.Minute)}}
	_, err := w.deployBy("chat", policy)
	require.NoError(t, err)
	ro, _ := w.progress("chat")
	require.Equal(t, ro.GetCreatedAt()+300_000, ro.GetDeadline(), "also of the first deployment")
	w.settle("chat")
	_, err = w.deployBy("chat", policy, args("b"))
	require.NoError(t, err)
	require.NoError(t, w.stepper.Step(t.Context(), w.app("chat").GetId()))
	_, p := w.progress("chat")
	require.InDelta(t, time.Now().UnixMilli()+300_000, p.GetWaves()[0].GetRegions()[0].GetDeadline(), 60_000)
}

func TestPromote_FullWaitsForNothingAndIsInTheHistory(t *testing.T) {
	w := setup(t)
	ctx, c := t.Context(), w.rollouts(w.deployer)
	policy := canary(&windlassv1.CanaryStep{Weight: 20, Pause: "manual"}, &windlassv1.CanaryStep{Weight: 50, Pause: "1h"})
	policy.Waves = []*windlassv1.Wave{{Regions: []string{"eu-west-1"}, BakeTime: durationpb.New(time.Hour)}, {BakeTime: durationpb.New(time.Hour)}}
	for _, arg := range []string{"a", "b"} {
		_, err := w.deployBy("chat", policy, args(arg))
		require.NoError(t, err)
		w.settle("chat")
	}
	for range 2 {
		_, err := c.Promote(ctx, &windlassv1.PromoteRequest{App: "chat", Full: true, Why: "an incident"})
		require.NoError(t, err)
	}
	_, p := w.progress("chat")
	require.NotEmpty(t, p.GetPromotedInFullBy())
	require.Equal(t, int32(2), w.settle("chat").GetLiveVersion())
	var entries []string
	for _, what := range w.said("chat") {
		if what == "PromotedInFull" || what == "StepsSkipped" {
			entries = append(entries, what)
		}
	}
	require.ElementsMatch(t, []string{"StepsSkipped", "StepsSkipped", "PromotedInFull"}, entries)
}
