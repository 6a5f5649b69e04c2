package plan

import (
	"cmp"
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// setStatus computes the app's status.
func (p *planner) setStatus() {
	p.app.Status, p.app.Message = rollup.Status(statusFacts(p.facts))
}

func statusFacts(f *facts) rollup.Facts {
	out := rollup.Facts{Deleting: f.app.DeletingSince != 0, Target: f.targetDeployment()}
	out.Lagging, out.CatchingUp = laggingMessage(f)
	out.Pins = f.in.failedPins
	if out.Deleting {
		var left []*model.Topology
		for _, t := range f.rows {
			if t.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
				left = append(left, t)
			}
		}
		out.Live = f.placesOf(left)
		return out
	}
	if f.isStaged() && (f.progress.Back || len(f.progress.Waves) > 0) {
		out.Progress = mainView(f).stageMessage()
	} else if f.mayNotStart() {
		out.Progress = FrozenMessage(*f.rollout)
	}
	if out.Target != nil {
		out.TargetPlaces = f.placesOf(f.activeRows(out.Target.ID))
		out.AwaitsCapacity = f.in.RolloutState != nil && WaitsForCapacity(f.in.RolloutState.Policy) > 0
	}
	if f.liveDeployment() != nil {
		out.HasLive = true
		out.Live = f.placesOf(slices.DeleteFunc(f.activeRows(f.app.LiveDeploymentID), func(t *model.Topology) bool {
			return out.Lagging != "" && f.isLagging(t.RegionID)
		}))
	}
	for _, d := range f.deps {
		if out.Newest == nil || d.Version > out.Newest.Version {
			out.Newest = d
		}
	}
	return out
}

// These limit the poll that supplements the wake-ups, in ms. People notice a delay of two seconds. A poll every minute
// costs almost nothing for an app that waits for hours. A degraded app waits for a report and not for a decision. If ten
// thousand such apps are in an unreachable region, a poll every five minutes causes 33 steps a second. A rollout that a
// freeze holds waits for a known time, or for a call that wakes it.
const (
	minPoll  = 2_000
	maxPoll  = 60_000
	limpPoll = 300_000
)

// next returns when the next step is due, unix ms. While anything is unsettled, the time until the next poll equals the
// time since the newest fact. So the interval doubles from poll to poll without a counter, and is short again after a
// new fact.
func (d *decision) next() int64 {
	if d.app.DeletedAt != 0 {
		return 0
	}
	if d.deferred {
		return d.now
	}
	due := d.nextLook()
	if c := d.progress; c.Retained() != "" && (due == 0 || c.RetainedUntil < due) {
		due = c.RetainedUntil
	}
	return due
}

// nextLook returns when the next step is due, without regard to the end of a retention.
func (d *decision) nextLook() int64 {
	since, unsettled := d.unsettledSince()
	poll := float64(min(max(d.now-since, minPoll), maxPoll))
	switch {
	case d.stale:
		poll = minPoll
	case unsettled:
	case d.mayNotStart():
		poll = limpPoll
	case d.app.Status == windlassv1.AppStatus_APP_STATUS_DEGRADED,
		d.app.Status == windlassv1.AppStatus_APP_STATUS_FAILED && d.app.LiveDeploymentID != "":
		poll = limpPoll
	default:
		return 0
	}
	due := d.now + int64(poll*(0.75+0.5*d.in.Jitter))
	if d.targetDeployment() != nil && d.rollout.Deadline > d.now {
		due = min(due, d.rollout.Deadline)
	}
	if d.targetDeployment() != nil && !d.isStaged() {
		for _, kind := range []windlassv1.AutoRollback_Condition{onCrash, onImage, onUnschedulable} {
			if limit, set := patienceWith(d.policyInFlight(), kind); set && d.rollout.CreatedAt+limit > d.now {
				due = min(due, d.rollout.CreatedAt+limit)
			}
		}
	}
	if d.mayNotStart() && d.rollout.FrozenUntil > d.now {
		due = min(due, d.rollout.FrozenUntil)
	}
	if d.isStaged() {
		due = d.nextOf(d.progress, due)
	}
	if d.mustCatchUp() {
		for _, b := range d.progress.Lagging {
			due = d.nextOf(b.Progress, due)
			if at := RegionDeadline(b.Progress, d.liveDeployment().Spec, b.Progress.Waves[0].Regions[0]); at > d.now {
				due = min(due, at)
			}
		}
	}
	return due
}

// nextOf returns when something of the progress is due, or due if that is earlier.
func (f *facts) nextOf(c *model.Progress, due int64) int64 {
	for i := range c.Waves {
		w := &c.Waves[i]
		if at := w.BakingSince + BakeTime(c, *w); w.State == waveBaking && at > f.now {
			due = min(due, at)
		}
		for _, st := range w.Regions {
			if at, _ := Waits(c, st); at > f.now {
				due = min(due, at)
			}
			if at := UnhealthyUntil(c, st); at > f.now {
				due = min(due, at)
			}
			switch at := nextCheck(c, w, &st); {
			case c.FullBy != "":
			case at > f.now:
				due = min(due, at)
			case at != 0:
				due = min(due, f.now+minPoll) // in case the measurement fails
			}
		}
	}
	return due
}

// unsettledSince returns the time of the newest fact about a row that is not settled yet, and
// whether there is such a row.
func (f *facts) unsettledSince() (since int64, unsettled bool) {
	note := func(at int64) { since, unsettled = max(since, at), true }
	if f.targetDeployment() != nil && !f.mayNotStart() {
		note(f.rollout.CreatedAt)
	}
	if f.app.DeletingSince != 0 {
		note(f.app.DeletingSince)
	}
	for _, t := range f.rows {
		o := f.observed[rowKey{t.DeploymentID, t.RegionID}]
		switch {
		case t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED:
		case f.isRetained(t.DeploymentID):
			// The version waits for the end of its retention, and for no report.
		case f.isStuck(t.RegionID):
			// The row waits for its region to return, or for people.
		case t.DeploymentID == f.app.LiveDeploymentID && f.app.DeletingSince == 0 &&
			f.app.Status != windlassv1.AppStatus_APP_STATUS_PROGRESSING:
			// The app is ready, degraded or failed, so the next decision needs a report.
		case t.DeploymentID == f.app.LiveDeploymentID && f.mayNotStart() && f.placeOf(t).Settled():
			// The version serves, and no other version replaces it yet.
		default:
			note(f.changedAt(t))
			note(o.UpdatedAt)
		}
	}
	for region, r := range f.routes {
		if !f.hasAcknowledged(region) && !f.isStuck(region) {
			note(r.UpdatedAt)
		}
	}
	return since, unsettled
}

// isStuck reports whether the region lags, and no report of it could make it move now.
func (f *facts) isStuck(region string) bool {
	b := f.progress.LaggingIn(region)
	if b == nil || !f.mustCatchUp() {
		return false
	}
	return f.placeOf(&model.Topology{RegionID: region}).Unreachable() ||
		b.Progress.Failed && b.Progress.Waves[0].Regions[0].State != regionGoingBack
}

// changedAt returns the time of the row's last change, including changes in this call.
func (f *facts) changedAt(t *model.Topology) int64 {
	if was, ok := f.before[rowKey{t.DeploymentID, t.RegionID}]; !ok || *t != was {
		return f.now
	}
	return t.UpdatedAt
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func sortedRows[V any](m map[rowKey]V) []rowKey {
	return slices.SortedFunc(maps.Keys(m), func(a, b rowKey) int {
		return cmp.Or(cmp.Compare(a.deployment, b.deployment), cmp.Compare(a.region, b.region))
	})
}
