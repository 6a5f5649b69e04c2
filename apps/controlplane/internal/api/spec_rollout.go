package api

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
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
	strategy.Of(p).SetDefaults(p)
	analysisWithDefaults(p.Analysis)
	approvalWithDefaults(p.Approval)
	approvalWithDefaults(p.StartApproval)
	for _, s := range p.Steps {
		approvalWithDefaults(s.Approval)
	}
	onFailure := windlassv1.Wave_ON_FAILURE_ROLLBACK_ALL
	if autoRollbackOff(p) {
		onFailure = windlassv1.Wave_ON_FAILURE_PAUSE
	}
	for _, w := range p.Waves {
		approvalWithDefaults(w.Approval)
		w.MaxParallel = orDefault(w.MaxParallel, 1)
		w.OnFailure = orDefault(w.OnFailure, onFailure)
		w.OnUnreachable = orDefault(w.OnUnreachable, windlassv1.Wave_ON_UNREACHABLE_WAIT)
	}
	return p
}

// checkPolicy judges what the schema cannot, but for what regions there are.
func checkPolicy(p *windlassv1.RolloutPolicy, spec *windlassv1.DeploymentSpec, field string) error {
	if p == nil {
		return nil
	}
	if fault := strategy.Check(p); fault != nil {
		return apierr.InvalidFix(field+"."+fault.Field, fault.Message, fault.Fix)
	}
	if err := checkApproval(p.GetStartApproval(), false, field+".startApproval"); err != nil {
		return err
	}
	for i, s := range strategy.Of(p).Steps(p) {
		at := field + ".approval"
		if len(p.GetSteps()) > 0 {
			at = fmt.Sprintf("%s.steps[%d].approval", field, i)
		}
		if err := checkApproval(s.Approval, s.Manual, at); err != nil {
			return err
		}
	}
	for i, w := range p.GetWaves() {
		if err := checkApproval(w.GetApproval(), false, fmt.Sprintf("%s.waves[%d].approval", field, i)); err != nil {
			return err
		}
	}
	if where := regionWithoutRoomForBoth(p, spec); where != "" {
		return apierr.InvalidFix(field+".maxSurge", "a canary shares the traffic between two versions, and "+where+" has 1 replica and maxSurge 0: the live version would stop before the new one starts",
			plan.FixNoRoomForBoth)
	}
	for name, text := range map[string]string{"maxSurge": p.GetMaxSurge(), "maxUnavailable": p.GetMaxUnavailable()} {
		if tooManyPercent(text) {
			return apierr.InvalidFix(field+"."+name, fmt.Sprintf("%s is %s of the replicas wanted", name, text), "Use 100% or less.")
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

// regionWithoutRoomForBoth names a region in which the policy's steps cannot be taken, or the
// app if that is so in general; empty for none.
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

func none(text string) bool {
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
			return apierr.InvalidFix(at, "the wave has neither regions nor labels, so that it takes all that are left: nothing is left for those after it",
				"Name its regions, or put it last.")
		}
		for j, n := range w.GetRegions() {
			where := fmt.Sprintf("%s.regions[%d]", at, j)
			if !slices.Contains(regions, n) {
				return apierr.InvalidFix(where, fmt.Sprintf("the wave names region %s, and the app does not run there", n),
					"Add it to the app's regions, or take it out of the wave: the app's are "+strings.Join(regions, ", ")+".")
			}
			if first, ok := taken[n]; ok {
				return apierr.InvalidFix(where, fmt.Sprintf("region %s is in %s[%d] already", n, field, first), "A region moves once: leave it in one wave.")
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
		if errors.Is(err, model.ErrNotFound) {
			r, err = model.Region{Name: n}, nil // it was told of already
		}
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
			return apierr.InvalidFix(fmt.Sprintf("rollout.waves[%d].labels", i), "none of the app's regions that are left has these labels",
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
