package api

import windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"

// Access is the table of who may call what.
var Access = access

// Allows reports whether a key of the role will do.
func (n need) Allows(role windlassv1.Role) bool { return n.allows(role) }
