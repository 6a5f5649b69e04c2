package plan

import (
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// LoosenedGate is a gate of a policy that the next policy does not keep.
type LoosenedGate struct {
	// Field is the field of the gate in the policy, such as "steps[0].approval".
	Field string
	Gate  *windlassv1.Approval
}

// Role is the lowest role of a key that may approve at the gate.
func (g LoosenedGate) Role() windlassv1.Role { return model.ApproverRole(g.Gate) }

// LoosenedGates returns the gates of was that next does not have, that next opens for weaker approvals, or that come
// after more traffic or other regions in next.
func LoosenedGates(was, next *windlassv1.RolloutPolicy) (out []LoosenedGate) {
	if gate := was.GetStartApproval(); gate != nil && !keepsGate(next.GetStartApproval(), gate) {
		out = append(out, LoosenedGate{"startApproval", gate})
	}
	steps, from := stepsOf(next), 0
	for _, s := range stepsOf(was) {
		if s.Approval == nil {
			continue
		}
		at := stepGateFrom(steps, from, s)
		if at < 0 {
			out = append(out, LoosenedGate{s.ApprovalField, s.Approval})
			continue
		}
		from = at + 1
	}
	from = 0
	for i, w := range was.GetWaves() {
		if w.GetApproval() == nil {
			continue
		}
		at := waveGateFrom(next.GetWaves(), from, was.GetWaves()[:i+1])
		if at < 0 {
			out = append(out, LoosenedGate{fmt.Sprintf("waves[%d].approval", i), w.GetApproval()})
			continue
		}
		from = at + 1
	}
	return out
}

// keepsGate reports whether next is at least as strict as was.
func keepsGate(next, was *windlassv1.Approval) bool {
	return next != nil && model.ApproverRole(next) >= model.ApproverRole(was) && gateCount(next) >= gateCount(was) && (next.GetNotDeployer() || !was.GetNotDeployer())
}

// stepGateFrom returns the index of a step, at or after from, whose gate is at least as strict as the gate of was. No
// step up to it has more traffic or replicas than was. -1: there is no such step.
func stepGateFrom(next []strategy.Step, from int, was strategy.Step) int {
	byReplicas := func(s strategy.Step) bool { return s.Weight == 0 && !s.Whole }
	for i, s := range next {
		if byReplicas(s) != byReplicas(was) || s.Weight > was.Weight || s.Replicas > was.Replicas {
			return -1
		}
		if i >= from && keepsGate(s.Approval, was.Approval) {
			return i
		}
	}
	return -1
}

// waveGateFrom returns the index of a wave, at or after from, whose gate is at least as strict as the gate of the last
// wave in was. No wave up to it takes a region that no wave in was takes. -1: there is no such wave.
func waveGateFrom(next []*windlassv1.Wave, from int, was []*windlassv1.Wave) int {
	var before []string
	for _, w := range was {
		before = append(before, wavePlaces(w)...)
	}
	rest := slices.Contains(before, restOfRegions)
	gate := was[len(was)-1].GetApproval()
	for i, w := range next {
		other := func(place string) bool { return !slices.Contains(before, place) }
		if !rest && slices.ContainsFunc(wavePlaces(w), other) {
			return -1
		}
		if i >= from && keepsGate(w.GetApproval(), gate) {
			return i
		}
	}
	return -1
}

// restOfRegions stands for the regions of a wave that names none.
const restOfRegions = "*"

// wavePlaces returns the names of a wave's regions, or its labels, as the policy has them.
func wavePlaces(w *windlassv1.Wave) []string {
	if len(w.GetLabels()) > 0 {
		return append(slices.Clone(w.GetRegions()), fmt.Sprint(w.GetLabels())) // maps print in order of keys
	}
	if len(w.GetRegions()) == 0 {
		return []string{restOfRegions}
	}
	return w.GetRegions()
}
