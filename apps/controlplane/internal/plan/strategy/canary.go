package strategy

import (
	"fmt"
	"strings"
	"time"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// canary gives the new version some replicas, or a share of the traffic, in steps with pauses, and
// after the last step all. Between steps it moves as rolling does.
type canary struct{ base }

func (canary) Fields() []string { return []string{"maxSurge", "maxUnavailable", "steps"} }

func (canary) Check(p *windlassv1.RolloutPolicy) *Fault {
	if len(p.GetSteps()) == 0 {
		return &Fault{"steps", "a canary without steps would be rolling", "Write for example [{weight: 10, pause: 10m}, {weight: 50, pause: manual}], or use strategy rolling."}
	}
	var weight, replicas int32
	for i, s := range p.GetSteps() {
		at := fmt.Sprintf("steps[%d]", i)
		switch {
		case s.GetWeight() == 0 && s.GetReplicas() == 0:
			return &Fault{at + ".weight", "the step has neither weight nor replicas", "Give it a weight from 1 to 100, or replicas."}
		case s.GetWeight() > 0 && s.GetReplicas() > 0:
			return &Fault{at + ".replicas", "the step has weight and replicas", "Use one of the two: a weight brings the replicas that carry it."}
		case s.GetWeight() > 0 && s.GetWeight() <= weight:
			return &Fault{at + ".weight", fmt.Sprintf("%d is no more than the %d of a step before it: a canary only grows", s.GetWeight(), weight), "Order the steps by weight."}
		case s.GetReplicas() > 0 && s.GetReplicas() <= replicas:
			return &Fault{at + ".replicas", fmt.Sprintf("%d are no more than the %d of a step before it: a canary only grows", s.GetReplicas(), replicas), "Order the steps by replicas."}
		}
		weight, replicas = max(weight, s.GetWeight()), max(replicas, s.GetReplicas())
		pause, _, err := ParsePause(s.GetPause())
		if fault := checkWait(pause, err, at+".pause", "30s, 10m or manual"); fault != nil {
			return fault
		}
	}
	return checkBounds(p)
}

func (c canary) Describe(p *windlassv1.RolloutPolicy) string {
	var steps []string
	for _, s := range c.Steps(p) {
		steps = append(steps, s.String())
	}
	return fmt.Sprintf("%s, then all; %s", strings.Join(steps, ", "), describeBounds(p))
}

func (canary) Steps(p *windlassv1.RolloutPolicy) (out []Step) {
	for i, s := range p.GetSteps() {
		pause, manual, err := ParsePause(s.GetPause())
		at := fmt.Sprintf("steps[%d]", i)
		out = append(out, Step{
			Weight: s.GetWeight(), Replicas: s.GetReplicas(), Manual: manual || err != nil, Pause: pause, Approval: s.GetApproval(),
			WaitField: at + ".pause", ApprovalField: at + ".approval",
		})
	}
	return out
}

func (canary) HasSteps() bool { return true }

// Straighten removes the steps and their pauses. With keepGates, it keeps the steps that need an
// approval. If no step is left, the policy becomes rolling.
func (canary) Straighten(p *windlassv1.RolloutPolicy, keepGates bool) {
	var steps []*windlassv1.CanaryStep
	for _, s := range p.GetSteps() {
		if keepGates && s.GetApproval() != nil {
			s.Pause = ""
			steps = append(steps, s)
		}
	}
	if p.Steps = steps; len(steps) == 0 {
		p.Strategy = windlassv1.RolloutPolicy_STRATEGY_ROLLING
	}
}

// ParsePause reads a step's pause.
func ParsePause(text string) (pause time.Duration, manual bool, err error) {
	if text == "" || text == Manual {
		return 0, text == Manual, nil
	}
	pause, err = time.ParseDuration(text)
	if err != nil || pause < 0 {
		return 0, false, fmt.Errorf("%q is neither a duration nor %q", text, Manual)
	}
	return pause, false, nil
}
