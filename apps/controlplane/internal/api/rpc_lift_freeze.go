package api

import (
	"context"
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// LiftFreeze ends and deletes a freeze.
func (a freezeService) LiftFreeze(ctx context.Context, req *windlassv1.LiftFreezeRequest) (*windlassv1.LiftFreezeResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.LiftFreezeResponse, error) {
		have, err := c.freezing().freezesFor("", req.GetName())
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(have, func(f model.Freeze) bool { return f.Name == req.GetName() })
		if i < 0 {
			return nil, apierr.Missing("name", "freeze", req.GetName(), "`windlass freeze list` shows the freezes.")
		}
		if err := ofNoFile(have[i]); err != nil {
			return nil, err
		}
		before, err := freezeView(c, have[i], c.at)
		if err != nil {
			return nil, err
		}
		if err := c.DeleteFreeze(c.workspaceID, have[i].Name); err != nil {
			return nil, fmt.Errorf("lift freeze %s: %w", have[i].Name, err)
		}
		ids, err := c.freezing().wakeFrozen()
		if err != nil {
			return nil, err
		}
		return &windlassv1.LiftFreezeResponse{AppIds: ids}, c.auditChange("freeze", have[i].ID, before, nil)
	})
	return res, err
}
