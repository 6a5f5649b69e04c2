package api

import (
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// policyWithDefaults returns a copy with what it leaves out, but for what depends on
// the number of replicas. nil for nil.
func policyWithDefaults(in *windlassv1.RolloutPolicy) *windlassv1.RolloutPolicy {
	p := proto.CloneOf(in)
	if p == nil {
		return nil
	}
	p.Strategy = orDefault(p.Strategy, windlassv1.RolloutPolicy_STRATEGY_ROLLING)
	for _, w := range p.Waves {
		w.MaxParallel = orDefault(w.MaxParallel, 1)
		w.OnFailure = orDefault(w.OnFailure, windlassv1.Wave_ON_FAILURE_ROLLBACK_ALL)
		w.OnUnreachable = orDefault(w.OnUnreachable, windlassv1.Wave_ON_UNREACHABLE_WAIT)
	}
	return p
}

// checkPolicy judges what the schema cannot, but for what regions there are.
func checkPolicy(p *windlassv1.RolloutPolicy, spec *windlassv1.DeploymentSpec, field string) error {
	if p == nil {
		return nil
	}
	surge, unavailable := p.GetMaxSurge(), p.GetMaxUnavailable()
	if p.GetStrategy() == windlassv1.RolloutPolicy_STRATEGY_RECREATE {
		for name, text := range map[string]string{"max_surge": surge, "max_unavailable": unavailable} {
			if text != "" {
				return invalidFix(field+"."+name, name+" is for the rolling strategy: recreate stops the old version before the new one starts",
					"Leave it out, or use strategy rolling.")
			}
		}
	}
	if none(surge) && none(unavailable) {
		return invalidFix(field+".max_unavailable", "max_surge and max_unavailable are both 0: no replica could ever start or stop",
			"Set one of them to 1 or more.")
	}
	for name, text := range map[string]string{"max_surge": surge, "max_unavailable": unavailable} {
		if percent, ok := strings.CutSuffix(text, "%"); ok && len(strings.TrimLeft(percent, "0")) == 3 && strings.TrimLeft(percent, "0") > "100" {
			return invalidFix(field+"."+name, fmt.Sprintf("%s is %s of the replicas wanted", name, text), "Use 100% or less.")
		}
	}
	return checkWaveNames(p.GetWaves(), spec.GetRegions(), field+".waves")
}

func none(text string) bool {
	return text != "" && strings.Trim(text, "0%") == ""
}

func checkWaveNames(waves []*windlassv1.Wave, regions []string, field string) error {
	names, taken := map[string]bool{}, map[string]int{}
	for i, w := range waves {
		at := fmt.Sprintf("%s[%d]", field, i)
		if n := w.GetName(); n != "" && names[n] {
			return invalidFix(at+".name", fmt.Sprintf("two waves are named %q", n), "Give each a name of its own.")
		}
		names[w.GetName()] = true
		if len(w.GetRegions()) > 0 && len(w.GetLabels()) > 0 {
			return invalidFix(at+".labels", "the wave names regions and labels", "Use one of the two.")
		}
		if len(w.GetRegions()) == 0 && len(w.GetLabels()) == 0 && i < len(waves)-1 {
			return invalidFix(at, "the wave has neither regions nor labels, so that it takes all that are left: nothing is left for those after it",
				"Name its regions, or put it last.")
		}
		for j, n := range w.GetRegions() {
			where := fmt.Sprintf("%s.regions[%d]", at, j)
			if !slices.Contains(regions, n) {
				return invalidFix(where, fmt.Sprintf("the wave names region %s, and the app does not run there", n),
					"Add it to the app's regions, or take it out of the wave: the app's are "+strings.Join(regions, ", ")+".")
			}
			if first, ok := taken[n]; ok {
				return invalidFix(where, fmt.Sprintf("region %s is in %s[%d] already", n, field, first), "A region moves once: leave it in one wave.")
			}
			taken[n] = i
		}
	}
	return nil
}

// checkWaves fails on a region that no wave takes, and on a wave that takes none.
func (c *change) checkWaves(p *windlassv1.RolloutPolicy, spec *windlassv1.DeploymentSpec) error {
	if len(p.GetWaves()) == 0 {
		return nil
	}
	left := map[string]model.Region{}
	for _, n := range spec.GetRegions() {
		r, err := c.GetRegionByName(c.workspaceID, n)
		if err != nil {
			return fmt.Errorf("read region %s: %w", n, err)
		}
		left[n] = r
	}
	for i, w := range p.GetWaves() {
		before := len(left)
		for n, r := range left {
			if plan.TakesRegion(w, r) {
				delete(left, n)
			}
		}
		if len(w.GetLabels()) > 0 && len(left) == before {
			return invalidFix(fmt.Sprintf("rollout.waves[%d].labels", i), "none of the app's regions that are left has these labels",
				"`windlass list regions -o yaml` shows the labels that there are.")
		}
	}
	for i, n := range spec.GetRegions() {
		if _, ok := left[n]; ok {
			return rpc.ErrorWith(connect.CodeInvalidArgument, &windlassv1.ErrorDetail{
				Reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION, Field: "rollout.waves",
				Fix: "Add it to a wave, or end with a wave that has neither regions nor labels: it takes what is left.",
			}, fmt.Sprintf("spec.regions[%d], %s, is in no wave: it would never move", i, n))
		}
	}
	return nil
}
