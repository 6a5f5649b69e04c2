package api

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Rollback makes a version that is retained live again. Of another it makes a version
// with its configuration: its variables, its image by digest, and as many replicas as
// the app has now. While such a version is on its way, it is the answer.
func (a *API) Rollback(ctx context.Context, req *windlassv1.RollbackRequest) (res *windlassv1.RollbackResponse, err error) {
	defer func() { a.counted("rollback", err) }()
	res, _, err = mutate(ctx, a, req, func(c *change) (*windlassv1.RollbackResponse, error) {
		app, environment, err := c.appToChange(req.GetApp())
		if err != nil {
			return nil, err
		}
		old, err := c.rollbackTo(app, req.GetVersion())
		if err != nil {
			return nil, err
		}
		if res, err := c.restore(app, old, req.GetMessage()); res != nil || err != nil {
			return res, err
		}
		spec := proto.CloneOf(old.Spec)
		spec.Replicas = new(app.Replicas)
		spec.Message = req.GetMessage()
		if err := c.checkAgain(spec, environment, "spec.env"); err != nil {
			return nil, err
		}
		out, err := c.run(app, version{Spec: spec, Source: model.SourceRollback, FromVersion: old.Version, ResolvedImage: old.ResolvedImage})
		if err != nil {
			return nil, err
		}
		if out.Unchanged && out.Deployment.ID == app.LiveDeploymentID && app.RolloutID == "" {
			return nil, nothingToDo(fmt.Sprintf("v%d, which is live, has the configuration of v%d already", out.Deployment.Version, old.Version),
				"Name another version.")
		}
		err = c.audit("deployment", out.Deployment.ID, deploymentProto(facts{}, app, old), deploymentProto(facts{}, app, out.Deployment))
		if err != nil {
			return nil, err
		}
		return &windlassv1.RollbackResponse{
			DeploymentId: out.Deployment.ID, RolloutId: out.RolloutID, Version: out.Deployment.Version, FromVersion: old.Version,
		}, nil
	})
	return res, err
}

// restore makes a retained version live again; nil if it is none, or serves no longer.
func (c *change) restore(app model.App, old model.Deployment, message string) (*windlassv1.RollbackResponse, error) {
	s, err := c.stagingOf(app)
	if err != nil || s.Course.Retained() != old.ID {
		return nil, err
	}
	r, err := c.running(app)
	if err != nil {
		return nil, err
	}
	f, err := c.api.factsOf(c.Tx, app, r)
	if err != nil {
		return nil, err
	}
	before := deploymentProto(facts{}, app, *r.live)
	if !plan.Restore(r.staging.Course, &app, r.live, &old, f.places(app.ID, old.ID, topology.Active), c.at) {
		return nil, nil
	}
	if err := c.store(&app); err != nil {
		return nil, err
	}
	if err := c.UpdateDeployment(*r.live); err != nil {
		return nil, fmt.Errorf("supersede deployment %s: %w", r.live.ID, err)
	}
	if err := c.putStaging(r.staging); err != nil {
		return nil, err
	}
	why := fmt.Sprintf("it was retained, and takes the place of v%d with the replicas that it has", r.live.Version)
	if message != "" {
		why += ": " + message
	}
	c.log(app, model.History{What: "LiveReturned", Why: why, DeploymentID: old.ID, Version: old.Version})
	c.claims(app, &old, nil, r.rows)
	if err := c.wake(app.ID); err != nil {
		return nil, err
	}
	return &windlassv1.RollbackResponse{
		DeploymentId: old.ID, Version: old.Version, FromVersion: old.Version, Retained: true,
	}, c.audit("deployment", old.ID, before, deploymentProto(facts{}, app, old))
}

// rollbackTo finds the version asked for; 0 is the previous stable one.
func (c *change) rollbackTo(app model.App, number int32) (d model.Deployment, err error) {
	if number == 0 {
		if app.PreviousDeploymentID == "" {
			return d, nothingToDo(fmt.Sprintf("app %s has no earlier version that was stable", app.Name), "Name a version.")
		}
		d, err = c.GetDeployment(app.WorkspaceID, app.PreviousDeploymentID)
	} else {
		d, err = c.GetDeploymentByVersion(app.WorkspaceID, app.ID, number)
	}
	switch {
	case c.api.cfg.IsNotFound(err):
		return d, nothingToDo(fmt.Sprintf("app %s has no version %d", app.Name, number),
			fmt.Sprintf("Its newest is %d; list its deployments for those that are kept.", app.LatestVersion))
	case err != nil:
		return d, fmt.Errorf("read version %d of app %s: %w", number, app.ID, err)
	}
	return d, nil
}
