package api_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestDeploy_WarnsOfADeadlineBelowTheStartupBudget(t *testing.T) {
	w := setup(t)
	w.connected(16)
	warnings := func(progress, budget string, edit ...func(*windlassv1.PlanDeployRequest)) (out []string) {
		spec := echo()
		spec.HealthCheck = &windlassv1.HealthCheck{Path: "/health", StartupBudget: durationText(t, budget)}
		spec.ProgressDeadline = durationText(t, progress)
		req := &windlassv1.PlanDeployRequest{App: "chat", Spec: spec}
		for _, f := range edit {
			f(req)
		}
		plan, err := w.apps(w.viewer).PlanDeploy(t.Context(), req)
		require.NoError(t, err)
		require.True(t, plan.GetWouldRun())
		for _, f := range plan.GetFindings() {
			if f.GetField() == "spec.healthCheck.startupBudget" {
				out = append(out, fmt.Sprintf("%s | %s", f.GetMessage(), f.GetFix()))
			}
		}
		return out
	}
	policy := func(req *windlassv1.PlanDeployRequest) {
		req.Rollout = &windlassv1.RolloutPolicy{Deadlines: &windlassv1.Deadlines{Progress: durationText(t, "5m")}}
	}
	const of = "spec.healthCheck.startupBudget: an instance may start for 20m0s, but a rollout fails after "
	require.Equal(t, []string{of + "15m0s without progress (progressDeadline) | Set progressDeadline to 20m0s or more, or lower the budget."}, warnings("15m", "20m"))
	require.Equal(t, []string{of + "10m0s without progress (progressDeadline) | Set progressDeadline to 20m0s or more, or lower the budget."}, warnings("", "20m"), "by default")
	require.Equal(t, []string{of + "5m0s without progress (rollout.deadlines.progress) | Set rollout.deadlines.progress to 20m0s or more, or lower the budget."}, warnings("", "20m", policy))
	require.Empty(t, warnings("20m", "20m"))
	require.Empty(t, warnings("1m", ""), "the default budget says nothing about the app")
}

// durationText parses a duration; nil for an empty text.
func durationText(t *testing.T, text string) *durationpb.Duration {
	t.Helper()
	if text == "" {
		return nil
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return durationpb.New(d)
}
