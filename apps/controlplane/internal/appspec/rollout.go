package appspec

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// PolicyWithDefaults returns a copy with defaults for missing fields. It does not set defaults that depend on the
// number of replicas. It returns nil for nil.
func PolicyWithDefaults(in *windlassv1.RolloutPolicy) *windlassv1.RolloutPolicy {
	p := proto.CloneOf(in)
	if p == nil {
		return nil
	}
	p.Strategy = cmp.Or(p.Strategy, windlassv1.RolloutPolicy_STRATEGY_ROLLING)
	strategy.Of(p).SetDefaults(p)
	analysisWithDefaults(p.Analysis)
	ApprovalWithDefaults(p.StartApproval)
	for _, s := range strategy.Of(p).Steps(p) {
		ApprovalWithDefaults(s.Approval)
	}
	onFailure := windlassv1.Wave_ON_FAILURE_ROLLBACK_ALL
	if autoRollbackOff(p) {
		onFailure = windlassv1.Wave_ON_FAILURE_PAUSE
	}
	for _, w := range p.Waves {
		ApprovalWithDefaults(w.Approval)
		w.MaxParallel = cmp.Or(w.MaxParallel, 1)
		w.OnFailure = cmp.Or(w.OnFailure, onFailure)
		w.OnUnreachable = cmp.Or(w.OnUnreachable, windlassv1.Wave_ON_UNREACHABLE_WAIT)
	}
	return p
}

// CheckPolicy validates the rules that the schema cannot express. It does not check whether the regions exist.
func CheckPolicy(p *windlassv1.RolloutPolicy, spec *windlassv1.DeploymentSpec, field string) error {
	if err := checkSlotsPolicy(p, spec, field); err != nil || p == nil {
		return err
	}
	if fault := strategy.Check(p); fault != nil {
		return apierr.InvalidFix(field+"."+fault.Field, fault.Message, fault.Fix)
	}
	if err := checkPoolPolicy(p, spec, field); err != nil {
		return err
	}
	if err := CheckApproval(p.GetStartApproval(), false, field+".startApproval"); err != nil {
		return err
	}
	for _, s := range strategy.Of(p).Steps(p) {
		if err := CheckApproval(s.Approval, s.Manual, field+"."+s.ApprovalField); err != nil {
			return err
		}
	}
	for i, w := range p.GetWaves() {
		if err := CheckApproval(w.GetApproval(), false, fmt.Sprintf("%s.waves[%d].approval", field, i)); err != nil {
			return err
		}
	}
	if where := regionWithoutRoomForBoth(p, spec); where != "" {
		return apierr.InvalidFix(field+".maxSurge", "strategy "+strategy.Name(p)+" shares the traffic between two versions, and "+where+" has 1 replica and maxSurge 0: the live version would stop before the new one starts",
			plan.FixNoRoomForBoth)
	}
	for _, f := range []struct{ name, text string }{{"maxSurge", p.GetMaxSurge()}, {"maxUnavailable", p.GetMaxUnavailable()}} {
		if tooManyPercent(f.text) {
			return apierr.InvalidFix(field+"."+f.name, fmt.Sprintf("%s is %s of the replicas wanted", f.name, f.text), "Use 100% or less.")
		}
	}
	if err := checkAutoRollback(p, field); err != nil {
		return err
	}
	if err := checkDeadlines(p, field+".deadlines"); err != nil {
		return err
	}
	if err := checkWaveNames(p.GetWaves(), spec.GetRegions(), field+".waves"); err != nil {
		return err
	}
	return checkAnalysis(p, field+".analysis")
}

// regionWithoutRoomForBoth returns the name of a region whose replicas and maxSurge leave no room for both versions,
// "the app" if that is true without overrides, and "" if there is no such region.
func regionWithoutRoomForBoth(p *windlassv1.RolloutPolicy, spec *windlassv1.DeploymentSpec) string {
	if spec.Replicas != nil && !plan.HasRoomForBoth(p, spec.GetReplicas()) {
		return "the app"
	}
	for _, o := range spec.GetOverrides() {
		if o.Replicas != nil && !plan.HasRoomForBoth(p, o.GetReplicas()) {
			return cmp.Or(strings.Join(o.GetRegions(), ", "), "a region of the overrides")
		}
	}
	return ""
}

func isNone(text string) bool {
	return text != "" && strings.Trim(text, "0%") == ""
}

func checkWaveNames(waves []*windlassv1.Wave, regions []string, field string) error {
	names, taken := map[string]bool{}, map[string]int{}
	for i, w := range waves {
		at := fmt.Sprintf("%s[%d]", field, i)
		if n := w.GetName(); n != "" && names[n] {
			return apierr.InvalidFix(at+".name", fmt.Sprintf("two waves are named %q", n), "Give each a name of its own.")
		}
		names[w.GetName()] = true
		if len(w.GetRegions()) > 0 && len(w.GetLabels()) > 0 {
			return apierr.InvalidFix(at+".labels", "the wave names regions and labels", "Use one of the two.")
		}
		if len(w.GetRegions()) == 0 && len(w.GetLabels()) == 0 && i < len(waves)-1 {
			return apierr.InvalidFix(at, "the wave has neither regions nor labels, so it takes all remaining regions, and none are left for the waves after it",
				"Name its regions, or put it last.")
		}
		for j, n := range w.GetRegions() {
			where := fmt.Sprintf("%s.regions[%d]", at, j)
			if !slices.Contains(regions, n) {
				return apierr.InvalidFix(where, fmt.Sprintf("the wave names region %s, but the app does not run there", n),
					"Add it to the app's regions, or remove it from the wave: the app's regions are "+strings.Join(regions, ", ")+".")
			}
			if first, ok := taken[n]; ok {
				return apierr.InvalidFix(where, fmt.Sprintf("region %s is in %s[%d] already", n, field, first), "A region moves once: name it in one wave only.")
			}
			taken[n] = i
		}
	}
	return nil
}
