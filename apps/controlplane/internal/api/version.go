package api

import (
	"cmp"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// version is a configuration that an app should run.
type version struct {
	// Spec is complete: defaults, pinned variables, replicas.
	Spec *windlassv1.DeploymentSpec
	// Asked are the replicas that the caller requests. Where the caller requests none, Spec has the app's current
	// replicas, and the app is not scaled.
	Asked plan.Asked
	// Source is "deploy", "environment", model.SourceSecret or model.SourceRollback.
	Source      string
	FromVersion int32
	// Straight means that the rollout uses plan.StraightPolicy, with KeepGates as argument.
	Straight, KeepGates bool
	// KeepsFeatures means that features are not checked, because this is the previous stable version.
	KeepsFeatures bool
	// Gone are regions that were removed from Spec, because the workspace may no longer use them.
	Gone          []string
	ResolvedImage string
	// SetsPolicy means that Policy, Scaling and Freeze replace the app's policies and own freeze. nil means none.
	SetsPolicy bool
	Policy     *windlassv1.RolloutPolicy
	Freeze     *windlassv1.FileFreeze
	// Scaling is the new scaling policy, see SetsPolicy.
	Scaling *windlassv1.ScalingPolicy
	// Override is the reason to start in spite of freezes, empty for none.
	Override string
}

// outcome is the result of makeVersion.
type outcome struct {
	Deployment model.Deployment
	RolloutID  string
	// Unchanged means that the app already runs Deployment, or has a rollout to it. Scaled means that its
	// replicas changed.
	Unchanged, Scaled bool
	// Effect is the effect of the call.
	Effect windlassv1.VersionEffect
	// Ended is the rollout that was aborted or superseded by this call, zero for none.
	Ended model.Rollout
	// Hold is the freeze that holds the rollout, nil for none.
	Hold *windlassv1.FreezeHold
	// Tightened has texts about requirements of protections beyond the app's policy.
	Tightened []string
	// Started has texts about regions in which the version starts because the app is at zero there.
	Started []string
}

// turnBack aborts a staged rollout, because the live version is wanted again. The app's workflow then moves regions
// back.
func (c versionMutation) turnBack(app model.App, r model.Rollout, why string) error {
	r.CancelRequested, r.CancelledBy, r.CancelWhy = true, c.by.Name, why
	if err := c.UpdateRollout(r); err != nil {
		return fmt.Errorf("abort rollout %s: %w", r.ID, err)
	}
	c.log(app, model.History{
		What: "CancelRequested", Why: why, RolloutID: r.ID, DeploymentID: r.DeploymentID, Version: r.Version,
	})
	return c.wake(app.ID)
}

// supersedeRollout ends the rollout in flight, because another version is wanted now. The app's workflow stops instances
// that the rollout started.
func (c versionMutation) supersedeRollout(app model.App, f activeRollout, why string) (model.App, error) {
	r := *f.rollout
	r.Status, r.Reason, r.Message = windlassv1.RolloutStatus_ROLLOUT_STATUS_SUPERSEDED, plan.ReasonSuperseded, why
	r.FinishedAt = c.at
	if err := c.UpdateRollout(r); err != nil {
		return app, fmt.Errorf("supersede rollout %s: %w", r.ID, err)
	}
	c.ended = append(c.ended, r)
	if d := cmp.Or(f.deployment, f.leaving); d != nil {
		ended := *d
		ended.Status = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED
		ended.Reason, ended.Message, ended.EndedAt = plan.ReasonSuperseded, why, c.at
		if err := c.UpdateDeployment(ended); err != nil {
			return app, fmt.Errorf("supersede deployment %s: %w", d.ID, err)
		}
	}
	c.log(app, model.History{
		What: "RolloutSuperseded", Why: why, RolloutID: r.ID, DeploymentID: r.DeploymentID, Version: r.Version,
	})
	app.RolloutID = ""
	if err := c.store(&app); err != nil {
		return app, err
	}
	return app, c.wake(app.ID)
}
