package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Cancel asks the workflow to undo the rollout in flight. A second call meanwhile returns the same rollout.
func (a appService) Cancel(ctx context.Context, req *windlassv1.CancelRequest) (res *windlassv1.CancelResponse, err error) {
	res, _, err = mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.CancelResponse, error) {
		app, err := c.lockedApp(req.GetApp())
		if err != nil {
			return nil, err
		}
		if err := sameRollout(app, app.RolloutID, req.GetRolloutId()); err != nil {
			return nil, err
		}
		f, err := c.versions().activeRolloutOf(app)
		if err != nil {
			return nil, err
		}
		if f.rollout == nil {
			return nil, apierr.NothingToDo(fmt.Sprintf("app %s has no rollout in flight", app.Name), "The live version can be rolled back, and the app can be deleted.")
		}
		unchanged := f.rollout.CancelRequested
		return &windlassv1.CancelResponse{RolloutId: f.rollout.ID, Unchanged: unchanged}, c.rollouts().cancelRollout(app, *f.rollout, req.GetWhy())
	})
	return res, err
}

// cancelRollout asks the workflow to undo the rollout in flight. A second call changes nothing.
func (c rolloutMutation) cancelRollout(app model.App, was model.Rollout, message string) error {
	if was.CancelRequested {
		return nil
	}
	r := was
	r.CancelRequested, r.CancelledBy, r.CancelWhy = true, c.by.Name, message
	if err := c.UpdateRollout(r); err != nil {
		return fmt.Errorf("cancel rollout %s: %w", r.ID, err)
	}
	why := "the live deployment stays"
	if app.LiveDeploymentID == "" {
		why = "nothing is live"
	}
	if message != "" {
		why += ": " + message
	}
	c.log(app, model.History{
		What: "CancelRequested", Why: why, RolloutID: r.ID, DeploymentID: r.DeploymentID, Version: r.Version,
	})
	if err := c.wake(app.ID); err != nil {
		return err
	}
	return c.auditChange("rollout", r.ID, rolloutProto(was), rolloutProto(r))
}
