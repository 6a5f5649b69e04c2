package scaler

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/scaling"
)

// write is a decision to write.
type write struct {
	at place
	model.Rescale

	decision scaling.Decision
	heard    time.Time
	// missing is the index of the metric that the history entry is about, -1 for none.
	missing int
}

// decide decides for each app and region that was observed, or is due. It returns the decisions to write, in the
// order of apps and regions.
func (s *Service) decide(now time.Time, holds func(regionID string) bool) (writes []write) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.strays, func(_ string, in *strays) bool { return now.Sub(in.since) >= strayFor })
	for at, t := range s.targets {
		a := s.apps[at.app]
		if a == nil || a.policies[at.region] == nil || now.Sub(t.heard) > forgetAfter || !holds(at.region) {
			if !s.dirty[at.app] {
				s.metrics.forget(at.app, t.shown)
				delete(s.targets, at)
			}
			continue
		}
		s.noStray(at, t)
		policy := a.policies[at.region]
		observed := t.load != nil
		if observed {
			sample := sampleOf(t.load, a.Deployments, t.heard)
			sample.Results = t.fresh(policy, now)
			t.window.Add(sample, policy.Up.Window)
			t.load = nil
		}
		if t.writing || s.dirty[at.app] || !observed && now.Before(t.next) {
			continue
		}
		if w, ok := s.decideFor(at, a, t, policy, now); ok {
			t.writing = true
			writes = append(writes, w)
		}
	}
	slices.SortFunc(writes, func(a, b write) int {
		return cmp.Or(cmp.Compare(a.at.app, b.at.app), cmp.Compare(a.at.region, b.at.region))
	})
	return writes
}

func (s *Service) decideFor(at place, a *app, t *target, policy *scaling.Policy, now time.Time) (write, bool) {
	region := a.Regions[at.region]
	state := scaling.State{Desired: int(region.Replicas), StartupBudget: a.StartupBudget, Kept: t.kept}
	if until := a.Scaling.HeldUntil(at.region, now.UnixMilli()); until > 0 {
		state.HoldUntil = time.UnixMilli(until)
	}
	if region.Moving {
		state.Floor = int(region.Replicas)
	}
	if t.quota != nil && now.Before(t.quotaUntil) {
		state.Quota = t.quota
	}
	state.Closed = now.Before(t.closedUntil)
	d := scaling.Decide(policy, &t.window, state, now)
	t.kept, t.next = d.Unwritten, d.Next
	t.shown = show(d, region.Name)
	for i, want := range d.Wants {
		if want.Missing {
			t.shown.Wants[i].Problem = t.results[want.Metric.Query].problem
		}
	}
	s.metrics.note(a, region.Name, d)
	if now.Before(t.retryAt) {
		return write{}, false
	}
	writes := d.Wanted != d.Desired && a.Scaling.Active()
	what, missing := t.what(d, now, writes, a.Scaling.Active())
	if what == "" && !writes {
		return write{}, false
	}
	return write{at: at, decision: d, heard: t.heard, missing: missing, Rescale: model.Rescale{
		AppID: a.AppID, WorkspaceID: a.WorkspaceID, RegionID: at.region, From: region.Replicas, Generation: region.Generation,
		ScalingAt: a.Scaling.UpdatedAt, Writes: writes, What: what, Decision: t.shown,
	}}, true
}

// what returns the kind of the decision's history entry, empty for none. There is an entry for another
// number, also if the policy only advises, for a metric that has long been missing, and for another limit.
// missing is the index of that metric, -1 for none.
func (t *target) what(d scaling.Decision, now time.Time, writes, active bool) (what string, missing int) {
	if writes || !active && d.Wanted != t.recorded.wanted && !t.recorded.at.IsZero() {
		return "ScalingDecided", -1
	}
	for i, want := range d.Wants {
		if t.silent[i] && !want.Missing {
			t.silent[i] = false
		}
		if want.Notice(now) && !t.silent[i] {
			return "ScalingMetricMissing", i
		}
	}
	limit := lasting(d.Limit)
	switch {
	case t.recorded.at.IsZero():
		// The first decision of this process gets an entry only if it is limited.
		if limit == scaling.None {
			t.recorded = record{now, d.Wanted, limit}
			return "", -1
		}
		return "ScalingLimited", -1
	case limit != t.recorded.limit && now.Sub(t.recorded.at) >= limitEvery:
		return "ScalingLimited", -1
	}
	return "", -1
}
