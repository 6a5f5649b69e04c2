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

// writtenBy is called once the writes are applied.
func (t *tx) writtenBy(s *state) Written {
	var w Written
	w.Regions = writtenRows(regionTable.overlayIn(t), &w)
	w.Apps = writtenRows(appTable.overlayIn(t), &w)
	w.Deployments = writtenRows(deploymentTable.overlayIn(t), &w)
	w.Rollouts = writtenRows(rolloutTable.overlayIn(t), &w)
	w.Topology = writtenRows(topologyTable.overlayIn(t), &w)
	w.Routes = writtenRows(routeTable.overlayIn(t), &w)
	w.Observed = writtenRows(observedTable.overlayIn(t), &w)
	w.RouteObserved = writtenRows(routeObservedTable.overlayIn(t), &w)
	w.Instances = writtenRows(instanceTable.overlayIn(t), &w)
	w.Decisions = writtenRows(scalingDecisionTable.overlayIn(t), &w)
	moved := maps.Clone(t.bumped)
	for region, changes := range t.changes {
		moved[region] = true
		feed := logTable.tableOf(s).rows[region].value.changes
		w.Changes = append(w.Changes, feed[len(feed)-len(changes):]...)
	}
	for _, region := range slices.Sorted(maps.Keys(moved)) {
		w.Heads = append(w.Heads, headTable.tableOf(s).rows[region].value.Head)
	}
	return w
}

func writtenRows[K comparable, V any](o *overlay[K, V], w *Written) []V {
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
