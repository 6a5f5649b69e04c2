package api

import windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"

// Access is the table of the roles that may call each procedure.
var Access = access

// Allows reports whether a key of the role is enough.
func (n need) Allows(role windlassv1.Role) bool { return n.allowsRole(role) }

// Mutations returns the procedures that change something, with the role that each requires. For procedures that no
// key of a workspace may call, it is the highest role.
func Mutations() map[string]windlassv1.Role {
	out := map[string]windlassv1.Role{}
	for procedure, n := range access {
		if reads[procedure] {
			continue
		}
		out[procedure] = n.Role
		if n.Role == windlassv1.Role_ROLE_UNSPECIFIED {
			out[procedure] = windlassv1.Role_ROLE_OPERATOR
		}
	}
	return out
}

var DeployOf = deployOf
