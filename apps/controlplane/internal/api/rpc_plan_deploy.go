package api

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/preview"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// PlanDeploy returns what Deploy would do, by running it on a transaction that writes nothing.
func (a appService) PlanDeploy(ctx context.Context, req *windlassv1.PlanDeployRequest) (*windlassv1.PlanDeployResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	deploy := deployOf(req)
	presets, err := a.presetsFor(ctx, by.WorkspaceID, req.GetSpec().GetServe().GetEngine())
	if err != nil {
		return nil, err
	}
	var p *preview.Deploy
	err = a.cfg.Store.Snapshot(ctx, func(tx Tx) (err error) {
		p, err = a.previewDeploy(ctx, tx, by, deploy, presets)
		return err
	})
	if err != nil {
		return nil, err
	}
	// The forecast runs after the transaction, because it can take long.
	return p.Response()
}

// deployOf returns the deploy that the request plans.
func deployOf(req *windlassv1.PlanDeployRequest) *windlassv1.DeployRequest {
	return &windlassv1.DeployRequest{
		App: req.GetApp(), Spec: req.GetSpec(), Rollout: req.GetRollout(), Freeze: req.GetFreeze(), Scaling: req.GetScaling(),
	}
}

// previewDeploy runs the deploy on a transaction that writes nothing. presets are the presets that the spec may use.
func (a appService) previewDeploy(ctx context.Context, tx Tx, by caller, req *windlassv1.DeployRequest, presets *preset.Registry) (*preview.Deploy, error) {
	c := a.newMutation(ctx, tx, by, true)
	c.dry = newDryTx(tx)
	c.Tx = c.dry
	var done *windlassv1.DeployResponse
	var err error
	presets = presets.Within(ctx) // each run of the transaction has its own limit
	spec, findings := appspec.Expand(req.GetSpec(), presets)
	findings = append(findings, appspec.DeadlineFindings(spec, req.GetRollout())...)
	c.dry.warnings = appspec.Warnings(findings)
	if c.dry.against = appspec.Refusals(findings); len(c.dry.against) == 0 {
		if spec, err = a.checkDeploy(req, spec); err == nil {
			done, err = c.deployVersion(req, spec, presets, findings)
		}
	}
	c.dry.mutationEnded = true
	if err == nil && done != nil {
		err = c.admitUsage()
	}
	if err := c.collectRefusal(err); err != nil {
		return nil, err
	}
	p := &preview.Deploy{
		At: c.at, Refusals: c.dry.against, Warnings: c.dry.warnings, Answer: done, App: c.dry.app, WasApp: c.dry.wasApp, Woken: c.dry.woken,
		WasPolicy: c.dry.wasRolloutState.Policy, Policy: appspec.PolicyWithDefaults(req.GetRollout()),
		WasScaling: c.dry.wasScaling, Scaling: req.GetScaling(), Features: c.dry.features,
	}
	if done == nil {
		return p, nil
	}
	if err := c.previewQuota(p); err != nil {
		return nil, err
	}
	return p, c.previewRollout(p)
}

// previewQuota reads the workspace's quota, and computes its usage after the deploy.
func (c *mutation) previewQuota(p *preview.Deploy) error {
	w, err := c.GetWorkspace(c.workspaceID)
	if err != nil {
		return fmt.Errorf("read workspace %s: %w", c.workspaceID, err)
	}
	have, err := c.GetAdmission(w.ID)
	if err != nil {
		return fmt.Errorf("read limits of workspace %s: %w", w.ID, err)
	}
	if p.Quota, err = c.api.quotaView(c, w, have); err != nil {
		return err
	}
	p.UsageAfter = proto.CloneOf(p.Quota.GetUsage())
	if c.asked != nil {
		was, after := c.asked.usageBefore(), c.asked.after.Usage()
		p.UsageAfter.Apps += after.Apps - was.Apps
		p.UsageAfter.Deployments += after.Deployments - was.Deployments
		p.UsageAfter.Instances += after.Instances - was.Instances
		p.UsageAfter.Gpus += after.GPUs - was.GPUs
		p.UsageAfter.Rollouts += after.Rollouts - was.Rollouts
	}
	if p.UsageAfter.GetStartsLeft() > 0 {
		p.UsageAfter.StartsLeft--
	}
	return nil
}

// previewRollout reads the input that the workflow would have, and the app's versions before and after.
func (c *mutation) previewRollout(p *preview.Deploy) (err error) {
	t, id := afterTx{c.dry}, p.Answer.GetDeploymentId()
	if p.Preview, err = preview.Read(t, *t.app, id, t.wasRows); err != nil {
		return err
	}
	if t.wasApp != nil {
		p.Live = p.Deployment(t.wasApp.LiveDeploymentID)
		p.Supersedes = t.rollouts[t.wasApp.RolloutID].Version
	}
	p.WasSizes = running{live: p.Live, rows: t.wasRows, rolloutState: t.wasRolloutState}.liveSizes()
	if p.Answer.GetUnchanged() && p.Live != nil && p.Live.ID == id {
		// The deploy keeps scaled replicas. The stored spec has only the replicas with which the version began.
		p.Sizes = p.WasSizes
	}
	if !p.Answer.GetScaled() {
		return nil
	}
	p.Sizes = map[string]int32{}
	for _, row := range quotaRows(t.rolloutState, *t.app, p.Live, p.Deployment(id), t.topologyAfter()) {
		if row.DeploymentID == id && topology.Active(row) {
			p.Sizes[row.RegionID] = row.Replicas
		}
	}
	return nil
}
