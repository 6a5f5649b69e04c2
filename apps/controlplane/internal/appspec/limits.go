package appspec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func autoRollbackOff(p *windlassv1.RolloutPolicy) bool {
	auto := p.GetAutoRollback()
	return auto != nil && auto.Enabled != nil && !auto.GetEnabled()
}

// checkAutoRollback fails on conditions and waves that contradict autoRollback.
func checkAutoRollback(p *windlassv1.RolloutPolicy, field string) error {
	auto, off := p.GetAutoRollback(), autoRollbackOff(p)
	if off && len(auto.GetConditions()) > 0 {
		return apierr.InvalidFix(field+".autoRollback.conditions", "autoRollback names conditions, but is off, so no region goes back automatically",
			"Remove enabled to go back only for these conditions, or remove conditions.")
	}
	if err := checkAmounts(auto, field+".autoRollback"); err != nil {
		return err
	}
	for i, w := range p.GetWaves() {
		at := fmt.Sprintf("%s.waves[%d]", field, i)
		switch on := w.GetOnFailure(); {
		case !off:
		case on == windlassv1.Wave_ON_FAILURE_ROLLBACK_ALL || on == windlassv1.Wave_ON_FAILURE_ROLLBACK_REGION:
			return apierr.InvalidFix(at+".onFailure", "the wave has onFailure rollback, but autoRollback is off, so no region goes back automatically",
				"Remove onFailure, set it to pause, or turn autoRollback on.")
		}
		unreachable := windlassv1.AutoRollback_CONDITION_UNREACHABLE
		if w.GetOnUnreachable() != windlassv1.Wave_ON_UNREACHABLE_FAIL && len(auto.GetConditions()) == 1 && auto.GetConditions()[0] == unreachable {
			return apierr.InvalidFix(at+".onUnreachable", "the only condition of autoRollback is "+plan.ConditionName(unreachable)+", but in this wave an unreachable region is not a failure",
				"Set onUnreachable to fail, or name other conditions.")
		}
	}
	return nil
}

// checkAmounts fails on limits that every rollout exceeds, or that have no effect.
func checkAmounts(auto *windlassv1.AutoRollback, field string) error {
	for _, limit := range []struct{ name, text, of string }{
		{"failedInstances", auto.GetFailedInstances(), "instances"},
		{"unhealthy", auto.GetUnhealthy(), "replicas that were ready"},
	} {
		switch {
		case isNone(limit.text):
			return apierr.InvalidFix(field+"."+limit.name, fmt.Sprintf("%s is %s of the %s: every region would fail at once", limit.name, limit.text, limit.of),
				"Use 1 or more, or leave it out.")
		case tooManyPercent(limit.text):
			return apierr.InvalidFix(field+"."+limit.name, fmt.Sprintf("%s is %s of the %s", limit.name, limit.text, limit.of), "Use 100% or less.")
		}
	}
	switch health := windlassv1.AutoRollback_CONDITION_HEALTH; {
	case auto.GetUnhealthy() != "":
	case auto.GetUnhealthyFor() != nil:
		return apierr.InvalidFix(field+".unhealthyFor", "unhealthyFor is set, but unhealthy is not",
			"Set unhealthy as well, for example 25%, or leave out unhealthyFor.")
	case slices.Contains(auto.GetConditions(), health):
		return apierr.InvalidFix(field+".conditions", "conditions names "+plan.ConditionName(health)+", but unhealthy is not set",
			"Set unhealthy as well, for example 25%, or leave "+plan.ConditionName(health)+" out.")
	}
	return nil
}

func tooManyPercent(text string) bool {
	percent, ok := strings.CutSuffix(text, "%")
	digits := strings.TrimLeft(percent, "0")
	return ok && len(digits) == 3 && digits > "100"
}

// checkDeadlines fails if two fields set how long a start waits for capacity.
func checkDeadlines(p *windlassv1.RolloutPolicy, field string) error {
	if p.GetDeadlines().GetUnschedulable() != nil && p.GetWaitForCapacity().AsDuration() > 0 {
		return apierr.InvalidFix(field+".unschedulable", "deadlines.unschedulable and waitForCapacity both set how long to wait for capacity",
			"Use waitForCapacity if a start without capacity should wait, or deadlines.unschedulable if it should fail.")
	}
	return nil
}

// CheckProgress fails if the spec and the policy set different progress deadlines. asked is the spec of the request,
// without defaults.
func CheckProgress(p *windlassv1.RolloutPolicy, asked *windlassv1.DeploymentSpec, field string) error {
	one, other := p.GetDeadlines().GetProgress(), asked.GetProgressDeadline()
	if one == nil || other == nil || one.AsDuration() == other.AsDuration() {
		return nil
	}
	return apierr.InvalidFix(field+".deadlines.progress", fmt.Sprintf("it is %s, and the spec's progressDeadline is %s: both set the same deadline",
		one.AsDuration(), other.AsDuration()), "Leave one of them out.")
}

// DeadlineFindings warns if a rollout fails before an instance has used up its startup budget. spec has no defaults
// yet, because the default budget is for models that take long to load, and says nothing about this app.
func DeadlineFindings(spec *windlassv1.DeploymentSpec, p *windlassv1.RolloutPolicy) []preset.Finding {
	budget, deadline, field := spec.GetHealthCheck().GetStartupBudget().AsDuration(), spec.GetProgressDeadline(), "progressDeadline"
	if d := p.GetDeadlines().GetProgress(); d != nil {
		deadline, field = d, "rollout.deadlines.progress"
	}
	deadline = orDuration(deadline, deadlineFor(spec.GetHealthCheck().GetStartupBudget()))
	if at := deadline.AsDuration(); at == 0 || at >= budget {
		return nil
	}
	return []preset.Finding{{
		Severity: preset.Warning, Code: "DeadlineBelowBudget", Field: "/healthCheck.startupBudget",
		Text: fmt.Sprintf("an instance may start for %s, but a rollout fails after %s without progress (%s)", budget, deadline.AsDuration(), field),
		Fix:  fmt.Sprintf("set %s to %s or more, or lower the budget", field, budget),
	}}
}
