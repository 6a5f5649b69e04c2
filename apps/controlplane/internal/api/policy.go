package api

import (
	"fmt"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// mayLoosen fails if the next policy loosens a gate at which the caller may not approve. Otherwise a deployer could
// remove the gate at which the rollout waits.
func (c versionMutation) mayLoosen(was, next *windlassv1.RolloutPolicy) error {
	for _, g := range plan.LoosenedGates(was, next) {
		if c.by.Role >= g.Role() {
			continue
		}
		kept := &windlassv1.Approval{Role: g.Role(), Count: max(1, g.Gate.GetCount()), NotDeployer: g.Gate.GetNotDeployer()}
		text := fmt.Sprintf("{role: %s, count: %d, notDeployer: %t}", model.RoleName(kept.GetRole()), kept.GetCount(), kept.GetNotDeployer())
		return rpc.ErrorWith(connect.CodePermissionDenied, &windlassv1.ErrorDetail{
			Reason: windlassv1.ErrorReason_ERROR_REASON_NOT_AN_APPROVER, Field: "rollout." + g.Field,
			Fix: fmt.Sprintf("Keep approval %s there, with the same traffic and regions before the gate, or deploy the change with a key of role %s.", text, model.RoleName(g.Role())),
		}, fmt.Sprintf("the app's policy requires approval %s, and the new policy loosens it, which needs role %s", text, model.RoleName(g.Role())))
	}
	return nil
}
