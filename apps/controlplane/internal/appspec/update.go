package appspec

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/pool"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// fillUpdate removes an update that has only default values, so that the spec has the same hash as a spec without an
// update.
func fillUpdate(s *windlassv1.DeploymentSpec) {
	u := s.GetUpdate()
	if u != nil && model.IsPooled(s) {
		if u.WhenFull == windlassv1.PoolUpdate_WHEN_FULL_WAIT {
			u.WhenFull = windlassv1.PoolUpdate_WHEN_FULL_UNSPECIFIED
		}
		if u.Order == windlassv1.PoolUpdate_ORDER_COHERENT && len(u.GetSequence()) == 0 {
			u.Order = windlassv1.PoolUpdate_ORDER_UNSPECIFIED
		}
	}
	if proto.Size(u) == 0 {
		s.Update = nil
	}
}

// checkUpdate validates the order in which the roles of a pool move.
func checkUpdate(s *windlassv1.DeploymentSpec, field string) error {
	u := s.GetUpdate()
	if u == nil {
		return nil
	}
	names := roleNames(s.GetRoles())
	switch {
	case !model.IsPooled(s):
		return apierr.InvalidFix(field, "only the roles of a pool move in an order, but each replica of this app is updated as a whole", "Use layout pooled, or leave update out.")
	case u.GetOrder() != windlassv1.PoolUpdate_ORDER_SEQUENTIAL && len(u.GetSequence()) > 0:
		return apierr.InvalidFix(field+".sequence", fmt.Sprintf("order %s has no sequence", pool.OrderName(u)), "Leave sequence out, or use order sequential.")
	}
	for i, name := range u.GetSequence() {
		at := fmt.Sprintf("%s.sequence[%d]", field, i)
		switch {
		case !slices.Contains(names, name):
			return apierr.InvalidFix(at, fmt.Sprintf("the app has no role %q", name), "Its roles are "+strings.Join(names, ", ")+".")
		case slices.Index(u.GetSequence(), name) < i:
			return apierr.InvalidFix(at, fmt.Sprintf("role %q is named twice", name), "Name each role once.")
		}
	}
	return nil
}
