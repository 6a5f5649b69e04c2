package api

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func rolloutProto(r model.Rollout) *windlassv1.Rollout {
	return &windlassv1.Rollout{
		Id: r.ID, AppId: r.AppID, DeploymentId: r.DeploymentID, Version: r.Version, FromVersion: r.FromVersion,
		Status: r.Status, Reason: r.Reason, Message: r.Message, CreatedBy: r.CreatedBy,
		CreatedAt: r.CreatedAt, Deadline: r.Deadline, FinishedAt: r.FinishedAt, Hold: holdProto(r), StartApproval: startApprovalProto(r),
	}
}

// rolloutView returns the rollout, with its progress if it has a policy and is the app's newest.
func rolloutView(f facts, app model.App, r model.Rollout) *windlassv1.Rollout {
	out := rolloutProto(r)
	c := f.rolloutStates[app.ID].Progress
	if c == nil || c.RolloutID != r.ID {
		return out
	}
	out.Progress = progressProto(c)
	for i, w := range c.Waves {
		for j, st := range w.Regions {
			regionProgress(f, app, r, c, st, out.Progress.Waves[i].Regions[j])
		}
	}
	fillLagging(f, app, c, out.Progress.Behind)
	return out
}

// progressProto returns the stored progress, without fields about instances.
func progressProto(c *model.Progress) *windlassv1.RolloutProgress {
	out := &windlassv1.RolloutProgress{
		Policy: proto.CloneOf(c.Policy), GoingBack: c.Back, Paused: c.PausedAt != 0,
		PausedBy: c.PausedBy, PausedWhy: c.PausedWhy, PausedAt: c.PausedAt, PromotionHeld: c.PromotionPaused,
		RetainedUntil: c.RetainedUntil, PromotedInFullBy: c.FullBy,
	}
	for _, w := range c.Waves {
		wave := &windlassv1.WaveProgress{Name: w.Name, State: w.State}
		if w.State == windlassv1.WaveProgress_STATE_BAKING {
			wave.BakingUntil = w.BakingSince + plan.BakeTime(c, w)
			if w.SkippedBy != "" || c.FullBy != "" {
				wave.BakingUntil = w.BakingSince // the bake time is skipped
			}
		}
		wave.Approval = approvalProto(c, plan.WaveGate(c, w), w.Approvals)
		for _, st := range w.Regions {
			g := &windlassv1.RegionProgress{
				Region: st.RegionID, State: st.State, Since: st.Since, Reason: st.Reason, Message: st.Message,
				Steps: int32(plan.Steps(c.Policy)),
			}
			if g.Steps > 0 && st.State != windlassv1.RegionProgress_STATE_WAITING {
				g.Step = int32(st.Step) + 1
			}
			g.StepUntil, g.WaitsForPromotion = plan.Waits(c, st)
			g.Checks = checksProto(c, &w, &st)
			g.Approval = approvalProto(c, plan.StepGate(c, st), st.Approvals)
			wave.Regions = append(wave.Regions, g)
		}
		out.Waves = append(out.Waves, wave)
	}
	out.Behind = laggingProto(c)
	return out
}

// checksProto returns the state of the region's checks.
func checksProto(c *model.Progress, w *model.WaveProgress, st *model.RegionProgress) (out []*windlassv1.CheckProgress) {
	limits := map[string]int32{}
	for _, check := range c.Policy.GetAnalysis() {
		limits[analysis.Name(check)] = check.GetFailureLimit()
	}
	for _, check := range st.Checks {
		v := &windlassv1.CheckProgress{
			Name: check.Name, State: check.State, Figure: copyNumber(check.New), OldFigure: copyNumber(check.Old),
			Samples: copyNumber(check.NewSamples), OldSamples: copyNumber(check.OldSamples),
			Failures: check.Failures, FailureLimit: limits[check.Name], Message: check.Message,
			HeldSince: check.InconclusiveSince, MeasuredAt: check.MeasuredAt,
		}
		if plan.Measuring(w, st) && c.DoneAt == 0 && !c.Back {
			v.DueAt = check.DueAt
		}
		out = append(out, v)
	}
	return out
}

// copyNumber returns a copy of v, so that a change of the view does not change the progress.
func copyNumber(v *float64) *float64 {
	if v == nil {
		return nil
	}
	return new(*v)
}

// regionProgress sets the fields about the instances in the region.
func regionProgress(f facts, app model.App, r model.Rollout, c *model.Progress, st model.RegionProgress, out *windlassv1.RegionProgress) {
	out.Replicas = c.Sizes[st.RegionID]
	if n, ok := c.OldSizes[st.RegionID]; ok && (c.Back || st.State == windlassv1.RegionProgress_STATE_GOING_BACK || st.State == windlassv1.RegionProgress_STATE_BACK) {
		out.Replicas = n
	}
	if r.FinishedAt != 0 {
		out.Replicas = f.wantedSince(app, c, st.RegionID, out.Replicas)
	}
	if r.FinishedAt == 0 {
		out.Deadline = plan.RegionDeadline(c, f.deployments[r.DeploymentID].Spec, st)
		if st.State == windlassv1.RegionProgress_STATE_ROLLING && !c.Back {
			out.WaitsForCapacitySince = st.NoRoomSince
		}
		failedView(f, app, r, c, st, out)
	}
	older := model.Deployment{ID: r.FromDeploymentID, Version: r.FromVersion}
	fillRegion(f, app, st, out, older, model.Deployment{ID: r.DeploymentID, Version: r.Version})
}

// wantedSince returns the number of replicas that the region should have after an ended rollout, which scaling may
// have changed since. It returns size if the region has no live version.
func (f facts) wantedSince(app model.App, c *model.Progress, region string, size int32) int32 {
	if b := c.LaggingIn(region); b != nil {
		return laggingSize(*b)
	}
	for _, t := range f.rows[app.ID] {
		if t.RegionID == region && t.DeploymentID == app.LiveDeploymentID && topology.Active(t) {
			return t.Replicas
		}
	}
	return size
}

// failedView sets the fields about problems that may yet fail the region.
func failedView(f facts, app model.App, r model.Rollout, c *model.Progress, st model.RegionProgress, out *windlassv1.RegionProgress) {
	if until := plan.UnhealthyUntil(c, st); until != 0 {
		out.UnhealthySince, out.WereReady, out.UnhealthyUntil = st.UnhealthySince, st.MostReady, until
	}
	if st.Relapses > 0 && !c.Back {
		out.Relapses, out.RelapseLimit = st.Relapses, plan.RelapseLimit(c.Sizes[st.RegionID])
	}
	for _, t := range f.rows[app.ID] {
		if pl := f.placeOf(t); t.DeploymentID == r.DeploymentID && t.RegionID == st.RegionID && t.Replicas > 0 && pl.Observed.Doomed > 0 {
			d := f.deployments[r.DeploymentID]
			out.FailedInstances, out.FailedLimit = pl.Observed.Doomed, plan.FailedLimit(c.Policy, &d, t)
		}
	}
}

// fillRegion sets the fields about the instances of both versions in the region. older and newer need only ids and
// version numbers.
func fillRegion(f facts, app model.App, st model.RegionProgress, out *windlassv1.RegionProgress, older, newer model.Deployment) {
	out.Region = f.regions[st.RegionID].ShownName()
	version := func(d model.Deployment) *windlassv1.VersionProgress {
		v := &windlassv1.VersionProgress{Version: d.Version}
		for _, t := range f.rows[app.ID] {
			if t.DeploymentID != d.ID || t.RegionID != st.RegionID {
				continue
			}
			pl := f.placeOf(t)
			v.Weight = t.Weight
			if t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING || t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED {
				v.Replicas, v.Ready = t.Replicas, pl.Observed.ReadyReplicas
				v.Outdated = f.outdatedReplicas(t)
			}
			if out.Reason == "" && d.ID == newer.ID && !pl.Settled() && v.Replicas > 0 {
				out.Reason, out.Message = pl.Why()
			}
			if pl.Unreachable() {
				out.Reason = "RegionUnreachable"
				out.Message = fmt.Sprintf("the numbers are from its last report; %s", pl.Region.Message)
			}
		}
		return v
	}
	out.Old, out.New = version(older), version(newer)
	for _, d := range f.remainingNotIn(app, []model.Deployment{older, newer}) {
		if v := version(d); v.Replicas > 0 || v.Weight > 0 {
			out.Others = append(out.Others, v)
		}
	}
}

// remainingNotIn returns the deployments, sorted by version, that still have replicas or traffic in a region, without
// pinned deployments and those in shown.
func (f facts) remainingNotIn(app model.App, shown []model.Deployment) (more []model.Deployment) {
	for _, t := range f.rows[app.ID] {
		d, known := f.deployments[t.DeploymentID]
		same := func(other model.Deployment) bool { return other.ID == t.DeploymentID }
		runs := topology.Active(t) && (t.Replicas > 0 || t.Weight > 0)
		if known && runs && !f.isPinned(t) && !slices.ContainsFunc(shown, same) && !slices.ContainsFunc(more, same) {
			more = append(more, d)
		}
	}
	slices.SortFunc(more, func(a, b model.Deployment) int { return cmp.Compare(a.Version, b.Version) })
	return more
}
