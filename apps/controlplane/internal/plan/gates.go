package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Gates are where a staged rollout waits for approvals: at a step, before promotion, at a
// wave's end. A gate is an additional wait: pauses, bake times and analysis hold as they do
// without it, and neither promotion nor the end of a bake opens it. Approvals are kept with
// the step or wave that they are for, and are dropped when that serves no longer. A region
// that catches up has no gates, because its version is live already.

// GateRefusal says why a person's command does not take a rollout past a gate, and what to do.
type GateRefusal struct {
	Message, Fix string
	// NotApprover: the gate waits for approvals, and this key may not give one.
	NotApprover bool
}

func (r *GateRefusal) Error() string { return r.Message }

func gateCount(gate *windlassv1.Approval) int { return max(1, int(gate.GetCount())) }

// Missing describes the approvals that the gate still needs, empty for none.
func Missing(c *model.Progress, gate *windlassv1.Approval, given []model.Approval) string {
	if c.CatchesUp {
		return ""
	}
	return missing(gate, given, c.DeployedBy)
}

func missing(gate *windlassv1.Approval, given []model.Approval, deployedBy string) string {
	left := gateCount(gate) - len(given)
	if gate == nil || left <= 0 {
		return ""
	}
	text := model.ApprovalText(left, model.ApproverRole(gate))
	var conditions []string
	if gate.GetNotDeployer() && deployedBy != "" {
		conditions = append(conditions, "not by "+deployedBy+", who deployed it")
	}
	if len(given) > 0 {
		var names []string
		for _, a := range given {
			names = append(names, a.By)
		}
		conditions = append(conditions, strings.Join(names, " and ")+" approved")
	}
	if len(conditions) > 0 {
		text += " (" + strings.Join(conditions, "; ") + ")"
	}
	return text
}

// StepGate is the gate of the step that the region waits at, nil for none.
func StepGate(c *model.Progress, st model.RegionProgress) *windlassv1.Approval {
	all := stepsOf(c.Policy)
	if st.State != regionRolling || st.StoppedAt == 0 || st.Step >= len(all) || c.CatchesUp {
		return nil
	}
	return all[st.Step].Approval
}

// WaveGate returns the gate at the end of a wave if all its regions have moved, else nil.
func WaveGate(c *model.Progress, w model.WaveProgress) *windlassv1.Approval {
	if w.State != waveBaking && w.State != waveDone || c.CatchesUp {
		return nil
	}
	return wavePolicy(c, w).GetApproval()
}

// Shut reports whether the gate lacks approvals.
func Shut(c *model.Progress, gate *windlassv1.Approval, given []model.Approval) bool {
	return Missing(c, gate, given) != ""
}

// gateAt is a gate that the rollout waits at.
type gateAt struct {
	gate  *windlassv1.Approval
	given *[]model.Approval
	// where it is, for people; region is nil at a wave's end.
	where  string
	region *model.RegionProgress
}

// gatesOf returns the gates that the rollout waits at, open ones included. name returns the name of a region.
func gatesOf(c *model.Progress, name func(string) string) (out []gateAt) {
	for i := range c.Waves {
		w := &c.Waves[i]
		for j := range w.Regions {
			st := &w.Regions[j]
			if gate := StepGate(c, *st); gate != nil {
				where := fmt.Sprintf("step %d of %d of wave %s in %s", st.Step+1, Steps(c.Policy), w.Name, name(st.RegionID))
				out = append(out, gateAt{gate, &st.Approvals, where, st})
			}
		}
		if gate := WaveGate(c, *w); gate != nil && w.State == waveBaking {
			out = append(out, gateAt{gate, &w.Approvals, "the end of wave " + w.Name, nil})
		}
	}
	return out
}

// Approve adds an approval at the gates that the rollout waits at. It returns the gates at
// which it counts, and which approvals are still missing. Repeated, it changes nothing.
func Approve(c *model.Progress, by model.Approval, name func(string) string) (where, missing []string, err error) {
	if c.Back {
		return nil, nil, errGoingBack
	}
	said, refused := false, error(nil)
	for _, g := range gatesOf(c, name) {
		switch {
		case slices.ContainsFunc(*g.given, func(a model.Approval) bool { return a.ByID == by.ByID }):
			said = true
		case !Shut(c, g.gate, *g.given):
			said = true // no approval is missing any more
		default:
			if err := mayApprove(g, g.where+" needs "+Missing(c, g.gate, *g.given), by, deployerOf(c)); err != nil {
				refused = cmp.Or(refused, err)
				break
			}
			// Not in place: views share it.
			*g.given = append(slices.Clone(*g.given), by)
			where = append(where, g.where)
			if g.region != nil && !Shut(c, g.gate, *g.given) {
				g.region.ScoredAt = by.At
			}
		}
		if text := Missing(c, g.gate, *g.given); text != "" {
			missing = append(missing, g.where+" needs "+text)
		}
	}
	switch {
	case len(where) > 0 || said:
		return where, missing, nil
	case refused != nil:
		return nil, nil, refused
	}
	return nil, nil, &Refusal{"the rollout waits for no approval now", "`windlass rollout status` shows what it waits for."}
}

// deployedBy is the deployer: the name and the id of the key, and its family.
type deployedBy struct{ name, id, family string }

func deployerOf(c *model.Progress) deployedBy {
	return deployedBy{c.DeployedBy, c.DeployedByID, cmp.Or(c.DeployedByFamily, c.DeployedByID)}
}

// mayApprove fails for a key that does not count at the gate; needs says what the gate needs.
func mayApprove(g gateAt, needs string, by model.Approval, deployer deployedBy) error {
	const sameFamily = "%s, and key %s is of the same family as %s%s: one of the two made the other, or one key made both"
	switch {
	case by.Role < model.ApproverRole(g.gate):
		return &GateRefusal{fmt.Sprintf("%s, and %s is of role %s", needs, by.By, model.RoleName(by.Role)), "Ask a person who may approve it.", true}
	case g.gate.GetNotDeployer() && by.ByID == deployer.id:
		return &GateRefusal{needs, "Ask another person to approve it.", true}
	case g.gate.GetNotDeployer() && by.Approver() == deployer.family:
		return &GateRefusal{fmt.Sprintf(sameFamily, needs, by.By, deployer.name, ""), fixFamily, true}
	}
	for _, a := range *g.given {
		if a.Approver() == by.Approver() {
			return &GateRefusal{fmt.Sprintf(sameFamily, needs, by.By, a.By, ", which approved"), fixFamily, true}
		}
	}
	return nil
}

// fixFamily says how to get a key that counts as another approver.
const fixFamily = "Ask a person to approve with a key that an operator made for them: `windlass key create NAME --role owner --workspace WORKSPACE`."

// ShutGates returns, for each gate that the rollout waits at, which approvals are missing. name
// returns the name of a region.
func ShutGates(c *model.Progress, name func(string) string) (missing []string) {
	for _, g := range gatesOf(c, name) {
		if text := Missing(c, g.gate, *g.given); text != "" {
			missing = append(missing, g.where+" needs "+text)
		}
	}
	return missing
}

// shutBefore returns the refusal of a promotion that only a gate prevents; nil: no gate does.
func shutBefore(c *model.Progress) error {
	for _, g := range gatesOf(c, func(id string) string { return id }) {
		if g.region == nil || !Shut(c, g.gate, *g.given) {
			continue
		}
		return &GateRefusal{
			Message: fmt.Sprintf("step %d of the rollout needs %s: a promotion is not enough", g.region.Step+1, Missing(c, g.gate, *g.given)),
			Fix:     "Approve it with `windlass rollout approve`, or ask an approver to do so.",
		}
	}
	return nil
}

// approvedBy names the approvers of the gate, empty if there is no gate or it needs no
// approval.
func approvedBy(gate *windlassv1.Approval, given []model.Approval) string {
	if gate == nil || len(given) == 0 {
		return ""
	}
	var parts []string
	for _, a := range given {
		text := a.By
		if a.Comment != "" {
			text += " (" + a.Comment + ")"
		}
		parts = append(parts, text)
	}
	return "; approved by " + strings.Join(parts, ", ")
}
