package api

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

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
	if p.Strategy == windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN {
		p.Promotion = cmp.Or(p.Promotion, "auto")
		if p.Retain == nil {
			p.Retain = durationpb.New(defaultRetain)
		}
	}
	analysisWithDefaults(p.Analysis)
	approvalWithDefaults(p.Approval)
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
	if err := checkKnobs(p, field); err != nil {
		return err
	}
	if err := checkSteps(p, field+".steps"); err != nil {
		return err
	}
	after, manual, err := plan.ParsePromotion(p.GetPromotion())
	if err := checkWait(after, err, field+".promotion", "auto, auto after 10m or manual"); err != nil {
		return err
	}
	if err := checkApproval(p.GetApproval(), manual, field+".approval"); err != nil {
		return err
	}
	for i, w := range p.GetWaves() {
		if err := checkApproval(w.GetApproval(), false, fmt.Sprintf("%s.waves[%d].approval", field, i)); err != nil {
			return err
		}
	}
	surge, unavailable := p.GetMaxSurge(), p.GetMaxUnavailable()
	if p.GetStrategy() == windlassv1.RolloutPolicy_STRATEGY_IN_PLACE && none(unavailable) {
		return invalidFix(field+".maxUnavailable", "maxUnavailable is 0, and in place nothing starts before something stops: no replica could ever be replaced",
			"Set it to 1 or more, or use strategy rolling with a maxSurge.")
	}
	if none(surge) && none(unavailable) {
		return invalidFix(field+".maxUnavailable", "maxSurge and maxUnavailable are both 0: no replica could ever start or stop",
			"Set one of them to 1 or more.")
	}
	if where := regionWithoutRoomForBoth(p, spec); where != "" {
		return invalidFix(field+".maxSurge", "a canary shares the traffic between two versions, and "+where+" has 1 replica and maxSurge 0: the live version would stop before the new one starts",
			plan.FixNoRoomForBoth)
	}
	for name, text := range map[string]string{"maxSurge": surge, "maxUnavailable": unavailable} {
		if tooManyPercent(text) {
			return invalidFix(field+"."+name, fmt.Sprintf("%s is %s of the replicas wanted", name, text), "Use 100% or less.")
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

// checkKnobs fails on what another strategy than the policy's is set by.
func checkKnobs(p *windlassv1.RolloutPolicy, field string) error {
	const (
		rolling = windlassv1.RolloutPolicy_STRATEGY_ROLLING
		canary  = windlassv1.RolloutPolicy_STRATEGY_CANARY
		green   = windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN
		inPlace = windlassv1.RolloutPolicy_STRATEGY_IN_PLACE
	)
	strategy := orDefault(p.GetStrategy(), rolling)
	for _, knob := range []struct {
		name string
		set  bool
		of   []windlassv1.RolloutPolicy_Strategy
	}{
		{"maxSurge", p.GetMaxSurge() != "", []windlassv1.RolloutPolicy_Strategy{rolling, canary}},
		{"maxUnavailable", p.GetMaxUnavailable() != "", []windlassv1.RolloutPolicy_Strategy{rolling, canary, inPlace}},
		{"steps", len(p.GetSteps()) > 0, []windlassv1.RolloutPolicy_Strategy{canary}},
		{"initialWeight", p.GetInitialWeight() != 0, []windlassv1.RolloutPolicy_Strategy{green}},
		{"approval", p.GetApproval() != nil, []windlassv1.RolloutPolicy_Strategy{green}},
		{"promotion", p.GetPromotion() != "", []windlassv1.RolloutPolicy_Strategy{green}},
		{"retain", p.GetRetain() != nil, []windlassv1.RolloutPolicy_Strategy{green}},
	} {
		if !knob.set || slices.Contains(knob.of, strategy) {
			continue
		}
		var names []string
		for _, s := range knob.of {
			names = append(names, plan.StrategyName(s))
		}
		with := strings.Join(names, " or ")
		return invalidFix(field+"."+knob.name, fmt.Sprintf("%s means nothing to strategy %s: it is of %s", knob.name, plan.StrategyName(strategy), with),
			"Leave it out, or use strategy "+with+".")
	}
	return nil
}

// checkSteps judges a canary's.
func checkSteps(p *windlassv1.RolloutPolicy, field string) error {
	if p.GetStrategy() != windlassv1.RolloutPolicy_STRATEGY_CANARY {
		return nil
	}
	if len(p.GetSteps()) == 0 {
		return invalidFix(field, "a canary without steps would be rolling", "Write for example [{weight: 10, pause: 10m}, {weight: 50, pause: manual}], or use strategy rolling.")
	}
	var weight, replicas int32
	for i, s := range p.GetSteps() {
		at := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case s.GetWeight() == 0 && s.GetReplicas() == 0:
			return invalidFix(at+".weight", "the step has neither weight nor replicas", "Give it a weight from 1 to 100, or replicas.")
		case s.GetWeight() > 0 && s.GetReplicas() > 0:
			return invalidFix(at+".replicas", "the step has weight and replicas", "Use one of the two: a weight brings the replicas that carry it.")
		case s.GetWeight() > 0 && s.GetWeight() <= weight:
			return invalidFix(at+".weight", fmt.Sprintf("%d is no more than the %d of a step before it: a canary only grows", s.GetWeight(), weight), "Order the steps by weight.")
		case s.GetReplicas() > 0 && s.GetReplicas() <= replicas:
			return invalidFix(at+".replicas", fmt.Sprintf("%d are no more than the %d of a step before it: a canary only grows", s.GetReplicas(), replicas), "Order the steps by replicas.")
		}
		weight, replicas = max(weight, s.GetWeight()), max(replicas, s.GetReplicas())
		pause, manual, err := plan.ParsePause(s.GetPause())
		if err := checkWait(pause, err, at+".pause", "30s, 10m or manual"); err != nil {
			return err
		}
		if err := checkApproval(s.GetApproval(), manual, at+".approval"); err != nil {
			return err
		}
	}
	return nil
}

// defaultRetain is long enough to see what a bad version does, and short enough for
// accelerators that do nothing meanwhile.
const defaultRetain = 10 * time.Minute

// maxPause is as long as a wave may bake: what takes longer is a person's decision.
const maxPause = 7 * 24 * time.Hour

// checkWait judges a wait as it was read.
func checkWait(wait time.Duration, err error, field, examples string) error {
	if err != nil {
		return invalidFix(field, err.Error(), "Write for example "+examples+".")
	}
	if wait > maxPause {
		return invalidFix(field, fmt.Sprintf("%s is longer than %s", wait, maxPause), "Use manual: somebody promotes it when it is time.")
	}
	return nil
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
		if c.api.cfg.IsNotFound(err) {
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
