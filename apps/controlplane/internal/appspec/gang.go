package appspec

import (
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// defaultGangTimeout is the default of gang.timeout.
const defaultGangTimeout = 10 * time.Minute

// fillGang removes default values of a gang, so that the spec has the same hash as a spec without them.
func fillGang(s *windlassv1.DeploymentSpec) {
	g := s.GetGang()
	if g == nil {
		return
	}
	usual := windlassv1.Gang_OF_NONE
	if model.HasSeveralHosts(s) {
		usual = windlassv1.Gang_OF_UNIT
	}
	if g.Of == usual {
		g.Of = windlassv1.Gang_OF_UNSPECIFIED
	}
	if g.Timeout != nil && g.Timeout.AsDuration() == defaultGangTimeout && (g.Of == windlassv1.Gang_OF_GROUP || model.HasSeveralHosts(s)) {
		g.Timeout = nil
	}
	if g.Of == windlassv1.Gang_OF_UNSPECIFIED && g.Timeout == nil {
		s.Gang = nil
	}
}

// checkGang validates which pods start all or nothing.
func checkGang(s *windlassv1.DeploymentSpec, field string) error {
	g := s.GetGang()
	if g == nil {
		return nil
	}
	switch of := g.GetOf(); {
	case of == windlassv1.Gang_OF_UNIT && !model.HasSeveralHosts(s):
		return apierr.InvalidFix(field+".of", "no instance has several hosts, so each gang would be one pod", "Set hosts of a role, use of: group, or leave gang out.")
	case of == windlassv1.Gang_OF_GROUP && model.IsPooled(s):
		return apierr.InvalidFix(field+".of", "the instances of a pool start and stop one by one", "Leave gang out, or use layout replicas.")
	case of == windlassv1.Gang_OF_GROUP && len(s.GetRoles()) < 2 && !model.HasSeveralHosts(s):
		return apierr.InvalidFix(field+".of", "a replica is one instance of one host, so each gang would be one pod", "Name several roles, set hosts, or leave gang out.")
	case of == windlassv1.Gang_OF_GROUP && slices.ContainsFunc(s.GetRoles(), func(r *windlassv1.RoleSpec) bool { return len(r.GetStartsAfter()) > 0 }):
		return apierr.InvalidFix(field+".of", "all pods of a group start at once, but a role starts after another one", "Remove startsAfter, or use of: unit.")
	case g.GetTimeout() != nil && of != windlassv1.Gang_OF_GROUP && (of == windlassv1.Gang_OF_NONE || !model.HasSeveralHosts(s)):
		return apierr.InvalidFix(field+".timeout", "the app has no gangs, because each pod starts by itself", "Leave timeout out, or use of: group, or of: unit with hosts of a role.")
	}
	return nil
}
