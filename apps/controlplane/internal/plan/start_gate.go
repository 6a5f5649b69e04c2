package plan

import (
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// The start gate is the gate before a rollout: nothing of the new version starts until it is open. It is part of the
// rollout and not of the progress, because an app's first rollout has no progress. Its approvals do not count for a
// later rollout.

// NewStartGate returns the gate that the policy requires before a rollout. ok is false if it requires none.
func NewStartGate(policy *windlassv1.RolloutPolicy) (g model.StartGate, ok bool) {
	gate := policy.GetStartApproval()
	if gate == nil {
		return g, false
	}
	return model.StartGate{Role: model.ApproverRole(gate), Count: int32(gateCount(gate)), NotDeployer: gate.GetNotDeployer()}, true
}

// StartMissing describes the approvals that the rollout needs before it starts, empty for none.
func StartMissing(r model.Rollout) string {
	g, ok := r.Gate()
	if !ok || g.OpenedAt != 0 || r.Status != windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING {
		return ""
	}
	return missingApprovals(g.Asked(), g.Approvals, r.CreatedBy)
}

// AwaitsStart reports whether the rollout has a start gate that no step has found open.
func AwaitsStart(r model.Rollout, d model.Deployment) bool {
	g, ok := r.Gate()
	return ok && g.OpenedAt == 0 && r.Status == windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING && !r.CancelRequested &&
		d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING
}

// ApproveStart adds an approval at the start gate, and returns which approvals are still missing. A repeated
// approval changes nothing.
func ApproveStart(r *model.Rollout, by model.Approval) (changed bool, left string, err error) {
	g, _ := r.Gate()
	if slices.ContainsFunc(g.Approvals, func(a model.Approval) bool { return a.ByID == by.ByID }) || StartMissing(*r) == "" {
		return false, StartMissing(*r), nil
	}
	asked := gateAt{gate: g.Asked(), given: &g.Approvals, where: "the start"}
	if err := mayApprove(asked, "the start needs "+StartMissing(*r), by, deployedBy{r.CreatedBy, g.DeployedByID, g.Deployer()}); err != nil {
		return false, "", err
	}
	g.Approvals = append(slices.Clone(g.Approvals), by)
	r.StartGate = g.Encode()
	return true, StartMissing(*r), nil
}

// waitsAtGate reports whether the target waits for approvals before it starts. While it waits, no deadline
// runs. When it is approved, its time begins again.
func (p *planner) waitsAtGate(d *model.Deployment) bool {
	r := p.rollout
	if !AwaitsStart(*r, *d) {
		return false
	}
	g, _ := r.Gate()
	if text := StartMissing(*r); text != "" {
		if g.WaitsSince == 0 {
			g.WaitsSince = p.now
			r.StartGate = g.Encode()
			p.log("StartNeedsApproval", text+" is needed before it starts", d, "")
		}
		r.Deadline = 0
		return true
	}
	why := "it starts now" + approvedBy(g.Asked(), g.Approvals)
	if g.WaitsSince != 0 {
		why = fmt.Sprintf("after %d s %s", (p.now-g.WaitsSince)/1000, why)
	}
	g.OpenedAt = p.now
	r.StartGate = g.Encode()
	p.log("RolloutReleased", why, d, "")
	if limit := p.progressDeadline(d); limit > 0 {
		r.Deadline = p.now + limit
	}
	return false
}
