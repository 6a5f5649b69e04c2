package appspec

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	"github.com/windlass-run/windlass/pkg/pool"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A slot is stable only if the successor of an instance takes its slot. So an instance stops before its successor
// starts, and the version that moves in takes over the instances of the version before it.

// checkSlots refuses fields that cannot be combined with stable slots.
func checkSlots(s *windlassv1.DeploymentSpec, field string) error {
	names := model.StableRoles(s)
	switch {
	case len(names) == 0 || !model.IsPooled(s):
	case !pool.OrderOf(s.GetUpdate()).InPlace(len(s.GetRoles())):
		return apierr.InvalidFix(field+".update.order", fmt.Sprintf("role %q has stable slots, but order %s starts instances of a second version in other slots", names[0], pool.OrderName(s.GetUpdate())),
			"Use order sequential, interleaved or parallel, or leave slots out.")
	case model.ReplacesWhenFull(s):
		return apierr.InvalidFix(field+".update.whenFull", fmt.Sprintf("role %q has stable slots, in which an instance always stops before its successor starts", names[0]),
			"Leave whenFull out.")
	}
	return nil
}

// checkSlotsPolicy refuses a policy that would not keep stable slots. p is nil for the default policy.
func checkSlotsPolicy(p *windlassv1.RolloutPolicy, s *windlassv1.DeploymentSpec, field string) error {
	names := model.StableRoles(s)
	switch {
	case len(names) == 0:
	case !model.IsPooled(s) && strategy.Of(p).Order() != strategy.InPlace:
		return apierr.InvalidFix(field+".strategy", fmt.Sprintf("role %q has stable slots, but strategy %s starts new instances in other slots", names[0], strategy.Name(p)),
			"Use strategy inPlace, which replaces instances in their slots, or leave slots out.")
	case !model.IsPooled(s), strategy.Of(p) != strategy.Of(nil): // checkPoolPolicy refuses other strategies of a pool
	case p.GetMaxUnavailable() == "" || isNone(p.GetMaxUnavailable()):
		return apierr.InvalidFix(field+".maxUnavailable", fmt.Sprintf("role %q has stable slots, in which an instance stops before its successor starts", names[0]),
			"Set maxUnavailable to 1% or more, or leave slots out.")
	case p.GetMaxSurge() != "" && !isNone(p.GetMaxSurge()):
		return apierr.InvalidFix(field+".maxSurge", fmt.Sprintf("maxSurge is %s, but role %q has stable slots, and no other slot gets an instance", p.GetMaxSurge(), names[0]),
			"Leave maxSurge out, or leave slots out.")
	}
	return nil
}
