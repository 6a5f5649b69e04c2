package api

import windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"

// Access is the table of who may call what.
var Access = access

// Allows reports whether a key of the role will do.
func (n need) Allows(role windlassv1.Role) bool { return n.allows(role) }

// Mutations are the procedures that change something, and the role that each asks for; the
// highest for those that no key of a workspace may call.
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
