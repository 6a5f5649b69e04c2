package plan

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// routingOf is how the app's requests are routed: as its live version says, also while a new
// one has a share of them, and as its first one says before any is live. A policy that moved
// with the weights would be in force for part of the old version's requests, and one that moved
// with the start of a rollout would not be what was tried when it goes back.
func routingOf(app model.App, rollout *model.Rollout, deployments map[string]*model.Deployment) *windlassv1.RoutingPolicy {
	id := app.LiveDeploymentID
	if id == "" && rollout != nil {
		id = rollout.DeploymentID
	}
	if d := deployments[id]; d != nil {
		return d.Spec.GetRouting()
	}
	return nil
}

// routingAfter is routingOf once out is written.
func (in Input) routingAfter(out *Output) *windlassv1.RoutingPolicy {
	app, rollout, deployments := in.App, in.Rollout, make(map[string]*model.Deployment, len(in.Deployments))
	if out.App != nil {
		app = *out.App
	}
	if out.Rollout != nil {
		rollout = out.Rollout
	}
	for _, d := range in.Deployments {
		deployments[d.ID] = &d
	}
	return routingOf(app, rollout, deployments)
}
