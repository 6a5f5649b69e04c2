package api

import (
	"context"
	"fmt"
	"slices"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/pins"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// UnpinVersion ends a pin. A second call while the pin is being removed changes nothing. Freezes do not apply
// to it.
func (a appService) UnpinVersion(ctx context.Context, req *windlassv1.UnpinVersionRequest) (res *windlassv1.UnpinVersionResponse, err error) {
	res, _, err = mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.UnpinVersionResponse, error) {
		app, err := c.lockedApp(req.GetApp())
		if err != nil {
			return nil, err
		}
		if err := requireNotDeleted(app); err != nil {
			return nil, err
		}
		r, err := c.versions().readRunning(app)
		if err != nil {
			return nil, err
		}
		pinned, err := c.ListPins([]string{app.ID})
		if err != nil {
			return nil, fmt.Errorf("list pins of app %s: %w", app.ID, err)
		}
		i := slices.IndexFunc(pinned, func(p model.Pin) bool { return p.Version == req.GetVersion() })
		var have *model.Pin
		if i >= 0 {
			have = &pinned[i]
		}
		if err := comparePin(app, req.GetVersion(), have, req.ResourceVersion); err != nil {
			return nil, err
		}
		if have == nil {
			return nil, rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
				Reason: windlassv1.ErrorReason_ERROR_REASON_NOT_PINNED, Field: "version",
				Fix: "`windlass pins` lists the pinned versions.",
			}, fmt.Sprintf("v%d of app %s is not pinned", req.GetVersion(), app.Name))
		}
		p := pinned[i]
		before, err := c.pins().pinView(app, p)
		if err != nil {
			return nil, err
		}
		if !pins.Remove(&p, c.at) {
			return &windlassv1.UnpinVersionResponse{Pin: before}, nil
		}
		p = p.Changed(c.by.Name, req.GetWhy(), c.at)
		if err := c.PutPin(p); err != nil {
			return nil, fmt.Errorf("store pin of %s: %w", p.DeploymentID, err)
		}
		view, err := c.pins().tellPin(app, r, p, before, "VersionUnpinned", fmt.Sprintf("its %d %% of the traffic go to the other versions", p.Weight))
		return &windlassv1.UnpinVersionResponse{Pin: view}, err
	})
	return res, err
}
