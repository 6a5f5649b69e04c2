package plan

import (
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/pins"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// These checks apply to every plan of a simulation, and to the state after it.

// checkHosts checks the hosts of regions if the next plan changes nothing. A region has the app's hosts if the
// live version should be there, even if nothing serves. It has no hosts after the app was deleted or has left
// the region, and if the region is closed and all its rows are at zero.
func (w *simulation) checkHosts(next Output) {
	if next.Changed() || newFacts(w.input(), w.now).targetDeployment() != nil {
		return
	}
	active, live := map[string]bool{}, map[string]bool{}
	for k, row := range w.rows {
		if Active(row) {
			active[k.region] = true
			shut := w.closed[k.region] && row.AtZero(w.deps[w.index(k.deployment)].Spec)
			live[k.region] = live[k.region] || k.deployment == w.app.LiveDeploymentID && !shut
		}
	}
	for region, r := range w.rts {
		switch {
		case w.app.DeletingSince != 0 || !active[region]:
			require.Empty(w.t, r.Hosts, "%s has hosts of an app that is not to be there", region)
		case w.closed[region] && w.atZero(region):
			require.Empty(w.t, r.Hosts, "%s is closed, and holds requests", region)
		case live[region]:
			require.NotEmpty(w.t, r.Hosts, "%s has lost the hosts of a live app", region)
		}
	}
}

// atZero reports whether every active row of the region is at zero.
func (w *simulation) atZero(region string) bool {
	for k, row := range w.rows {
		if k.region == region && Active(row) && !row.AtZero(w.deps[w.index(k.deployment)].Spec) {
			return false
		}
	}
	return true
}

// check checks a plan against the tables, and against the rules in the package comment.
func (w *simulation) check(in Input, out Output) {
	t := w.t
	if out.App != nil && out.App.Status != in.App.Status {
		require.True(t, model.CanMove(model.AppMoves, in.App.Status, out.App.Status),
			"app %v -> %v", in.App.Status, out.App.Status)
	}
	for _, d := range out.Deployments {
		i := slices.IndexFunc(in.Deployments, func(x model.Deployment) bool { return x.ID == d.ID })
		require.True(t, reaches(in.Deployments[i].Status, d.Status), "deployment %v -> %v", in.Deployments[i].Status, d.Status)
	}
	if r := out.Rollout; r != nil && r.Status != in.Rollout.Status {
		require.True(t, model.CanMove(model.RolloutMoves, in.Rollout.Status, r.Status))
		require.NotZero(t, r.FinishedAt)
	}
	live := in.App.LiveDeploymentID
	if out.App != nil && out.App.DeletedAt == 0 && out.App.LiveDeploymentID != live {
		var behind *model.Progress
		if out.RolloutState != nil {
			behind = out.RolloutState.Progress
		}
		w.requireServed(out.App.LiveDeploymentID, behind)
	}
	for _, row := range out.Topology {
		was, had := w.rows[rowKey{row.DeploymentID, row.RegionID}]
		require.GreaterOrEqual(t, row.Generation, was.Generation)
		if row.Status == was.Status || !had {
			continue
		}
		stopped := row.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED
		require.True(t, model.CanMove(model.TopologyMoves, was.Status, row.Status) ||
			stopped && w.app.AbandonUnreachable, "row %v -> %v", was.Status, row.Status)
		if stopped && row.Reason != ReasonAbandoned {
			w.requirePresent(row)
		}
		if row.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING {
			continue
		}
		require.Greater(t, row.Generation, was.Generation, "agents must see that a row stops")
		require.Zero(t, row.Weight)
		if in.App.DeletingSince == 0 {
			w.requireNotRouted(row)
		}
		require.False(t, row.DeploymentID == live && in.App.DeletingSince == 0 &&
			(out.App == nil || out.App.LiveDeploymentID == live), "the live deployment was stopped without a successor")
	}
	for _, r := range out.Routes {
		require.Greater(t, r.Generation, w.rts[r.RegionID].Generation)
	}
	w.checkRouting(in, out)
	w.checkClosed(in, out)
	if out.App == nil || out.App.DeletedAt == 0 {
		require.False(t, out.Next != 0 && out.Next < w.now)
	}
	for _, h := range out.History {
		require.NotEmpty(t, h.What)
		require.NotEmpty(t, h.Why)
		require.NotEmpty(t, h.Who)
	}
}

// checkClosed checks that no plan makes a closed region run more replicas than before. If the region goes back, it may
// run as many as the version to which it goes back had there. No other version grows there. The rule applies to each
// layer separately: pinned replicas do not count for a rollout that goes back, and their number never grows.
func (w *simulation) checkClosed(in Input, out Output) {
	for region, closed := range w.closed {
		if !closed {
			continue
		}
		older, most := w.goesBackTo(in, region)
		var before, assigned, pinnedBefore, pinnedAssigned int32
		for _, t := range mergedRows(in.Topology, out.Topology) {
			if t.RegionID != region {
				continue
			}
			was := w.rows[rowKey{t.DeploymentID, t.RegionID}]
			if t.Assigned() && t.DeploymentID != older && !was.Transferred {
				require.LessOrEqual(w.t, t.Replicas, was.Replicas, "%s grows in %s, which is closed", t.DeploymentID, region)
			}
			had, has := &before, &assigned
			if pins.Of(in.Pins, t) != nil {
				had, has = &pinnedBefore, &pinnedAssigned
			}
			if was.Assigned() {
				*had += was.Replicas
			}
			if t.Assigned() {
				*has += t.Replicas
			}
		}
		require.LessOrEqual(w.t, assigned, max(before, most), "%s is closed, and grows", region)
		require.LessOrEqual(w.t, pinnedAssigned, pinnedBefore, "%s is closed, and what is pinned there grows", region)
	}
}

// goesBackTo returns the version to which a rollout of the region goes back, and its largest number of replicas there.
func (w *simulation) goesBackTo(in Input, region string) (older string, most int32) {
	older = in.App.LiveDeploymentID
	if in.RolloutState == nil || in.RolloutState.Progress == nil {
		return older, 0
	}
	most = in.RolloutState.Progress.OldSizes[region]
	if b := in.RolloutState.Progress.LaggingIn(region); b != nil {
		most = max(most, b.Progress.OldSizes[region])
		if !b.Progress.Back {
			older = b.DeploymentID
		}
	}
	return older, most
}

// checkRouting checks that a region has the routing policy of the live version, or of a version that is made alike and
// has all of the region's traffic except pinned shares.
func (w *simulation) checkRouting(in Input, out Output) {
	app, rows := in.App, mergedRows(in.Topology, out.Topology)
	if out.App != nil {
		app = *out.App
	}
	for _, r := range out.Routes {
		if app.LiveDeploymentID == "" || len(r.Hosts) == 0 || r.Routes(w.deps[w.index(app.LiveDeploymentID)].Spec.GetRouting()) {
			continue
		}
		require.True(w.t, slices.ContainsFunc(rows, func(t model.Topology) bool {
			return t.RegionID == r.RegionID && t.Assigned() && t.Weight == 100 && w.alike(t.DeploymentID, app.LiveDeploymentID) &&
				r.Routes(w.deps[w.index(t.DeploymentID)].Spec.GetRouting())
		}), "%s is routed by a policy of no version that has it", r.RegionID)
	}
}

// requireServed checks that a deployment goes live only when every region to which it goes reports, in its present
// epoch, that the replicas are ready and the route serves. Regions that are left behind are excepted, but at least one
// region must report it.
func (w *simulation) requireServed(live string, progress *model.Progress) {
	if progress != nil && len(progress.Lagging) > 0 {
		require.NotEqual(w.t, len(progress.Lagging), len(progress.Sizes), "the version is live, but serves in no region")
	}
	for k, row := range w.rows {
		if k.deployment != live || progress.LaggingIn(k.region) != nil {
			continue
		}
		w.requirePresent(row)
		o := w.rob[k.region]
		require.Equal(w.t, int32(100), row.Weight)
		require.Equal(w.t, w.regs[k.region].SessionEpoch, o.Epoch)
		if last := pins.ChangedBelow(w.pins, k.region); last == 0 {
			require.Equal(w.t, o.Generation, w.rts[k.region].Generation)
		} else {
			require.GreaterOrEqual(w.t, o.Generation, last)
		}
		if row.Replicas > 0 {
			require.Positive(w.t, w.obs[k].ReadyReplicas)
		}
	}
}

// requirePresent checks that the region's report about the row is of the current epoch and generation.
func (w *simulation) requirePresent(row model.Topology) {
	o := w.obs[rowKey{row.DeploymentID, row.RegionID}]
	require.Equal(w.t, w.regs[row.RegionID].SessionEpoch, o.AppliedEpoch)
	require.Equal(w.t, row.Generation, o.AppliedGeneration)
	require.Equal(w.t, int32(agentv1.AppliedState_PHASE_APPLIED), o.Phase)
}

// requireNotRouted checks that the row gets no traffic from the route that the region acknowledged, or from any route
// that was sent later.
func (w *simulation) requireNotRouted(row model.Topology) {
	for generation, deployments := range w.routed[row.RegionID] {
		if !slices.Contains(deployments, row.DeploymentID) {
			continue
		}
		o := w.rob[row.RegionID]
		require.Equal(w.t, w.regs[row.RegionID].SessionEpoch, o.Epoch,
			"%s stops in %s without an acknowledgement of this epoch", row.DeploymentID, row.RegionID)
		require.Greater(w.t, o.Generation, generation,
			"%s stops in %s, which may still route to it", row.DeploymentID, row.RegionID)
	}
}

// reaches reports whether the table leads from one status to the other. A plan may take several
// steps at once.
func reaches(from, to windlassv1.DeploymentStatus) bool {
	if from == to {
		return true
	}
	for _, m := range model.DeploymentMoves {
		if m.From == from && reaches(m.To, to) {
			return true
		}
	}
	return false
}
