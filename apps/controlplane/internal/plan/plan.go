// Package plan decides what an app's workflow does next. From the rows, the reports of regions and the time, it
// computes the rows to change, the reasons, and when to look again. It does no I/O and reads no clock.
//
// It is level-triggered. No state is kept between two calls except the rows. So a step that runs
// twice, late, or in another process decides the same, and a second step with the same facts decides nothing.
//
//	deployment  pending -> building -> deploying -> network -> ready
//	row                               starting -> started -> stopping -> stopped
//	weight                            0            100 -> 0
//
// Three rules determine the rest:
//
//   - Wanted. The live deployment and the target of the rollout in flight are
//     wanted. All other deployments with rows are leaving. Failure, cancellation,
//     supersession and deletion only change which deployments are wanted.
//   - Weights follow from what is wanted. The target has all weight once it is ready
//     in all regions (network), or from the start if nothing is live. Otherwise, the
//     live deployment has all weight. So going back needs no record of earlier weights.
//   - Make before break. A leaving row stops only after its region has acknowledged,
//     in its present epoch, the route generation that gives the row no traffic. The live
//     pointer moves only after every region has acknowledged its successor. So the
//     live deployment never stops before another deployment serves in its place.
//
// A failed rollout ends at once for requests that wait for it. Its rows are removed
// by the rules above, which takes as long as the regions need.
package plan

import (
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// Who is the author of the control plane's own decisions in the history.
const Who = "windlass"

// Reasons of deployments and rollouts that ended, in addition to the reasons of agents.
const (
	ReasonImagePullError = "ImagePullError" // the registry does not have the image, or refuses to serve it
	ReasonUnknownRegion  = "UnknownRegion"  // a region of the deployment does not exist, was created again, or may not be used by the workspace
	ReasonCancelled      = "Cancelled"      // a person aborted the rollout
	ReasonAppDeleted     = "AppDeleted"     // the app was deleted
	ReasonSuperseded     = "Superseded"     // a newer rollout of the app replaced it
	ReasonAbandoned      = "Abandoned"      // a person gave the region up while it was out of reach
)

const (
	defaultReplicas       = 2
	fullWeight      int32 = 100
)

// MaxRegions is the maximum number of regions that one Output changes, because the store limits the heads that
// one transaction locks. The next step changes the remaining regions.
const MaxRegions = 32

// Input is every fact about one app.
type Input struct {
	App model.App
	// Deployments are the target, the live, the newest and the pinned deployments, and all deployments with a row that
	// is not stopped.
	Deployments []model.Deployment
	// Rollout is the rollout that App.RolloutID names, nil for none.
	Rollout *model.Rollout
	// Topology holds all rows of the app, tombstones included.
	Topology      []model.Topology
	Observed      []model.Observed
	Routes        []model.Route
	RouteObserved []model.RouteObserved
	// Regions are the regions of all rows and routes, and of RegionIDs.
	Regions []model.Region
	// RegionIDs has the ids of the regions in the target's spec by name, while the target is pending or building. It
	// does not have unknown names.
	RegionIDs map[string]string
	// Closed are regions, by id, that the app's workspace may no longer use, because its grant was revoked. Replicas
	// there stay and may become fewer, but not more, and no request wakes an app at zero.
	Closed map[string]bool
	// Hosts are the hosts under which the app is served in all regions.
	Hosts []string
	// Keys are the app's keys as routes have them: see model.EncodeKeys.
	Keys []byte
	// Resolved is the result of resolving Output.Resolve, nil if nothing was tried.
	Resolved *Resolution
	// RolloutState is the app's rollout state, nil for none.
	RolloutState *model.RolloutState
	// Measurements are the results of the checks in Output.Measure.
	Measurements []Measurement
	// Freezes are the workspace's freezes. They are read only if MayBeFrozen is true for the rollout.
	Freezes []model.Freeze
	// Pins are the app's pins, by version.
	Pins []model.Pin
	// Jitter in [0, 1) spreads wake-ups.
	Jitter float64
	// otherLayer are the rows of the other layer. failedPins describes failed pins for people.
	otherLayer []model.Topology
	failedPins string
}

// Resolution is the outcome of resolving an image's tag.
type Resolution struct {
	// Image is the requested image. Digested is the same image with its digest.
	Image, Digested string
	// Message is the text of an error. Final means that trying again cannot help.
	Message string
	Final   bool
}

// Output has the rows to write, and the time of the next step. All its rows differ from those of the Input. Agents must
// see the rows whose generation grew.
type Output struct {
	App          *model.App
	Rollout      *model.Rollout
	RolloutState *model.RolloutState
	Deployments  []model.Deployment
	Topology     []model.Topology
	Routes       []model.Route
	// Pins are pins that changed. Unpinned are the deployments whose pins are deleted.
	Pins     []model.Pin
	Unpinned []string
	// History is in the order of the decisions, without ids.
	History []model.History
	// Resolve names an image whose tag needs a digest, empty for none.
	Resolve string
	// Measure names the checks that are due. Their results come back as Input.Measurements.
	Measure []Measure
	// Next is the time of the next step, unix ms. 0: there is nothing to wait for.
	Next int64
}

// Changed reports whether there is anything to write.
func (o Output) Changed() bool {
	return o.App != nil || o.Rollout != nil || o.RolloutState != nil ||
		len(o.Deployments)+len(o.Topology)+len(o.Routes)+len(o.History)+len(o.Pins)+len(o.Unpinned) > 0
}

// Next makes the decisions about an app. now is unix ms.
func Next(in Input, now int64) Output {
	if in.App.DeletedAt != 0 {
		return Output{}
	}
	if len(in.Pins) > 0 {
		return nextPinned(in, now)
	}
	return decideUnpinned(in, now)
}

// The phases of a decision, in their order. Each one gets the facts, and returns changes and
// history: see phase.
var (
	endRollout = phase{
		does:   "end a rollout that was aborted, or whose app is deleted",
		when:   func(f *facts) bool { return f.rollout != nil || f.app.RolloutID != "" },
		writes: writesApp | writesRollout | writesProgress | writesDeployments | writesRequests,
		decide: (*planner).endRollout,
	}
	endRetention = phase{
		does:   "end the retention of a version whose time is over",
		when:   func(f *facts) bool { return f.progress.Retained() != "" },
		writes: writesProgress | writesDeployments,
		decide: (*planner).endRetention,
	}
	noteServed = phase{
		does:   "note that the live version has served",
		when:   isUnproven,
		writes: writesDeployments,
		decide: (*planner).noteServed,
	}

	takeUpWoken = phase{
		does:   "keep the replicas that regions started because a request came",
		when:   (*facts).hasWoken,
		writes: writesProgress | writesRows | writesBudget,
		decide: (*planner).takeUpWoken,
	}

	advance = phase{
		does:   "take the target to its next state, and its regions to their next step",
		when:   func(f *facts) bool { return f.targetDeployment() != nil },
		writes: writesApp | writesRollout | writesProgress | writesDeployments | writesRows | writesShares | writesBudget | writesRequests,
		decide: (*planner).advanceTarget,
	}
	catchUp = phase{
		does:   "let lagging regions catch up",
		when:   (*facts).mustCatchUp,
		writes: writesProgress | writesRows | writesShares | writesBudget | writesRequests,
		decide: (*planner).catchUp,
	}
	setWeights = phase{
		does:   "set weights, and the routes that follow",
		when:   alwaysRuns,
		writes: writesRows | writesRoutes | writesBudget,
		decide: (*planner).setWeights,
	}
	endOrphans = phase{
		does:   "end deployments that no rollout carries",
		when:   hasOrphans,
		writes: writesDeployments,
		decide: (*planner).endOrphans,
	}
	logWeights = phase{
		does:   "add to the history where traffic goes, by cause",
		when:   func(f *facts) bool { return !f.wasStaged },
		writes: writesHistoryOnly,
		decide: (*planner).logWeights,
	}
	stopUnwanted = phase{
		does:   "stop rows that are not wanted, and note which have stopped",
		when:   hasLeaving,
		writes: writesRows | writesBudget,
		decide: (*planner).stopUnwanted,
	}

	closeAtZero = phase{
		does:   "keep requests from waking rows in closed regions, and allow it in open regions",
		when:   hasWrongWakes,
		writes: writesRows | writesBudget,
		decide: (*planner).closeAtZero,
	}
	logShares = phase{
		does:   "add to the history where traffic goes, by region",
		when:   func(f *facts) bool { return f.wasStaged },
		writes: writesHistoryOnly,
		decide: (*planner).logShares,
	}
	finishDeletion = phase{
		does:   "delete an app whose rows have all stopped",
		when:   func(f *facts) bool { return f.app.DeletingSince != 0 },
		writes: writesApp | writesDeployments,
		decide: (*planner).finishDeletion,
	}
	setStatus = phase{
		does:   "compute the app's status",
		when:   alwaysRuns,
		writes: writesApp,
		decide: (*planner).setStatus,
	}
)

func alwaysRuns(*facts) bool { return true }

// decideUnpinned runs the phases about the rows that are not pinned.
func decideUnpinned(in Input, now int64) Output {
	d := &decision{facts: newFacts(in, now)}
	d.wasStaged = d.isStaged() || d.mustCatchUp()
	d.run(endRollout, endRetention, noteServed, takeUpWoken)
	for pass := 0; ; pass++ {
		before := d.facts
		d.settleRegions()
		// In a staged rollout, a region may wait for a decision about another region.
		if !d.wasStaged || d.facts == before || pass > 0 && d.settledSince(before) {
			break
		}
		if pass == maxPasses {
			d.facts = d.apply(changes{budget: &budget{touched: d.touched, deferred: true}})
			break
		}
	}
	d.run(logShares, finishDeletion, setStatus)
	return d.outputOf()
}

// settleRegions makes one decision about every region.
func (d *decision) settleRegions() {
	for d.run(advance) {
		d.run(setWeights) // weights follow from the target's state
	}
	d.run(catchUp, setWeights, endOrphans)
	before := d.facts
	if d.run(closeAtZero); d.facts != before {
		d.run(setWeights) // weights may change, because a new generation is not applied yet
	}
	d.run(logWeights, stopUnwanted)
}

// maxPasses is far more than regions can wait for each other. If decisions remain, or repeat in
// a circle, they come with the next step and do not make this transaction longer.
const maxPasses = 2 * MaxRegions

// sameDeployment compares the fields that the planner may change.
func sameDeployment(a, b model.Deployment) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message &&
		a.ResolvedImage == b.ResolvedImage && a.Stable == b.Stable &&
		a.ReadyAt == b.ReadyAt && a.EndedAt == b.EndedAt && proto.Equal(a.Spec, b.Spec)
}
