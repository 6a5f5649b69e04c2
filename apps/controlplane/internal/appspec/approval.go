package appspec

import (
	"cmp"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// CheckApproval validates the role that approves at a gate. manual means that the rollout also waits for a promotion
// there, which any key that may deploy can do.
func CheckApproval(gate *windlassv1.Approval, manual bool, field string) error {
	switch {
	case gate == nil:
		return nil
	case manual:
		return apierr.InvalidFix(field, "it waits for a promotion, which every deployer may do, and for an approval", "Leave one of the two out. An approval is stricter.")
	}
	switch gate.GetRole() { //nolint:exhaustive // keys of other roles cannot approve
	case windlassv1.Role_ROLE_UNSPECIFIED, windlassv1.Role_ROLE_DEPLOYER, windlassv1.Role_ROLE_OWNER:
		return nil
	}
	return apierr.InvalidFix(field+".role", "a key of role "+model.RoleName(gate.GetRole())+" cannot approve", "Use deployer or owner.")
}

// ApprovalWithDefaults sets the defaults of the gate's missing fields.
func ApprovalWithDefaults(gate *windlassv1.Approval) {
	if gate == nil {
		return
	}
	gate.Role = cmp.Or(gate.Role, windlassv1.Role_ROLE_OWNER)
	gate.Count = cmp.Or(gate.Count, 1)
}
