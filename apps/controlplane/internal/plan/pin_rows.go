package plan

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// pinRows implements pins.Rows with the planner's rows.
type pinRows struct {
	*planner

	// policy is the app's policy, nil for none.
	policy  *windlassv1.RolloutPolicy
	reroute func(region string)
}

func (r pinRows) Now() int64 { return r.now }

func (r pinRows) Deployment(id string) *model.Deployment { return r.deps[id] }

func (r pinRows) Version(deploymentID string) string { return r.versionOf(deploymentID) }

func (r pinRows) Row(deploymentID, region string) *model.Topology {
	return r.rowIn(deploymentID, region)
}

func (r pinRows) Before(deploymentID, region string) model.Topology {
	return r.before[rowKey{deploymentID, region}]
}

func (r pinRows) Place(t *model.Topology) rollup.Place { return r.placeOf(t) }

func (r pinRows) Observed(deploymentID, region string) model.Observed {
	return r.observed[rowKey{deploymentID, region}]
}

func (r pinRows) Route(region string) *model.Route { return r.routes[region] }

func (r pinRows) Acknowledged(region string) bool { return r.hasAcknowledged(region) }

func (r pinRows) Closed(region string) bool { return r.in.Closed[region] }

func (r pinRows) Released(t *model.Topology) bool { return mainView(r.facts).sideOf(t).Known }

func (r pinRows) Changed(t *model.Topology) int64 { return r.changedAt(t) }

func (r pinRows) Stale(pl rollup.Place) bool {
	return pl.Resyncing() || r.now-pl.Region.LastReportAt > freshFor
}

func (r pinRows) Blocks(reason string) bool { return rollup.MeaningOf(reason).Waits }

func (r pinRows) StartLimit(spec *windlassv1.DeploymentSpec, pl rollup.Place) int64 {
	return pinLimit(r.policy, spec, pl)
}

func (r pinRows) Writable(region string) bool { return r.isWritable(region) }

func (r pinRows) Assign(d *model.Deployment, region string, replicas int32) {
	r.assignRow(d, region, replicas)
}

func (r pinRows) SetReplicas(t *model.Topology, n int32) { r.setReplicas(t, n) }

func (r pinRows) Confirm(t *model.Topology) { r.confirmStopped(t) }

func (r pinRows) Reroute(region string) { r.reroute(region) }

func (r pinRows) Log(what, why string, d *model.Deployment, region string) {
	r.log(what, why, d, region)
}

func (r pinRows) Defer() { r.deferred = true }
