package plan

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

type rowKey struct{ deployment, region string }

// facts are an Input with the changes that phases made to it, at one point of a decision. Their methods only read.
// Phases share the facts, and change copies: see phase.
type facts struct {
	*given
	app     *model.App
	rollout *model.Rollout
	// progress is the progress of the newest staged rollout, nil for none.
	progress *model.Progress
	deps     map[string]*model.Deployment
	// rows are sorted by (deployment, region), which is the order of decisions, locks and the output.
	rows   []*model.Topology
	routes map[string]*model.Route
	// shares has the shares of the traffic that region plans gave to rows in this call.
	shares map[rowKey]int32
	budget
	requests
}

// given is the part of the facts that no phase changes.
type given struct {
	in  Input
	now int64
	// wasStaged reports whether a staged rollout was in flight at the beginning of the call.
	wasStaged  bool
	otherLayer []*model.Topology
	before     map[rowKey]model.Topology
	observed   map[rowKey]model.Observed
	routesWas  map[string]model.Route
	routeObs   map[string]model.RouteObserved
	regions    map[string]model.Region
}

// budget has the regions whose feeds the output changes, at most MaxRegions.
type budget struct {
	touched  map[string]bool
	deferred bool // something was left for the next step
}

// requests are facts that the planner needs before it can decide more.
type requests struct {
	resolve  string
	measures []Measure
	stale    bool // a decision waits for a region's next report
}

func (r requests) equal(other requests) bool {
	return r.resolve == other.resolve && r.stale == other.stale && len(r.measures) == len(other.measures)
}

func newFacts(in Input, now int64) *facts {
	f := &facts{
		given: &given{
			in: in, now: now,
			before:    make(map[rowKey]model.Topology, len(in.Topology)),
			observed:  make(map[rowKey]model.Observed, len(in.Observed)),
			routesWas: make(map[string]model.Route, len(in.Routes)),
			routeObs:  make(map[string]model.RouteObserved, len(in.RouteObserved)),
			regions:   make(map[string]model.Region, len(in.Regions)),
		},
		app: &in.App, rollout: in.Rollout,
		deps:   make(map[string]*model.Deployment, len(in.Deployments)),
		rows:   pointersTo(in.Topology),
		routes: make(map[string]*model.Route, len(in.Routes)),
	}
	if in.RolloutState != nil {
		f.progress = in.RolloutState.Progress
	}
	for i := range in.Deployments {
		f.deps[in.Deployments[i].ID] = &in.Deployments[i]
	}
	for _, t := range in.Topology {
		f.before[rowKey{t.DeploymentID, t.RegionID}] = t
	}
	slices.SortFunc(f.rows, compareRows)
	f.otherLayer = pointersTo(in.otherLayer)
	for _, o := range in.Observed {
		f.observed[rowKey{o.DeploymentID, o.RegionID}] = o
	}
	for i, r := range in.Routes {
		f.routes[r.RegionID] = &in.Routes[i]
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

// targetDeployment returns the deployment of the rollout in flight, or nil.
func (f *facts) targetDeployment() *model.Deployment {
	if f.rollout == nil || f.rollout.Status != windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING {
		return nil
	}
	return f.deps[f.rollout.DeploymentID]
}

func (f *facts) liveDeployment() *model.Deployment { return f.deps[f.app.LiveDeploymentID] }

func (f *facts) placeOf(t *model.Topology) rollup.Place {
	pl := rollup.Place{
		Row:      *t,
		Observed: f.observed[rowKey{t.DeploymentID, t.RegionID}],
		Region:   f.regions[t.RegionID],
	}
	if d := f.deps[t.DeploymentID]; d != nil {
		pl.MinReady, pl.Spec = d.Spec.GetMinReady(), t.In(d.Spec)
	}
	return pl
}

// isRowActive reports whether the row starts or has started, and was not told to stop.
func isRowActive(t *model.Topology) bool {
	return t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING ||
		t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
}

// Active reports whether the row starts or has started, and was not told to stop.
func Active(t model.Topology) bool { return isRowActive(&t) }

// activeRows returns the active rows of the deployment.
func (f *facts) activeRows(deployment string) []*model.Topology {
	var rows []*model.Topology
	for _, t := range f.rows {
		if t.DeploymentID == deployment && isRowActive(t) {
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

func (f *facts) placesOf(rows []*model.Topology) []rollup.Place {
	places := make([]rollup.Place, 0, len(rows))
	for _, t := range rows {
		places = append(places, f.placeOf(t))
	}
	slices.SortStableFunc(places, func(a, b rollup.Place) int { return cmp.Compare(a.Name(), b.Name()) })
	return places
}

// historyEntry returns an entry of the history, which names the rollout in flight.
func (f *facts) historyEntry(what, why string, d *model.Deployment, region string) model.History {
	h := model.History{
		WorkspaceID: f.app.WorkspaceID, AppID: f.app.ID, At: f.now,
		What: what, Why: why, Who: Who, RegionID: region,
	}
	if f.rollout != nil {
		h.RolloutID = f.rollout.ID
	}
	if d != nil {
		h.DeploymentID, h.Version = d.ID, d.Version
	}
	return h
}
