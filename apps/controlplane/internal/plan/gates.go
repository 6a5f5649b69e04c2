package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A staged rollout waits for approvals at gates: at a step, before a promotion, or at the end of a wave. A gate is an
// additional wait. Pauses, bake times and analysis hold the rollout as they do without a gate, and neither a promotion
// nor the end of a bake opens the gate. Approvals are stored with their step or wave, and are dropped when the step or
// wave serves no longer. A region that catches up has no gates, because its version is already live.

// GateRefusal says why a person's command does not take a rollout past a gate, and how to fix that.
type GateRefusal struct {
	Message, Fix string
	// NotApprover means that the gate waits for approvals that this key may not give.
	NotApprover bool
}

func (r *GateRefusal) Error() string { return r.Message }

func gateCount(gate *windlassv1.Approval) int { return max(1, int(gate.GetCount())) }

// Missing describes the approvals that the gate still needs, empty for none. given are the approvals so far.
func Missing(c *model.Progress, gate *windlassv1.Approval, given []model.Approval) string {
	if c.CatchesUp {
		return ""
	}
	return missingApprovals(gate, given, c.DeployedBy)
}

func missingApprovals(gate *windlassv1.Approval, given []model.Approval, deployedBy string) string {
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

// StepGate returns the gate of the step at which the region waits, nil for none.
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

// gateAt is a gate at which the rollout waits.
type gateAt struct {
	gate  *windlassv1.Approval
	given *[]model.Approval
	// where describes the place of the gate. region is nil at the end of a wave.
	where  string
	region *model.RegionProgress
}

// gatesOf returns the gates at which the rollout waits, including open gates. name returns the name of a region.
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

// Approve adds an approval at the gates at which the rollout waits. It returns the gates at which the approval counts,
// and which approvals are still missing. A repeated approval changes nothing.
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
			// The slice must be copied, because views share it.
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

// mayApprove fails for a key whose approval does not count at the gate. needs says which approvals the gate needs.
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

// fixFamily says how to get a key that counts as a different approver.
const fixFamily = "Ask a person to approve with a key that an operator made for them: `windlass key create NAME --role owner --workspace WORKSPACE`."

// ShutGates describes, for each shut gate at which the rollout waits, the missing approvals. name
// returns the name of a region.
func ShutGates(c *model.Progress, name func(string) string) (missing []string) {
	for _, g := range gatesOf(c, name) {
		if text := Missing(c, g.gate, *g.given); text != "" {
			missing = append(missing, g.where+" needs "+text)
		}
	}
	return missing
}

// shutBefore returns the refusal of a promotion that only a gate prevents, or nil if no gate prevents it.
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

// approvedBy names the approvers of the gate. It is empty if there is no gate, or if the gate needs no
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
