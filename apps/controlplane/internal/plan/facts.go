package plan

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

type rowKey struct{ deployment, region string }

// facts are a working copy of an Input, as they are at one point of a decision. Its methods only
// read: what changes anything is the planner's.
type facts struct {
	in      Input
	now     int64
	app     model.App
	rollout *model.Rollout
	// progress of the newest staged rollout, nil for none.
	progress *model.Progress
	// wasStaged reports whether a staged rollout was in flight when the call came.
	wasStaged bool
	deps      map[string]*model.Deployment
	// rows are sorted by (deployment, region): the order of decisions, of locks,
	// and so of the output.
	rows      []*model.Topology
	beside    []*model.Topology
	before    map[rowKey]model.Topology
	observed  map[rowKey]model.Observed
	routes    map[string]*model.Route
	routesWas map[string]model.Route
	routeObs  map[string]model.RouteObserved
	regions   map[string]model.Region
}

func newFacts(in Input, now int64) *facts {
	f := &facts{
		in: in, now: now, app: in.App,
		deps:      map[string]*model.Deployment{},
		before:    map[rowKey]model.Topology{},
		observed:  map[rowKey]model.Observed{},
		routes:    map[string]*model.Route{},
		routesWas: map[string]model.Route{},
		routeObs:  map[string]model.RouteObserved{},
		regions:   map[string]model.Region{},
	}
	if in.RolloutState != nil {
		f.progress = in.RolloutState.Progress.Clone()
	}
	if in.Rollout != nil {
		r := *in.Rollout
		f.rollout = &r
	}
	for _, d := range in.Deployments {
		f.deps[d.ID] = &d
	}
	for _, t := range in.Topology {
		f.rows = append(f.rows, &t)
		f.before[rowKey{t.DeploymentID, t.RegionID}] = t
	}
	for _, t := range in.beside {
		f.beside = append(f.beside, &t)
	}
	for _, o := range in.Observed {
		f.observed[rowKey{o.DeploymentID, o.RegionID}] = o
	}
	for _, r := range in.Routes {
		f.routes[r.RegionID] = &r
		f.routesWas[r.RegionID] = r
	}
	for _, o := range in.RouteObserved {
		f.routeObs[o.RegionID] = o
	}
	for _, r := range in.Regions {
		f.regions[r.ID] = r
	}
	return f
}

// target is the deployment of the rollout in flight, or nil.
func (f *facts) target() *model.Deployment {
	if f.rollout == nil || f.rollout.Status != windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING {
		return nil
	}
	return f.deps[f.rollout.DeploymentID]
}

func (f *facts) live() *model.Deployment { return f.deps[f.app.LiveDeploymentID] }

func (f *facts) place(t *model.Topology) rollup.Place {
	pl := rollup.Place{
		Row:      *t,
		Observed: f.observed[rowKey{t.DeploymentID, t.RegionID}],
		Region:   f.regions[t.RegionID],
	}
	if d := f.deps[t.DeploymentID]; d != nil {
		pl.MinReady = d.Spec.GetMinReady()
	}
	return pl
}

// active rows are those that were not told to stop.
func active(t *model.Topology) bool {
	return t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING ||
		t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
}

// Active reports whether the row is one of those.
func Active(t model.Topology) bool { return active(&t) }

// activeRows of the deployment.
func (f *facts) activeRows(deployment string) []*model.Topology {
	var rows []*model.Topology
	for _, t := range f.rows {
		if t.DeploymentID == deployment && active(t) {
			rows = append(rows, t)
		}
	}
	return rows
}

func (f *facts) rowIn(deployment, region string) *model.Topology {
	for _, t := range f.rows {
		if t.DeploymentID == deployment && t.RegionID == region {
			return t
		}
	}
	return nil
}

func (f *facts) places(rows []*model.Topology) []rollup.Place {
	places := make([]rollup.Place, 0, len(rows))
	for _, t := range rows {
		places = append(places, f.place(t))
	}
	slices.SortStableFunc(places, func(a, b rollup.Place) int { return cmp.Compare(a.Name(), b.Name()) })
	return places
}
