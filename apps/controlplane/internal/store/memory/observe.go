package memory

import (
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// Written is what one commit wrote: whole rows, for each table by key. Rows that it deleted are not included.
// It is shared, and must not be changed.
type Written struct {
	Regions       []model.Region
	Heads         []model.Head
	Changes       []model.Change
	Apps          []model.App
	Deployments   []model.Deployment
	Rollouts      []model.Rollout
	Topology      []model.Topology
	Routes        []model.Route
	Observed      []model.Observed
	RouteObserved []model.RouteObserved
	Instances     []model.Instance
	Decisions     []model.ScalingDecision
	// Deletes counts the rows that it deleted.
	Deletes int
}

// Observe calls f with every commit, in order, before the commit is visible. It is for tests that check each
// commit against the guarantees. f must not use the store.
func (s *Store) Observe(f func(Written)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observer = f
}

// written is called once the writes are applied.
func (t *tx) written(s *state) Written {
	var w Written
	w.Regions = rows(regionTable.in(t), &w)
	w.Apps = rows(appTable.in(t), &w)
	w.Deployments = rows(deploymentTable.in(t), &w)
	w.Rollouts = rows(rolloutTable.in(t), &w)
	w.Topology = rows(topologyTable.in(t), &w)
	w.Routes = rows(routeTable.in(t), &w)
	w.Observed = rows(observedTable.in(t), &w)
	w.RouteObserved = rows(routeObservedTable.in(t), &w)
	w.Instances = rows(instanceTable.in(t), &w)
	w.Decisions = rows(scalingDecisionTable.in(t), &w)
	moved := maps.Clone(t.bumped)
	for region, changes := range t.changes {
		moved[region] = true
		feed := logTable.of(s).rows[region].value.changes
		w.Changes = append(w.Changes, feed[len(feed)-len(changes):]...)
	}
	for _, region := range slices.Sorted(maps.Keys(moved)) {
		w.Heads = append(w.Heads, headTable.of(s).rows[region].value.Head)
	}
	return w
}

func rows[K comparable, V any](o *overlay[K, V], w *Written) []V {
	if len(o.writes) == 0 {
		return nil
	}
	var out []V
	for _, v := range o.writes {
		if v == nil {
			w.Deletes++
			continue
		}
		out = append(out, *v)
	}
	slices.SortFunc(out, func(a, b V) int { return compareKeys(o.key(a), o.key(b)) })
	return out
}
