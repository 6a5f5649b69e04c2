package plan

import (
	"cmp"
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// A phase is a part of a decision. It gets the facts, and returns changes and history. It works on a private copy of the
// parts that it changes, because it reads its own decisions: for example, a region that begins takes the slot of the
// next region. Only decision.run puts changes into effect. So a phase cannot change anything that it does not return,
// and can be tested alone.
//
// A phase does not repeat a decision that is in effect, so that phases can be run again.
type phase struct {
	does string
	// when reports whether the phase has anything to decide.
	when func(*facts) bool
	// writes are the parts that the phase may change. It only reads the other parts.
	writes writes
	decide func(*planner)
}

// run returns the decisions of the phase. It does not change the facts. again reports whether the phase has more to
// decide when the changes, and the weights that follow from them, are in effect.
func (ph phase) run(f *facts) (c changes, history []model.History, again bool) {
	if !ph.when(f) {
		return c, nil, false
	}
	p := f.copyFor(ph.writes)
	ph.decide(p)
	return f.changesTo(p.facts, ph.writes), p.history, p.again
}

// writes is a set of the parts of the facts.
type writes uint16

const (
	writesApp writes = 1 << iota
	writesRollout
	writesProgress
	writesDeployments
	writesRows
	writesRoutes
	writesShares
	writesBudget
	writesRequests

	writesHistoryOnly writes = 0
	writesAll                = 2*writesRequests - 1
)

// changes are the parts of the facts that a phase changed. nil: unchanged.
type changes struct {
	app         *model.App
	rollout     *model.Rollout
	progress    *model.Progress
	deployments []*model.Deployment
	rows        []*model.Topology
	// routes has the changed routes by region, nil for a removed route.
	routes   map[string]*model.Route
	shares   map[rowKey]int32
	budget   *budget
	requests *requests
}

// changedParts returns which parts of the facts changed.
func (c changes) changedParts() (w writes) {
	add := func(part writes, differs bool) {
		if differs {
			w |= part
		}
	}
	add(writesApp, c.app != nil)
	add(writesRollout, c.rollout != nil)
	add(writesProgress, c.progress != nil)
	add(writesDeployments, c.deployments != nil)
	add(writesRows, c.rows != nil)
	add(writesRoutes, c.routes != nil)
	add(writesShares, c.shares != nil)
	add(writesBudget, c.budget != nil)
	add(writesRequests, c.requests != nil)
	return w
}

// planner is a running phase: its private copy of the facts, and the history that it adds.
type planner struct {
	*facts
	history []model.History
	again   bool
}

// newPlanner returns a planner that may change all parts of the facts.
func newPlanner(in Input, now int64) *planner { return newFacts(in, now).copyFor(writesAll) }

func (p *planner) log(what, why string, d *model.Deployment, region string) {
	p.history = append(p.history, p.historyEntry(what, why, d, region))
}

// copyFor returns a planner that may change only the parts w.
func (f *facts) copyFor(w writes) *planner {
	own := *f
	if w&writesApp != 0 {
		a := *f.app
		own.app = &a
	}
	if w&writesRollout != 0 && f.rollout != nil {
		r := *f.rollout
		own.rollout = &r
	}
	if w&writesProgress != 0 {
		own.progress = copyProgress(f.progress)
	}
	if w&writesDeployments != 0 {
		own.deps = make(map[string]*model.Deployment, len(f.deps))
		for id, d := range f.deps {
			d := *d
			own.deps[id] = &d
		}
	}
	if w&writesRows != 0 {
		values := make([]model.Topology, len(f.rows))
		own.rows = make([]*model.Topology, len(f.rows))
		for i, t := range f.rows {
			values[i], own.rows[i] = *t, &values[i]
		}
	}
	if w&writesRoutes != 0 {
		own.routes = maps.Clone(f.routes)
	}
	if w&writesShares != 0 {
		own.shares = cloneMap(f.shares)
	}
	if w&writesBudget != 0 {
		own.touched = cloneMap(f.touched)
	}
	if w&writesRequests != 0 {
		own.measures = slices.Clip(f.measures)
	}
	return &planner{facts: &own}
}

func cloneMap[K comparable, V any](m map[K]V) map[K]V {
	out := make(map[K]V, len(m))
	maps.Copy(out, m)
	return out
}

// copyProgress copies a progress. It does not copy the policies, because the planner never changes them.
func copyProgress(c *model.Progress) *model.Progress {
	if c == nil {
		return nil
	}
	state := *c
	state.Policy = nil
	out := state.Clone()
	out.Policy = c.Policy
	return out
}

// changesTo returns the differences of other from f, in the parts w.
func (f *facts) changesTo(other *facts, w writes) (c changes) {
	if w&writesApp != 0 && *other.app != *f.app {
		c.app = other.app
	}
	if w&writesRollout != 0 && f.rollout != nil && *other.rollout != *f.rollout {
		c.rollout = other.rollout
	}
	if w&writesProgress != 0 && !other.progress.Equal(f.progress) {
		c.progress = other.progress
	}
	if w&writesDeployments != 0 {
		for _, d := range f.in.Deployments {
			if own := other.deps[d.ID]; !sameDeployment(*own, *f.deps[d.ID]) {
				c.deployments = append(c.deployments, own)
			}
		}
	}
	if w&writesRows != 0 {
		c.rows = changedRows(f.rows, other.rows)
	}
	if w&writesRoutes != 0 {
		c.routes = changedRoutes(f.routes, other.routes)
	}
	if w&writesShares != 0 && !maps.Equal(other.shares, f.shares) {
		c.shares = other.shares
	}
	if w&writesBudget != 0 && (other.deferred != f.deferred || len(other.touched) != len(f.touched)) {
		c.budget = &other.budget
	}
	if w&writesRequests != 0 && !other.requests.equal(f.requests) {
		c.requests = &other.requests
	}
	return c
}

// changedRows returns the rows that are not in was or differ. Both lists are sorted, and rows has all rows of was.
func changedRows(was, rows []*model.Topology) (changed []*model.Topology) {
	for _, t := range rows {
		if len(was) > 0 && was[0].DeploymentID == t.DeploymentID && was[0].RegionID == t.RegionID {
			same := *was[0] == *t
			if was = was[1:]; same {
				continue
			}
		}
		changed = append(changed, t)
	}
	return changed
}

func changedRoutes(was, routes map[string]*model.Route) map[string]*model.Route {
	changed := map[string]*model.Route{}
	for region := range was {
		if routes[region] == nil {
			changed[region] = nil
		}
	}
	for region, r := range routes {
		if r != was[region] {
			changed[region] = r
		}
	}
	if len(changed) == 0 {
		return nil
	}
	return changed
}

// apply returns the facts with the changes in effect. It returns f itself if there are no changes.
func (f *facts) apply(c changes) *facts {
	if c.changedParts() == writesHistoryOnly {
		return f
	}
	out := *f
	out.app = cmp.Or(c.app, f.app)
	out.rollout = cmp.Or(c.rollout, f.rollout)
	out.progress = cmp.Or(c.progress, f.progress)
	if c.deployments != nil {
		out.deps = maps.Clone(f.deps)
		for _, d := range c.deployments {
			out.deps[d.ID] = d
		}
	}
	if c.rows != nil {
		out.rows = mergeRows(f.rows, c.rows)
	}
	if c.routes != nil {
		out.routes = maps.Clone(f.routes)
		for region, r := range c.routes {
			if out.routes[region] = r; r == nil {
				delete(out.routes, region)
			}
		}
	}
	if c.shares != nil {
		out.shares = c.shares
	}
	if c.budget != nil {
		out.budget = *c.budget
	}
	if c.requests != nil {
		out.requests = *c.requests
	}
	return &out
}

// mergeRows adds the changed rows to rows, in place of the rows with the same keys. Both lists are sorted.
func mergeRows(rows, changed []*model.Topology) []*model.Topology {
	out := make([]*model.Topology, 0, len(rows)+len(changed))
	for _, t := range rows {
		for len(changed) > 0 && compareRows(changed[0], t) < 0 {
			out, changed = append(out, changed[0]), changed[1:]
		}
		if len(changed) > 0 && compareRows(changed[0], t) == 0 {
			t, changed = changed[0], changed[1:]
		}
		out = append(out, t)
	}
	return append(out, changed...)
}

// compareRows compares by deployment and region.
func compareRows(a, b *model.Topology) int {
	return cmp.Or(cmp.Compare(a.DeploymentID, b.DeploymentID), cmp.Compare(a.RegionID, b.RegionID))
}

// settledSince reports whether no phase has changed a fact that regions wait for since before.
func (f *facts) settledSince(before *facts) bool {
	same := func(a, b *model.Topology) bool { return a == b || *a == *b }
	return f.app.RolloutID == before.app.RolloutID && slices.EqualFunc(f.rows, before.rows, same) &&
		(f.progress == before.progress || f.progress.Equal(before.progress))
}

// decision runs phases. facts are the facts after the last phase.
type decision struct {
	*facts
	history []model.History
}

// run runs the phases one after the other, each with the changes of the earlier phases. It reports whether
// one of the phases has more to decide.
func (d *decision) run(phases ...phase) (again bool) {
	for _, ph := range phases {
		c, history, more := ph.run(d.facts)
		d.facts = d.apply(c)
		d.history = append(d.history, history...)
		again = again || more
	}
	return again
}

// outputOf returns everything that differs from the input.
func (d *decision) outputOf() Output {
	out := Output{History: d.history, Resolve: d.resolve, Measure: d.measures, Next: d.next()}
	if *d.app != d.in.App {
		a := *d.app
		a.UpdatedAt = d.now
		out.App = &a
	}
	if d.rollout != nil && *d.rollout != *d.in.Rollout {
		out.Rollout = d.rollout
	}
	if d.in.RolloutState != nil && d.progress != d.in.RolloutState.Progress && !d.progress.Equal(d.in.RolloutState.Progress) {
		s := *d.in.RolloutState
		s.Progress, s.UpdatedAt = d.progress, d.now
		out.RolloutState = &s
	}
	for _, was := range d.in.Deployments {
		if dep := d.deps[was.ID]; !sameDeployment(*dep, was) {
			out.Deployments = append(out.Deployments, *dep)
		}
	}
	out.Topology = d.rowsToWrite()
	for _, id := range sortedKeys(d.routes) {
		if r := d.routes[id]; r.Generation != d.routesWas[id].Generation {
			out.Routes = append(out.Routes, *r)
		}
	}
	return out
}

// rowsToWrite returns the rows that differ from the input.
func (f *facts) rowsToWrite() (changed []model.Topology) {
	for _, t := range f.rows {
		if was, ok := f.before[rowKey{t.DeploymentID, t.RegionID}]; !ok || *t != was {
			t := *t
			t.UpdatedAt = f.now
			changed = append(changed, t)
		}
	}
	return changed
}
