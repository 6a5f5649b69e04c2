package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/forecast"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// PlanDeploy tells what Deploy would do, by doing it on a transaction that writes nothing.
func (a *API) PlanDeploy(ctx context.Context, req *windlassv1.PlanDeployRequest) (*windlassv1.PlanDeployResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	deploy := &windlassv1.DeployRequest{App: req.GetApp(), Spec: req.GetSpec(), Rollout: req.GetRollout(), Freeze: req.GetFreeze()}
	var r *dryRun
	err = a.cfg.Store.Snapshot(ctx, func(tx Tx) (err error) {
		r, err = a.dryRun(ctx, tx, by, deploy)
		return err
	})
	if err != nil {
		return nil, err
	}
	// With no transaction open: a long rollout takes its time.
	return r.response()
}

// dryRun is what a deploy would write, and the facts to foresee by what comes of it.
type dryRun struct {
	*dryTx
	req *windlassv1.DeployRequest
	at  int64
	// done is what Deploy would answer, nil if it would be refused before it decides.
	done *windlassv1.DeployResponse
	// live before, nil for none.
	live  *model.Deployment
	quota *windlassv1.Quota
	usage *windlassv1.Usage
	foresight
}

func (a *API) dryRun(ctx context.Context, tx Tx, by caller, req *windlassv1.DeployRequest) (*dryRun, error) {
	c := a.newChange(ctx, tx, by, true)
	c.dry = newDryTx(tx)
	c.Tx = c.dry
	r := &dryRun{dryTx: c.dry, req: req, at: c.at, foresight: foresight{when: " at its peak"}}
	spec, err := a.checkDeploy(req)
	if err == nil {
		r.done, err = c.deploy(req, spec)
	}
	c.dry.counts = true
	if err == nil {
		err = c.admit()
	}
	if err := c.hold(err); err != nil {
		return nil, err
	}
	if r.done == nil {
		return r, nil
	}
	if err := r.readQuota(c); err != nil {
		return nil, err
	}
	return r, r.read(c)
}

func (r *dryRun) readQuota(c *change) error {
	w, err := c.GetWorkspace(c.workspaceID)
	if err != nil {
		return fmt.Errorf("read workspace %s: %w", c.workspaceID, err)
	}
	have, err := c.GetAdmission(w.ID)
	if err != nil {
		return fmt.Errorf("read limits of workspace %s: %w", w.ID, err)
	}
	if r.quota, err = c.api.quotaView(c, w, have); err != nil {
		return err
	}
	r.usage = proto.CloneOf(r.quota.GetUsage())
	if c.asked != nil {
		was, after := c.asked.was(), c.asked.after.Usage()
		r.usage.Apps += after.Apps - was.Apps
		r.usage.Deployments += after.Deployments - was.Deployments
		r.usage.Instances += after.Instances - was.Instances
		r.usage.Gpus += after.GPUs - was.GPUs
		r.usage.Rollouts += after.Rollouts - was.Rollouts
	}
	if r.usage.GetStartsLeft() > 0 {
		r.usage.StartsLeft--
	}
	return nil
}

// read gathers what the planner decides by once the deploy is done.
func (r *dryRun) read(c *change) error {
	r.in, r.was = plan.Input{App: *r.app, Topology: r.topology()}, r.wasRows
	if r.rolloutState.AppID != "" {
		s := r.rolloutState.Clone()
		r.in.RolloutState = &s
	}
	want := map[string]bool{r.done.GetDeploymentId(): true, r.app.LiveDeploymentID: true}
	if id := r.app.RolloutID; id != "" {
		rollout, ok := r.rollouts[id]
		if !ok {
			var err error
			if rollout, err = r.GetRollout(c.workspaceID, id); err != nil {
				return fmt.Errorf("read rollout %s: %w", id, err)
			}
		}
		r.in.Rollout = &rollout
		want[rollout.DeploymentID] = true
	}
	regions := map[string]bool{}
	for _, t := range r.in.Topology {
		regions[t.RegionID] = true
		if t.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
			want[t.DeploymentID] = true
		}
	}
	if err := r.readPins(c, want, regions); err != nil {
		return err
	}
	var err error
	if r.in.Deployments, err = r.readDeployments(want); err != nil {
		return err
	}
	for i := range r.in.Deployments {
		switch d := &r.in.Deployments[i]; {
		case d.ID == r.done.GetDeploymentId():
			r.target = d
			if r.wasApp != nil && r.wasApp.LiveDeploymentID == d.ID {
				r.live = d
			}
		case r.wasApp != nil && r.wasApp.LiveDeploymentID == d.ID:
			r.live = d
		}
	}
	if r.target == nil {
		return fmt.Errorf("read deployment %s: it is gone", r.done.GetDeploymentId())
	}
	return r.readRegions(c, regions)
}

// foresight is what a forecast goes by, and what it is read by.
type foresight struct {
	in plan.Input
	// was are the app's rows before the call.
	was []model.Topology
	// when regions need what a forecast says, in words, or empty.
	when string
	// target is the deployment that it is about.
	target *model.Deployment
	// regions by id; unknown: the spec names some that there are not.
	regions map[string]model.Region
	unknown bool
}

// readRegions reads those, and the ones that the target's spec names and its progress goes
// through.
func (r *foresight) readRegions(c *change, ids map[string]bool) error {
	r.regions, r.in.RegionIDs = map[string]model.Region{}, map[string]string{}
	if progress := r.progress(); progress != nil {
		for _, w := range progress.Waves {
			for _, st := range w.Regions {
				ids[st.RegionID] = true
			}
		}
	}
	rows, err := c.GetRegions(keys(ids))
	if err != nil {
		return fmt.Errorf("read regions: %w", err)
	}
	for _, name := range r.target.Spec.GetRegions() {
		region, err := c.GetRegionByName(c.workspaceID, name)
		switch {
		case errors.Is(err, model.ErrNotFound):
			r.unknown = true
		case err != nil:
			return fmt.Errorf("read region %s: %w", name, err)
		default:
			r.in.RegionIDs[name] = region.ID
			rows = append(rows, region)
		}
	}
	for _, region := range rows {
		r.regions[region.ID] = region
	}
	for _, id := range keysOf(r.regions) {
		r.in.Regions = append(r.in.Regions, r.regions[id])
	}
	return nil
}

func (r *dryRun) outcome() windlassv1.PlanDeployResponse_Outcome {
	switch {
	case r.done == nil:
		return windlassv1.PlanDeployResponse_OUTCOME_UNSPECIFIED
	case r.done.GetScaled():
		return windlassv1.PlanDeployResponse_OUTCOME_SCALED
	case !r.done.GetUnchanged():
		return windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT
	case r.woken:
		return windlassv1.PlanDeployResponse_OUTCOME_TAKEN_BACK
	}
	return windlassv1.PlanDeployResponse_OUTCOME_UNCHANGED
}

// maxPlanSteps are told: more than anybody reads, and few enough for an answer.
const maxPlanSteps = 500

func (r *dryRun) response() (*windlassv1.PlanDeployResponse, error) {
	out := &windlassv1.PlanDeployResponse{Outcome: r.outcome(), NewApp: r.app != nil && r.wasApp == nil}
	for _, err := range r.against {
		out.Findings = append(out.Findings, findingOf(err))
	}
	if r.done != nil {
		if err := r.fill(out); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(out.Findings, func(a, b *windlassv1.PlanFinding) int {
		switch {
		case a.GetBlocks() == b.GetBlocks():
			return 0
		case a.GetBlocks():
			return -1
		}
		return 1
	})
	out.WouldRun = len(out.GetFindings()) == 0 || !out.GetFindings()[0].GetBlocks()
	return out, nil
}

// findingOf is a refusal as Deploy would answer it.
func findingOf(err error) *windlassv1.PlanFinding {
	detail := rpc.DetailOf(err)
	return &windlassv1.PlanFinding{
		Reason: detail.GetReason(), Blocks: true, Field: detail.GetField(), Message: messageOf(err), Fix: detail.GetFix(), Limit: detail.GetLimit(),
	}
}

// messageOf is a refusal's text, without its code.
func messageOf(err error) string {
	if coded, ok := errors.AsType[*connect.Error](err); ok {
		return coded.Message()
	}
	return err.Error()
}

func (r *dryRun) fill(out *windlassv1.PlanDeployResponse) error {
	out.Version, out.Quota, out.UsageAfter = r.target.Version, r.quota, r.usage
	if r.live != nil {
		out.LiveVersion = r.live.Version
	}
	if r.wasApp != nil {
		if rollout, ok := r.rollouts[r.wasApp.RolloutID]; ok {
			out.SupersedesVersion = rollout.Version
		}
	}
	if h := r.done.GetHold(); h != nil {
		out.Findings = append(out.Findings, &windlassv1.PlanFinding{
			Reason:  windlassv1.ErrorReason_ERROR_REASON_FROZEN,
			Message: "it would be held by " + plan.FreezeText(h.GetFreeze(), h.GetScope(), h.GetUntil(), h.GetReason()),
			Fix:     `It starts by itself when that is over; an owner has it start at once: --override-freeze "why".`,
		})
	}
	for _, text := range r.done.GetWarnings() {
		out.Findings = append(out.Findings, &windlassv1.PlanFinding{
			Reason: windlassv1.ErrorReason_ERROR_REASON_APPROVAL_NEEDED, Message: text, Fix: "`windlass protection list` shows the protections. A file only tightens them.",
		})
	}
	var err error
	if out.Changes, err = r.changes(); err != nil {
		return err
	}
	f := forecast.Forecast{Complete: true}
	if r.woken && !r.unknown {
		f = forecast.Run(r.wasRows, r.in, r.at)
	}
	out.Lasts, out.Loads = durationpb.New(time.Duration(f.Lasts)*time.Millisecond), int32(f.Loads)
	for _, s := range f.Steps[:min(len(f.Steps), maxPlanSteps)] {
		out.Steps = append(out.Steps, r.stepProto(s))
	}
	out.StepsLeftOut = int32(len(f.Steps) - len(out.Steps))
	if !f.Complete {
		out.Findings = append(out.Findings, &windlassv1.PlanFinding{
			Reason:  windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED,
			Message: fmt.Sprintf("the rollout is too long to be foreseen: what its regions need is told as of its first %d steps", len(f.Steps)),
			Fix:     "A larger rollout.maxSurge makes it shorter.",
		})
	}
	if end := f.Rollout; out.GetOutcome() == windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT && f.Complete && end != nil &&
		end.Status != windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED {
		out.Findings = append(out.Findings, &windlassv1.PlanFinding{
			Reason: windlassv1.ErrorReason_ERROR_REASON_INTERNAL, Blocks: true,
			Message: fmt.Sprintf("even if all went well the rollout would not succeed: %s %s", end.Reason, end.Message),
		})
	}
	if c := r.progress(); c != nil && f.Progress != nil && f.Progress.RolloutID == c.RolloutID {
		empty := plan.EmptyGates(f.Progress)
		for _, i := range slices.Sorted(maps.Keys(empty)) {
			out.Findings = append(out.Findings, &windlassv1.PlanFinding{
				Reason: windlassv1.ErrorReason_ERROR_REASON_APPROVAL_NEEDED, Field: fmt.Sprintf("rollout.waves[%d].approval", i), Message: empty[i],
				Fix: "Ask for the approval at a wave that takes regions, or have the last one name some of them.",
			})
		}
	}
	return r.regionViews(f, out)
}

func (r *dryRun) stepProto(s forecast.Step) *windlassv1.PlanStep {
	out := &windlassv1.PlanStep{
		At: durationpb.New(time.Duration(s.At) * time.Millisecond), Kind: s.Kind, Wave: s.Wave, Region: r.regions[s.RegionID].Name,
		Step: int32(s.Step), Steps: int32(s.Steps), Checks: s.Checks, Approval: s.Approval, InPlace: s.InPlace, KeepsInstances: s.Keeps,
		Loads: int32(s.Loads),
	}
	if s.Wait > 0 {
		out.Wait = durationpb.New(s.Wait)
	}
	for _, side := range s.Sides {
		out.Versions = append(out.Versions, &windlassv1.PlanVersion{Version: side.Version, Replicas: side.Replicas, Weight: side.Weight})
	}
	return out
}
