// Package plan decides, purely, what an app's workflow does next: given the
// rows, what regions report and the time, it returns the rows to change, why,
// and when to look again. It does no I/O and reads no clock.
//
// It is level-triggered. Nothing is remembered between two calls but the rows
// themselves, so a step that runs twice, late, or on another replica decides the
// same, and with the same facts decides nothing the second time.
//
//	deployment  pending -> building -> deploying -> network -> ready
//	row                               starting -> started -> stopping -> stopped
//	weight                            0            100 -> 0
//
// Three rules carry the rest:
//
//   - Wanted. The live deployment and the target of the rollout in flight are
//     wanted; everything else that has rows is leaving. Failure, cancellation,
//     supersession and deletion only change who is wanted; leaving is one path.
//   - Weights are a function of who is wanted: all to the target once it is ready
//     everywhere (network), or from the start when nothing is live; else all to the
//     live one. So going back needs no record of where one came from.
//   - Make before break. A leaving row stops only when its region acknowledged,
//     in its present epoch, the route generation that gives it nothing. The live
//     pointer moves only when every region acknowledged its successor, so the
//     live deployment is never stopped before something serves in its place.
//
// A failed rollout is over at once for the requests that wait for it. Its rows are removed
// under the rules above, for as long as the regions need.
package plan

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// Who is the name that the control plane's own decisions carry.
const Who = "windlass"

// Reasons that a deployment or rollout ended for, besides those of the agents.
const (
	ReasonImagePullError = "ImagePullError" // the registry does not have the image, or refuses to serve it
	ReasonUnknownRegion  = "UnknownRegion"  // a region of the deployment does not exist, was made anew, or may not be used by the workspace
	ReasonCancelled      = "Cancelled"      // a person aborted the rollout
	ReasonAppDeleted     = "AppDeleted"     // the app was deleted
	ReasonSuperseded     = "Superseded"     // a newer rollout of the app replaced it
	ReasonAbandoned      = "Abandoned"      // a person gave the region up while it was out of reach
)

const (
	defaultReplicas       = 2
	fullWeight      int32 = 100
)

// MaxRegions bounds the regions that one Output touches, as the store bounds the
// heads that one transaction holds. What is left over comes with the next step.
const MaxRegions = 32

// Input is every fact about one app.
type Input struct {
	App model.App
	// Deployments: the target, the live one, the newest one, those that are pinned, and each
	// that has topology which is not stopped.
	Deployments []model.Deployment
	// Rollout that App.RolloutID names, nil for none.
	Rollout *model.Rollout
	// Topology holds all rows of the app, tombstones included.
	Topology      []model.Topology
	Observed      []model.Observed
	Routes        []model.Route
	RouteObserved []model.RouteObserved
	// Regions of all rows and routes, and of RegionIDs.
	Regions []model.Region
	// RegionIDs resolves the names in the target's spec, while it is pending or building;
	// unknown names are absent.
	RegionIDs map[string]string
	// Closed are regions, by id, that the app's workspace may use no longer: its grant was
	// revoked. What runs there stays and may shrink. Nothing grows there.
	Closed map[string]bool
	// Hosts under which the app is served, everywhere.
	Hosts []string
	// Keys of the app, as routes have them: see model.EncodeKeys.
	Keys []byte
	// Resolved is what came of resolving Output.Resolve, nil if nothing was tried.
	Resolved *Resolution
	// RolloutState of the app, nil for none.
	RolloutState *model.RolloutState
	// Measurements that were taken for Output.Measure.
	Measurements []Measurement
	// Freezes of the workspace, while the rollout MayBeFrozen.
	Freezes []model.Freeze
	// Pins of the app, by version.
	Pins []model.Pin
	// Jitter in [0, 1) spreads wake-ups.
	Jitter float64
	// beside are the rows of the layer that is not looked at, and failedPins what people are
	// told of it.
	beside     []model.Topology
	failedPins string
}

// Resolution is the outcome of resolving an image's tag.
type Resolution struct {
	// Image that was asked for, and the one with a digest that it is.
	Image, Digested string
	// Message of an error; Final if trying again cannot help.
	Message string
	Final   bool
}

// Output is what to write, and when to look again. Rows in it differ from those
// of the Input; agents are to see those whose generation grew.
type Output struct {
	App          *model.App
	Rollout      *model.Rollout
	RolloutState *model.RolloutState
	Deployments  []model.Deployment
	Topology     []model.Topology
	Routes       []model.Route
	// Pins that changed, and the deployments of the pins to delete.
	Pins     []model.Pin
	Unpinned []string
	// History in the order of the decisions; without ids.
	History []model.History
	// Resolve names an image whose tag needs a digest, empty for none.
	Resolve string
	// Measure names the checks that are due, to come back as Input.Measurements.
	Measure []Measure
	// Next is when to look again, unix ms; 0 when there is nothing to wait for.
	Next int64
}

// Changed reports whether there is anything to write.
func (o Output) Changed() bool {
	return o.App != nil || o.Rollout != nil || o.RolloutState != nil ||
		len(o.Deployments)+len(o.Topology)+len(o.Routes)+len(o.History)+len(o.Pins)+len(o.Unpinned) > 0
}

// Next decides. now is unix ms.
func Next(in Input, now int64) Output {
	if in.App.DeletedAt != 0 {
		return Output{}
	}
	if len(in.Pins) > 0 {
		return nextPinned(in, now)
	}
	return decide(in, now)
}

// A phase is a part of a decision. It changes the planner's working copy of the rows and adds to
// the history; what it did once it does not do again, so that phases can be repeated.
type phase func(*planner)

// The phases of a decision, in their order. Those of settling are repeated while a staged rollout
// is in flight, since what is decided about one region may be what another waits for.
var (
	opening = []phase{
		(*planner).endRollout,   // end a rollout that people ended
		(*planner).endRetention, // let go of a retained version whose time is over
		(*planner).noteServed,   // note that the live version has served
	}
	settling = []phase{
		(*planner).advanceTarget, // take the target as far as the facts allow
		(*planner).catchUp,       // let lagging regions catch up
		(*planner).weigh,         // set weights, and the routes that follow
		(*planner).orphans,       // end deployments that no rollout carries
		(*planner).leave,         // stop what is not wanted
	}
	closing = []phase{
		(*planner).logShares,      // tell where traffic goes
		(*planner).finishDeletion, // forget an app whose deletion is over
		(*planner).status,         // compute the app's status
	}
)

// decide runs the phases about all that is not pinned.
func decide(in Input, now int64) Output {
	p := newPlanner(in, now)
	p.wasStaged = p.staged() || p.catching()
	p.run(opening)
	p.run(settling)
	for pass, before := 1, p.settled(); p.wasStaged; pass, before = pass+1, p.settled() {
		p.run(settling)
		if p.settled().equal(before) {
			break
		}
		if pass == maxPasses {
			p.deferred = true
			break
		}
	}
	p.run(closing)
	return p.output()
}

func (p *planner) run(phases []phase) {
	for _, decideOn := range phases {
		decideOn(p)
	}
}

// maxPasses is far more than regions can wait for each other. What is left over, or
// goes round in a circle, comes with the next step and holds up no transaction.
const maxPasses = 2 * MaxRegions

// settled is what a pass over a staged rollout may have changed.
type settled struct {
	rollout  string
	progress *model.Progress
	rows     []model.Topology
}

func (f *facts) settled() settled {
	d := settled{rollout: f.app.RolloutID, progress: f.progress.Clone()}
	for _, t := range f.rows {
		d.rows = append(d.rows, *t)
	}
	return d
}

func (d settled) equal(other settled) bool {
	return d.rollout == other.rollout && d.progress.Equal(other.progress) && slices.Equal(d.rows, other.rows)
}

// planner decides. Its phases change the facts, and add to the history.
type planner struct {
	*facts
	// shares of the traffic that region plans gave to rows in this call.
	shares   map[rowKey]int32
	touched  map[string]bool
	deferred bool // something was left for the next step
	stale    bool // a decision waits for a region's next word
	resolve  string
	measures []Measure
	history  []model.History
}

func newPlanner(in Input, now int64) *planner {
	p := &planner{facts: newFacts(in, now), touched: map[string]bool{}, shares: map[rowKey]int32{}}
	p.sortRows()
	return p
}

func (p *planner) sortRows() {
	slices.SortFunc(p.rows, func(a, b *model.Topology) int {
		return cmp.Or(cmp.Compare(a.DeploymentID, b.DeploymentID), cmp.Compare(a.RegionID, b.RegionID))
	})
}

func (p *planner) log(what, why string, d *model.Deployment, region string) {
	h := model.History{
		WorkspaceID: p.app.WorkspaceID, AppID: p.app.ID, At: p.now,
		What: what, Why: why, Who: Who, RegionID: region,
	}
	if p.rollout != nil {
		h.RolloutID = p.rollout.ID
	}
	if d != nil {
		h.DeploymentID, h.Version = d.ID, d.Version
	}
	p.history = append(p.history, h)
}

// output collects what differs from the input.
func (p *planner) output() Output {
	out := Output{History: p.history, Resolve: p.resolve, Measure: p.measures}
	if p.app != p.in.App {
		p.app.UpdatedAt = p.now
		out.App = &p.app
	}
	if p.rollout != nil && *p.rollout != *p.in.Rollout {
		out.Rollout = p.rollout
	}
	if p.in.RolloutState != nil && !p.progress.Equal(p.in.RolloutState.Progress) {
		s := *p.in.RolloutState
		s.Progress, s.UpdatedAt = p.progress, p.now
		out.RolloutState = &s
	}
	for _, was := range p.in.Deployments {
		if d := p.deps[was.ID]; !sameDeployment(*d, was) {
			out.Deployments = append(out.Deployments, *d)
		}
	}
	for _, t := range p.rows {
		if was, ok := p.before[rowKey{t.DeploymentID, t.RegionID}]; !ok || *t != was {
			t.UpdatedAt = p.now
			out.Topology = append(out.Topology, *t)
		}
	}
	for _, id := range sortedKeys(p.routes) {
		if r := p.routes[id]; r.Generation != p.routesWas[id].Generation {
			out.Routes = append(out.Routes, *r)
		}
	}
	out.Next = p.next()
	return out
}

// sameDeployment compares what the planner may change.
func sameDeployment(a, b model.Deployment) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message &&
		a.ResolvedImage == b.ResolvedImage && a.Stable == b.Stable &&
		a.ReadyAt == b.ReadyAt && a.EndedAt == b.EndedAt && proto.Equal(a.Spec, b.Spec)
}
