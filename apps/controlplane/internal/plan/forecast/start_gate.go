package forecast

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// approveStart gives the approvals that the rollout needs to start, and reports whether it may start.
func (sim *simulation) approveStart(r model.Rollout) (opened bool) {
	gate, _ := r.Gate()
	for i := range maxApprovals + 1 {
		who := fmt.Sprintf("somebody %d", i+1)
		if _, _, err := plan.ApproveStart(&r, model.Approval{ByID: who, By: who, Role: windlassv1.Role_ROLE_OWNER, At: sim.now}); err != nil {
			break
		}
	}
	sim.in.Rollout = &r
	sim.add(Step{Kind: windlassv1.PlanStep_KIND_GATE, Approval: gate.Asked()})
	return plan.StartMissing(r) == ""
}
