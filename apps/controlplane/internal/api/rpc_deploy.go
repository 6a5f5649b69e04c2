package api

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Deploy makes the app's next version. It answers once that is durable.
func (a appService) Deploy(ctx context.Context, req *windlassv1.DeployRequest) (res *windlassv1.DeployResponse, err error) {
	defer func() { a.counted("deploy", err) }()
	spec, err := a.checkDeploy(req)
	if err != nil {
		return nil, err
	}
	res, _, err = mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.DeployResponse, error) {
		return c.deploys().deploy(req, proto.CloneOf(spec))
	})
	return res, err
}

// checkDeploy judges what can be without the database, and returns the spec with its
// defaults.
func (a appService) checkDeploy(req *windlassv1.DeployRequest) (*windlassv1.DeploymentSpec, error) {
	spec := appspec.WithDefaults(req.GetSpec())
	if err := appspec.Check(spec, "spec"); err != nil {
		return nil, err
	}
	if err := appspec.CheckPolicy(req.GetRollout(), spec, "rollout"); err != nil {
		return nil, err
	}
	if err := appspec.CheckProgress(req.GetRollout(), req.GetSpec(), "rollout"); err != nil {
		return nil, err
	}
	if err := a.canMeasure(req.GetRollout(), "rollout.analysis"); err != nil {
		return nil, err
	}
	return spec, nil
}

func (c deployMutation) deploy(req *windlassv1.DeployRequest, spec *windlassv1.DeploymentSpec) (*windlassv1.DeployResponse, error) {
	app, environment, err := c.appToDeploy(req.GetApp(), appspec.UsesSecrets(spec))
	if err != nil {
		return nil, err
	}
	if err := c.specs().checkRegions(spec, "spec"); err != nil {
		return nil, err
	}
	if err := c.specs().pinSecrets(environment.ID, spec, "spec"); err != nil {
		return nil, err
	}
	if err := c.specs().checkSigningSecrets(environment.ID, req.GetRollout(), "rollout.analysis"); err != nil {
		return nil, err
	}
	if err := c.hold(c.specs().pinOverrides(spec, "spec")); err != nil {
		return nil, err
	}
	appspec.InheritEnv(spec, environment.Variables, spec.GetEnv())
	if err := appspec.CheckEnv(spec.GetEnv(), "spec.env"); err != nil {
		return nil, err
	}
	if err := c.hold(c.specs().checkWaves(req.GetRollout(), spec)); err != nil {
		return nil, err
	}
	v := version{
		Spec: spec, Asked: appspec.AskedBy(spec), Source: "deploy",
		SetsPolicy: true, Policy: appspec.PolicyWithDefaults(req.GetRollout()), Override: req.GetOverrideFreeze(),
		Freeze: req.GetFreeze(),
	}
	if spec.Replicas == nil {
		spec.Replicas = new(app.Replicas)
	}
	if err := appspec.Check(spec, "spec"); err != nil {
		return nil, err
	}
	if err := appspec.CheckOverridden(spec, "spec"); err != nil {
		return nil, err
	}
	out, err := c.versions().run(app, v)
	if err != nil {
		return nil, err
	}
	if err := c.versions().roomToBegin(app, out); err != nil {
		return nil, err
	}
	if !out.Unchanged {
		if err := c.audit("deployment", out.Deployment.ID, nil, deploymentProto(facts{}, app, out.Deployment)); err != nil {
			return nil, err
		}
	}
	tookBack, tookBackID := out.tookBack()
	return &windlassv1.DeployResponse{
		AppId: app.ID, DeploymentId: out.Deployment.ID, RolloutId: out.RolloutID, Version: out.Deployment.Version,
		Unchanged: out.Unchanged, Scaled: out.Scaled, Hold: out.Hold,
		Effect: out.Effect, TookBack: tookBack, TookBackRolloutId: tookBackID, Warnings: out.Tightened,
	}, nil
}

// appToDeploy returns the app, locked, and its environment; it makes the app when
// there is none of that name. With pinEnvironment the environment's secrets stay
// what they are to the end of the transaction. Locks: environment, then app.
func (c deployMutation) appToDeploy(ref string, pinEnvironment bool) (app model.App, e model.Environment, err error) {
	found := true
	if ident.Valid("app", ref) {
		if app, err = c.api.app(c.Tx, c.workspaceID, ref, false); err != nil {
			return app, e, err
		}
		if e, err = c.GetEnvironment(c.workspaceID, app.EnvironmentID); err != nil {
			return app, e, fmt.Errorf("read environment %s: %w", app.EnvironmentID, err)
		}
	} else {
		environment, name := splitApp(ref)
		if !ident.ValidName(name) {
			return app, e, apierr.Invalid("app", fmt.Sprintf(
				"%q does not name an app: use its id, name, or project/environment/name, each of at most 63 lower-case letters, digits and dashes", apierr.Clip(name, 100)))
		}
		if e, err = c.api.environment(c.Tx, c.workspaceID, environment, "app"); err != nil {
			return app, e, err
		}
		app, err = c.GetAppByName(c.workspaceID, e.ID, name)
		if found = !errors.Is(err, model.ErrNotFound); found && err != nil {
			return app, e, fmt.Errorf("read app %s: %w", ref, err)
		}
	}
	if !found {
		_, name := splitApp(ref)
		if app, err = c.insertApp(e, name, ""); !errors.Is(err, model.ErrExists) {
			return app, e, err
		}
		// It was made meanwhile.
		if app, err = c.GetAppByName(c.workspaceID, e.ID, name); err != nil {
			return app, e, fmt.Errorf("read app %s: %w", ref, err)
		}
	}
	if pinEnvironment {
		if e, err = c.LockEnvironment(c.workspaceID, e.ID); err != nil {
			return app, e, fmt.Errorf("lock environment %s: %w", e.ID, err)
		}
	}
	if app, err = c.lockedApp(app.ID); err != nil {
		return app, e, err
	}
	return app, e, alive(app)
}

// insertApp writes a new app. That its environment was not deleted under it is
// looked at in the end, with the workspace locked.
func (c *mutation) insertApp(e model.Environment, name, description string) (model.App, error) {
	app := model.App{
		ID: ident.New("app"), WorkspaceID: c.workspaceID, ProjectID: e.ProjectID, EnvironmentID: e.ID,
		Name: name, Description: description, Status: windlassv1.AppStatus_APP_STATUS_IDLE, Replicas: appspec.DefaultReplicas,
		CreatedAt: c.at, UpdatedAt: c.at, ResourceVersion: 1,
	}
	if err := c.InsertApp(app); err != nil {
		return app, fmt.Errorf("create app %s: %w", name, err)
	}
	c.claims(app, nil, nil, nil)
	c.asked.createdIn = e.ID
	c.log(app, model.History{What: "AppCreated", Why: "it did not exist in environment " + e.Name})
	return app, nil
}

// alive fails for an app that is on its way out.
func alive(app model.App) error {
	if app.DeletingSince == 0 {
		return nil
	}
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_APP_DELETING, Field: "app",
		Fix: "Wait until it is gone, or use another name.",
	}, fmt.Sprintf("app %s is being deleted: nothing new starts", app.Name))
}
