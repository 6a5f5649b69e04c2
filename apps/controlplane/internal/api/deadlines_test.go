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
	require.Empty(t, warnings("", "20m"), "the default deadline is longer than the budget")
	require.Equal(t, []string{of + "5m0s without progress (rollout.deadlines.progress) | Set rollout.deadlines.progress to 20m0s or more, or lower the budget."}, warnings("", "20m", policy))
	require.Empty(t, warnings("20m", "20m"))
	require.Empty(t, warnings("1m", ""), "the default budget says nothing about the app")
}

func TestDeploy_DefaultDeadlineIsLongerThanTheStartupBudget(t *testing.T) {
	w := setup(t)
	w.hosts()
	n := 0
	deadline := func(budget string, edit ...func(*windlassv1.DeploymentSpec)) string {
		n++
		app := fmt.Sprintf("app-%d", n)
		res := w.deploy(app, append(edit, func(s *windlassv1.DeploymentSpec) {
			s.HealthCheck = &windlassv1.HealthCheck{StartupBudget: durationText(t, budget)}
		})...)
		require.Empty(t, res.GetWarnings())
		s := w.newestSpec(app)
		if budget != "" {
			require.GreaterOrEqual(t, s.GetProgressDeadline().AsDuration(), s.GetHealthCheck().GetStartupBudget().AsDuration())
		}
		return s.GetProgressDeadline().AsDuration().String()
	}
	require.Equal(t, "10m0s", deadline(""), "the default budget says nothing about the app")
	require.Equal(t, "10m0s", deadline("1m"))
	require.Equal(t, "30m0s", deadline("20m"))
	require.Equal(t, "24h0m0s", deadline("24h"))
	require.Equal(t, "40m0s", deadline("", serving()), "the preset's")
	require.Equal(t, "40m0s", deadline("5m", serving()))
	require.Equal(t, "1h10m0s", deadline("1h", serving()))
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
