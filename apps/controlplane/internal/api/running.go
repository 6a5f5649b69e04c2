package api

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// running is the state of a locked app: its live version, its rollout in flight and their rows.
type running struct {
	live   *model.Deployment
	active activeRollout
	rows   []model.Topology // locked
	// rolloutState is zero, except for its ids, if the app has no stored state.
	rolloutState model.RolloutState
	scaling      model.Scaling
}

// activeRollout is the rollout in flight and its deployment, nil for none.
type activeRollout struct {
	rollout *model.Rollout
	// deployment is the rollout's deployment. It is nil after the rollout was aborted.
	deployment *model.Deployment
	// leaving is the deployment of an aborted rollout that has not ended yet.
	leaving *model.Deployment
}

// readRunning reads the state of the app, and stores the app's claim before the change.
func (c versionMutation) readRunning(app model.App) (r running, err error) {
	if r.active, err = c.activeRolloutOf(app); err != nil {
		return r, err
	}
	if r.live, err = c.liveOf(app); err != nil {
		return r, err
	}
	// An app that never had a version has no rows.
	if app.LatestVersion > 0 {
		if r.rows, err = c.LockTopology(app.ID); err != nil {
			return r, fmt.Errorf("lock topology of app %s: %w", app.ID, err)
		}
	}
	if r.rolloutState, err = c.rolloutStateOf(app); err != nil {
		return r, err
	}
	if r.scaling, err = c.scalingOf(app); err != nil {
		return r, err
	}
	if err := c.countPins(app); err != nil {
		return r, err
	}
	c.claimUsage(app, r.live, r.active.deployment, quotaRows(r.rolloutState, app, r.live, r.active.deployment, r.rows))
	return r, nil
}

func (c versionMutation) activeRolloutOf(app model.App) (f activeRollout, err error) {
	if app.RolloutID == "" {
		return f, nil
	}
	r, err := c.GetRollout(app.WorkspaceID, app.RolloutID)
	if errors.Is(err, model.ErrNotFound) {
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("read rollout %s: %w", app.RolloutID, err)
	}
	if r.Status != windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING {
		return f, nil
	}
	f.rollout = &r
	d, err := c.GetDeployment(app.WorkspaceID, r.DeploymentID)
	switch {
	case errors.Is(err, model.ErrNotFound):
	case err != nil:
		return f, fmt.Errorf("read deployment %s: %w", r.DeploymentID, err)
	case model.Terminal(model.DeploymentMoves, d.Status):
	case r.CancelRequested:
		f.leaving = &d
	default:
		f.deployment = &d
	}
	return f, nil
}

func (c versionMutation) liveOf(app model.App) (*model.Deployment, error) {
	if app.LiveDeploymentID == "" {
		return nil, nil
	}
	d, err := c.GetDeployment(app.WorkspaceID, app.LiveDeploymentID)
	if err != nil {
		return nil, fmt.Errorf("read live deployment %s: %w", app.LiveDeploymentID, err)
	}
	return &d, nil
}

// rolloutStateOf reads the locked app's rollout state.
func (c versionMutation) rolloutStateOf(app model.App) (model.RolloutState, error) {
	none := model.RolloutState{AppID: app.ID, WorkspaceID: app.WorkspaceID}
	if app.LatestVersion == 0 {
		return none, nil
	}
	rows, err := c.GetRolloutStates([]string{app.ID})
	if err != nil {
		return none, fmt.Errorf("read rollout state of app %s: %w", app.ID, err)
	}
	if len(rows) == 0 {
		return none, nil
	}
	return rows[0], nil
}

// countPins sets c.pinned to the usage of the app's pins.
func (c versionMutation) countPins(app model.App) error {
	if app.LatestVersion <= 1 { // a pin needs a second version
		c.pinned = model.Usage{}
		return nil
	}
	usage, err := pinnedUsage(c.Tx, []string{app.ID})
	c.pinned = usage[app.ID]
	return err
}

// quotaRows returns the rows by which the app counts in its workspace's quotas. In a staged rollout, regions count
// with the replicas that they will have, because rows only have the current numbers.
func quotaRows(s model.RolloutState, app model.App, live, next *model.Deployment, rows []model.Topology) []model.Topology {
	if live == nil {
		return rows
	}
	if !s.Progress.Active(app.RolloutID) {
		return laggingQuotaRows(s, app, live, rows)
	}
	var out []model.Topology
	for _, t := range rows {
		if t.DeploymentID == live.ID {
			if n, ok := s.Progress.OldSizes[t.RegionID]; ok {
				t.Replicas = n
			}
			out = append(out, t)
		}
	}
	if next == nil || next.ID == live.ID {
		return out
	}
	for _, id := range slices.Sorted(maps.Keys(s.Progress.Sizes)) {
		out = append(out, model.Topology{
			AppID: app.ID, DeploymentID: next.ID, RegionID: id, Replicas: s.Progress.Sizes[id], Roles: rolesIn(rows, id),
			Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED,
		})
	}
	return out
}

// laggingQuotaRows returns the rows as they will be after lagging regions have caught up.
func laggingQuotaRows(s model.RolloutState, app model.App, live *model.Deployment, rows []model.Topology) []model.Topology {
	if s.Progress == nil || len(s.Progress.Lagging) == 0 {
		return rows
	}
	all := rows
	rows = slices.DeleteFunc(slices.Clone(rows), func(t model.Topology) bool { return s.Progress.LaggingIn(t.RegionID) != nil })
	for _, b := range s.Progress.Lagging {
		rows = append(rows, model.Topology{
			AppID: app.ID, DeploymentID: live.ID, RegionID: b.RegionID, Replicas: laggingSize(b), Roles: rolesIn(all, b.RegionID),
			Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED,
		})
	}
	return rows
}

// liveSizes returns the replicas of the live deployment's regions, by id. During a staged rollout, they are the replicas
// that a region would have without the rollout.
func (r running) liveSizes() map[string]int32 {
	out := map[string]int32{}
	if r.live == nil {
		return out
	}
	for _, t := range r.rows {
		if t.DeploymentID == r.live.ID && topology.Active(t) {
			out[t.RegionID] = t.Replicas
		}
	}
	if c := r.rolloutState.Progress; c != nil && c.DoneAt == 0 {
		maps.Copy(out, c.OldSizes)
	}
	return out
}

// currentSizes returns the desired replicas of each region of the live deployment, by id. During a rollout, replicas
// of both versions count. A lagging region has the number that it gets when it catches up.
func (r running) currentSizes(app model.App) map[string]int32 {
	out, c := r.liveSizes(), r.rolloutState.Progress
	if c == nil {
		return out
	}
	if c.Active(app.RolloutID) {
		for id := range out {
			out[id] = plan.Size(c, id)
		}
		return out
	}
	for _, b := range c.Lagging {
		out[b.RegionID] = laggingSize(b)
	}
	return out
}

// missesSizes reports whether v requests another number of replicas, or of instances of a pool's role, than the number
// with which deployment d will begin. Scaling cannot set this number, because d has no rows yet and its stored spec
// does not change.
func (r running) missesSizes(d model.Deployment, v version) bool {
	if r.live != nil || v.Asked.Nothing() && !model.IsPooled(v.Spec) || slices.ContainsFunc(r.rows, func(t model.Topology) bool { return t.DeploymentID == d.ID }) {
		return false
	}
	return slices.ContainsFunc(v.Spec.GetRegions(), func(region string) bool {
		at, was := override.ID(v.Spec, region), override.ID(d.Spec, region)
		return !maps.Equal(askedCounts(d.Spec, was), askedCounts(v.Spec, at)) || appspec.ReplicasIn(d.Spec, region) != appspec.ReplicasIn(v.Spec, region)
	})
}
