package scaler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/pool"
	"github.com/windlass-run/windlass/pkg/scaling"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// write is a decision to write.
type write struct {
	at appRegion
	model.Rescale

	parts []part
	heard time.Time
	// refused is the refusal that the history entries describe, empty for none.
	refused string
}

// part is the decision about replicas, or about a role of a pool.
type part struct {
	role     string // empty: replicas
	decision scaling.Decision
	// writes is true if the number changes.
	writes bool
	// missing is the index of the metric that the history entry describes, -1 for none.
	missing int
}

// decideAll makes a decision for each app and region that was observed or is due. It returns the decisions to write, in the
// order of apps and regions.
func (s *Service) decideAll(now time.Time, holds func(regionID string) bool) (writes []write) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.strays, func(_ string, in *strays) bool { return now.Sub(in.since) >= strayFor })
	for at, t := range s.targets {
		a := s.apps[at.app]
		if a == nil || !a.scalesIn(at.region) || now.Sub(t.heard) > forgetAfter || !holds(at.region) {
			if !s.dirty[at.app] {
				s.metrics.forgetSeries(at.app, t.shown)
				delete(s.targets, at)
			}
			continue
		}
		s.noStray(at, t)
		observed := t.load != nil
		if observed {
			t.observeLoad(a, at.region, now)
		}
		if t.writing || s.dirty[at.app] || !observed && now.Before(t.next) {
			continue
		}
		decide := s.decideFor
		if a.policies[at.region] == nil {
			decide = s.decideRoles
		}
		if w, ok := decide(at, a, t, now); ok {
			t.writing = true
			writes = append(writes, w)
		}
	}
	slices.SortFunc(writes, func(a, b write) int {
		return cmp.Or(cmp.Compare(a.at.app, b.at.app), cmp.Compare(a.at.region, b.at.region))
	})
	return writes
}

// observeLoad adds the load to the windows.
func (t *target) observeLoad(a *app, regionID string, now time.Time) {
	t.forgetResults(a.queriesIn(regionID))
	if policy := a.policies[regionID]; policy != nil {
		sample := scaling.SampleOf(t.load, a.Deployments, t.heard)
		sample.Results = t.freshResults(policy, now)
		t.window.Add(sample, policy.Up.Window)
		t.log.add(&sample, int(a.Regions[regionID].Replicas), now)
		t.raised = raiseOf(t.load, a.Regions[regionID])
	}
	if a.zero != nil {
		sample := scaling.SampleOf(t.load, a.Deployments, t.heard)
		sample.Levels, sample.FirstToken, sample.Latency = nil, nil, nil
		t.window.Add(sample, scaling.Fresh)
	}
	for i := range a.roles[regionID] {
		p := &a.roles[regionID][i]
		if sample, ok := scaling.RoleSampleOf(t.load, a.Deployments, p.Role, t.heard); ok {
			sample.Results = t.freshResults(&p.Policy, now)
			t.roleTarget(p.Role).window.Add(sample, p.Up.Window)
			t.roleTarget(p.Role).log.add(&sample, int(a.Regions[regionID].Roles[p.Role]), now)
		}
	}
	t.problems = t.load.GetProblems()
	t.load = nil
}

// raiseOf returns the raise of the live version in the load report, the zero raise for none.
func raiseOf(load *agentv1.LoadReport, region model.ScaledRegion) raise {
	for _, d := range load.GetDeployments() {
		if len(region.MadeFor) > 0 && d.GetDeploymentId() == region.MadeFor[0] {
			return raise{d.GetRaisedTo(), d.GetRaisedGeneration()}
		}
	}
	return raise{}
}

// stateOf returns the state of the app, or of a role of a pool. role is empty for the app. desired is the current number.
func (t *target) stateOf(a *app, regionID, role string, desired int32, now time.Time) scaling.State {
	of := t.partOf(role)
	state := scaling.State{Desired: int(desired), StartupBudget: a.StartupBudget, Kept: of.kept, Closed: now.Before(t.closedUntil), CannotWake: !a.Regions[regionID].CanWake}
	if until := a.Scaling.HeldUntil(regionID, role, now.UnixMilli()); until > 0 {
		state.HoldUntil = time.UnixMilli(until)
	}
	// A raise of another generation is answered by that generation, with which the region gives the raise up.
	if role == "" && t.raised.generation == a.Regions[regionID].Generation && t.raised.generation != t.raiseRefused {
		state.Raised = int(t.raised.to)
	}
	if a.Regions[regionID].Moving {
		state.Floor = int(desired)
	}
	if of.quota != nil && now.Before(of.quotaUntil) {
		state.Quota = of.quota
	}
	if of.room != nil && now.Before(of.roomUntil) {
		state.Room = of.room
	}
	return state
}

func (s *Service) decideFor(at appRegion, a *app, t *target, now time.Time) (write, bool) {
	region, policy := a.Regions[at.region], a.policies[at.region]
	state := t.stateOf(a, at.region, "", region.Replicas, now)
	d := scaling.Decide(policy, &t.window, state, now)
	t.kept, t.next = d.Unwritten, d.Next
	t.shown = showDecision(d, region.Name)
	if policy.Zero != nil && state.CannotWake {
		t.shown.Why += cannotWakeText
	}
	t.addProblems(t.shown, a, policy, d.Wants)
	s.metrics.noteDecision(a, region.Name, "", d)
	writes := d.Wanted != d.Desired && a.Scaling.Active()
	// The region keeps the raised number until it gets another generation, whatever the decision is.
	raised := t.raised.to > 0 && t.raised.generation == region.Generation
	if raised {
		t.shown.Why += fmt.Sprintf("; the region was cut off, and went to %d by itself", t.raised.to)
	}
	what, missing, refused := "", -1, ""
	if !now.Before(t.retryAt) {
		what, missing = t.what(d, now, writes, a.Scaling.Active())
		if raised {
			if what, missing = "ScalingRaised", -1; max(d.Wanted, d.Desired) < int(t.raised.to) && d.Wanted <= d.Desired {
				what = "ScalingRaiseRefused"
			}
		}
	} else {
		if writes && t.refused != "" {
			t.shown.Why += refusedText(t.refused)
		}
		if writes && t.mustTell(now) {
			what, refused = "ScalingLimited", t.refused
		}
		writes, raised = false, false
	}
	if what == "" {
		return write{}, false
	}
	return write{at: at, parts: []part{{"", d, writes, missing}}, heard: t.heard, refused: refused, Rescale: model.Rescale{
		AppID: a.AppID, WorkspaceID: a.WorkspaceID, RegionID: at.region, From: region.Replicas, Generation: region.Generation,
		ScalingAt: a.Scaling.UpdatedAt, Writes: writes || raised, Renews: raised,
		Entries: []model.ScalingEntry{{What: what, Why: t.shown.GetWhy()}}, Decision: t.shown,
	}}, true
}

// decideRoles is decideFor for a pool. One write has the numbers of all roles, because a couple changes two roles
// together, and because all roles go to zero and come back together.
func (s *Service) decideRoles(at appRegion, a *app, t *target, now time.Time) (write, bool) {
	region := a.Regions[at.region]
	if t.next = now.Add(every); region.Replicas == 0 && (a.zero == nil || !region.CanWake) {
		s.metrics.forgetSeries(at.app, t.shown)
		t.shown = nil
		return write{}, false // the pool is stopped
	}
	if region.Replicas > 0 {
		t.zeroSince = time.Time{}
	} else if t.zeroSince.IsZero() {
		t.zeroSince = now
	}
	in := scaling.Pool{ZeroSince: t.zeroSince, Roles: s.rolesOf(at, a, t, now), Zero: a.zero, Window: &t.window, AtZero: region.Replicas == 0}
	if len(in.Roles) == 0 {
		return write{}, false
	}
	out := write{at: at, heard: t.heard, Rescale: model.Rescale{
		AppID: a.AppID, WorkspaceID: a.WorkspaceID, RegionID: at.region, From: region.Replicas, Generation: region.Generation, ScalingAt: a.Scaling.UpdatedAt,
	}}
	t.shown = &windlassv1.RegionScaling{Region: region.Name, At: now.UnixMilli()}
	mayWrite, mustTell := !now.Before(t.retryAt), t.mustTell(now)
	cannotWake := a.zero != nil && !region.CanWake
	if cannotWake {
		in.Zero = nil // for example after a rollback to a version without coldStart
	}
	decided := scaling.DecidePool(in, now)
	if mayWrite && decided.AtZero != in.AtZero && a.Scaling.Active() {
		out.Writes, out.Pool = true, new(int32(pool.Whole))
		if decided.AtZero {
			out.Pool = new(int32(0))
		}
	}
	for i, d := range decided.Roles {
		name, of := in.Roles[i].Name, t.roleTarget(in.Roles[i].Name)
		of.kept = d.Unwritten
		if i == 0 || d.Next.Before(t.next) {
			t.next = d.Next
		}
		of.shown = showRole(d, region.Name, name, in.Roles[i].Policy.Couple)
		if of.shown.Why = poolWhy(of.shown, in, decided, i); cannotWake {
			of.shown.Why += cannotWakeText
		}
		t.addProblems(of.shown, a, in.Roles[i].Policy, d.Wants)
		t.shown.Roles = append(t.shown.Roles, of.shown)
		s.metrics.noteDecision(a, region.Name, name, d)
		count := int(region.Roles[name])
		writes := (d.Wanted != d.Desired || decided.Counts[i] != count) && a.Scaling.Active()
		if !mayWrite {
			if writes && t.refused != "" {
				of.shown.Why += refusedText(t.refused)
			}
			if writes && mustTell {
				out.refused = t.refused
				out.parts = append(out.parts, part{name, d, false, -1})
				out.Entries = append(out.Entries, model.ScalingEntry{What: "ScalingLimited", Why: of.shown.GetWhy()})
			}
			continue
		}
		what, missing := of.what(d, now, writes && d.Wanted != d.Desired, a.Scaling.Active())
		if decided.Counts[i] != count && writes {
			out.Writes = true
			out.Roles = append(out.Roles, model.RescaledRole{Role: name, From: int32(count), Wanted: int32(decided.Counts[i])})
		}
		if writes || what != "" {
			out.parts = append(out.parts, part{name, d, writes, missing})
		}
		if what != "" {
			out.Entries = append(out.Entries, model.ScalingEntry{What: what, Why: of.shown.GetWhy()})
		}
	}
	t.shown.Next = t.next.UnixMilli()
	out.Decision = t.shown
	return out, len(out.parts) > 0
}

// rolesOf returns the pool's roles that follow the load and that the version has. It forgets other roles.
func (s *Service) rolesOf(at appRegion, a *app, t *target, now time.Time) (roles []scaling.Role) {
	region := a.Regions[at.region]
	for i := range a.roles[at.region] {
		p := &a.roles[at.region][i]
		if region.Roles[p.Role] == 0 {
			continue // the version has no such role
		}
		of := t.roleTarget(p.Role)
		roles = append(roles, scaling.Role{Name: p.Role, Policy: &p.Policy, Window: &of.window, State: t.stateOf(a, at.region, p.Role, region.Roles[p.Role], now)})
	}
	for name, of := range t.roles {
		if !slices.ContainsFunc(roles, func(r scaling.Role) bool { return r.Name == name }) {
			s.metrics.forgetRole(at.app, name, of.shown)
			delete(t.roles, name)
		}
	}
	return roles
}

// mustTell reports whether the refusal of the last decision needs a history entry.
func (t *target) mustTell(now time.Time) bool {
	return t.refused != "" && t.refused != t.told && (t.told == "" || now.Sub(t.toldAt) >= limitEvery)
}

// cannotWakeText is the end of a reason for an app whose policy lets it go to zero.
const cannotWakeText = "; it does not go to zero, because no request would start it: the version has no routing.coldStart"

// refusedText returns the end of a reason whose decision was refused.
func refusedText(refused string) string { return "; this was refused: " + refused }

// what returns the kind of the decision's history entry, empty for none. An entry is written for a changed number (even
// if the policy only advises), for a metric that has been missing for long, and for a changed limit. missing is the
// index of the missing metric, -1 for none.
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
	limit := lastingLimit(d.Limit)
	switch {
	case t.recorded.at.IsZero():
		// The first decision of this process gets an entry only if a limit applies.
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
