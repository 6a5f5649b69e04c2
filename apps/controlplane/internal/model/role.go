package model

import (
	"fmt"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RoleName returns the name of a key's role in files, messages and the CLI.
func RoleName(r windlassv1.Role) string {
	switch r {
	case windlassv1.Role_ROLE_VIEWER:
		return "viewer"
	case windlassv1.Role_ROLE_DEPLOYER:
		return "deployer"
	case windlassv1.Role_ROLE_OWNER:
		return "owner"
	case windlassv1.Role_ROLE_OPERATOR:
		return "operator"
	case windlassv1.Role_ROLE_UNSPECIFIED:
	}
	return "unknown"
}

// ApproverRole returns the least role of a key that may approve at the gate.
func ApproverRole(gate *windlassv1.Approval) windlassv1.Role {
	if gate.GetRole() == windlassv1.Role_ROLE_UNSPECIFIED {
		return windlassv1.Role_ROLE_OWNER
	}
	return gate.GetRole()
}

// ApprovalText describes n approvals by keys of the role.
func ApprovalText(n int, role windlassv1.Role) string {
	if n > 1 {
		return fmt.Sprintf("approval by %d keys of role %s", n, RoleName(role))
	}
	return "approval by a key of role " + RoleName(role)
}
