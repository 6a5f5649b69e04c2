package model

import windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"

// RoleName is the word of a key's role in files, messages and the CLI.
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
