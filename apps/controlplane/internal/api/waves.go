package api

import (
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// checkWaves fails on a region that no wave takes, and on a wave that takes none.
func (c specMutation) checkWaves(p *windlassv1.RolloutPolicy, spec *windlassv1.DeploymentSpec) error {
	if len(p.GetWaves()) == 0 {
		return nil
	}
	left := map[string]model.Region{}
	for _, n := range spec.GetRegions() {
		r, err := c.GetRegionByName(c.workspaceID, n)
		if errors.Is(err, model.ErrNotFound) {
			r, err = model.Region{Name: n}, nil // it was told of already
		}
		if err != nil {
			return fmt.Errorf("read region %s: %w", n, err)
		}
		left[n] = r
	}
	for i, w := range p.GetWaves() {
		before := len(left)
		for n, r := range left {
			if plan.TakesRegion(w, r) {
				delete(left, n)
			}
		}
		if len(w.GetLabels()) > 0 && len(left) == before {
			return apierr.InvalidFix(fmt.Sprintf("rollout.waves[%d].labels", i), "none of the app's regions that are left has these labels",
				"`windlass list regions -o yaml` shows the labels that there are.")
		}
	}
	for i, n := range spec.GetRegions() {
		if _, ok := left[n]; ok {
			return rpc.ErrorWith(connect.CodeInvalidArgument, &windlassv1.ErrorDetail{
				Reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION, Field: "rollout.waves",
				Fix: "Add it to a wave, or end with a wave that has neither regions nor labels: it takes what is left.",
			}, fmt.Sprintf("spec.regions[%d], %s, is in no wave: it would never move", i, n))
		}
	}
	return nil
}
