package api

import (
	"context"
	"fmt"
	"maps"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// SetEnvironment makes a version from the spec of the newest wanted version, with changed variables.
func (a appService) SetEnvironment(ctx context.Context, req *windlassv1.SetEnvironmentRequest) (res *windlassv1.SetEnvironmentResponse, err error) {
	if err := appspec.CheckEnv(req.GetSet(), "set"); err != nil {
		return nil, err
	}
	for i, name := range req.GetUnset() {
		if _, ok := req.GetSet()[name]; ok {
			return nil, apierr.Invalid(fmt.Sprintf("unset[%d]", i), fmt.Sprintf("variable %s is in both set and unset", name))
		}
	}
	res, _, err = mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.SetEnvironmentResponse, error) {
		app, environment, err := c.appToChange(req.GetApp())
		if err != nil {
			return nil, err
		}
		base, err := c.secrets().wantedDeployment(app)
		if err != nil {
			return nil, err
		}
		if base == nil {
			return nil, apierr.NothingToDo(fmt.Sprintf("app %s has no deployment whose variables could be changed", app.Name), "Deploy it first.")
		}
		spec := proto.CloneOf(base.Spec)
		changeEnv(spec, environment, req)
		spec.Replicas = new(app.Replicas)
		spec.Message = req.GetMessage()
		gone, err := c.checkAgain(spec, environment, "set")
		if err != nil {
			return nil, err
		}
		if region, err := c.regions().servesIn(app, gone); err != nil {
			return nil, err
		} else if region != "" {
			// A version without the region would remove capacity, which the caller does not expect.
			return nil, apierr.InUse(fmt.Sprintf("app %s serves in region %s, which the workspace may no longer use", app.Name, region),
				"Deploy it without that region first, or ask an operator to grant the region again.")
		}
		if err := c.specs().resolveSecrets(environment.ID, spec, "spec"); err != nil {
			return nil, err
		}
		d, err := c.makeVersion(app, version{Spec: spec, Source: "environment", ResolvedImage: base.ResolvedImage, Override: req.GetOverrideFreeze(), Gone: gone})
		if err != nil {
			return nil, err
		}
		if err := d.findRoom(); err != nil {
			return nil, err
		}
		if err := d.auditVersion(base); err != nil {
			return nil, err
		}
		out := d.out
		return &windlassv1.SetEnvironmentResponse{
			DeploymentId: out.Deployment.ID, RolloutId: out.RolloutID, Version: out.Deployment.Version, Unchanged: out.Unchanged, Hold: out.Hold,
			Effect: out.Effect, TookBack: out.Ended.Version, TookBackRolloutId: out.Ended.ID, Warnings: leftOut(gone),
		}, nil
	})
	return res, err
}

// changeEnv sets and unsets the spec's own variables. Then it adds the environment's current variables and the
// preset's variables, where the spec does not have its own.
func changeEnv(spec *windlassv1.DeploymentSpec, e model.Environment, req *windlassv1.SetEnvironmentRequest) {
	own := appspec.OwnEnv(spec)
	if own == nil {
		own = map[string]string{}
	}
	maps.Copy(own, req.GetSet())
	inherited, made := maps.Clone(e.Variables), spec.GetGenerated().GetEnv()
	for name := range req.GetSet() {
		delete(made, name)
	}
	for _, name := range req.GetUnset() {
		delete(own, name)
		delete(inherited, name)
		delete(made, name)
	}
	appspec.InheritEnv(spec, inherited, own)
}

// appToChange locks and returns an app that gets a new version. It first locks the app's environment, because the
// version may refer to secrets.
func (c *mutation) appToChange(ref string) (app model.App, e model.Environment, err error) {
	if app, err = c.api.findApp(c.Tx, c.workspaceID, ref, false); err != nil {
		return app, e, err
	}
	if e, err = c.LockEnvironment(c.workspaceID, app.EnvironmentID); err != nil {
		return app, e, fmt.Errorf("lock environment %s: %w", app.EnvironmentID, err)
	}
	if app, err = c.lockedApp(app.ID); err != nil {
		return app, e, err
	}
	return app, e, requireNotDeleted(app)
}

// checkAgain checks the spec of an earlier version against the current regions and secrets. It removes from the spec
// the regions that the workspace may no longer use, and returns their names.
func (c *mutation) checkAgain(spec *windlassv1.DeploymentSpec, e model.Environment, envField string) (gone []string, err error) {
	if err := appspec.CheckEnv(spec.GetEnv(), envField); err != nil {
		return nil, err
	}
	// The app may now have fewer replicas than min_ready. Then all of them must be ready.
	bare := proto.CloneOf(spec)
	bare.Replicas = nil
	if err := appspec.Check(bare, "spec"); err != nil {
		return nil, err
	}
	if gone, err = c.regions().withoutGone(spec, "spec"); err != nil {
		return nil, err
	}
	if err := c.specs().repinOverrides(spec); err != nil {
		return nil, err
	}
	if err := appspec.CheckOverridden(spec, "spec"); err != nil {
		return nil, err
	}
	return gone, c.specs().checkSecretsExist(e.ID, spec, "spec")
}
