// Package topology writes desired state: which deployment is to run where, and
// what is routed to it. It is the only way rows change, because it is what keeps
// one invariant: a row whose generation grew is told to its region, in the same
// transaction, and one whose generation did not grow is not.
//
// A generation grows exactly when agents must see the change. A weight is not
// part of what an agent runs, so it moves the route's generation and not the
// row's; a status (started, stopped) moves neither.
//
// A workload is wanted by one row of a region at the most: a row takes it over from
// another in the transaction in which that one stops or hands it over.
package topology

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Tx is what writing needs of a transaction that holds the app's row.
type Tx interface {
	PutTopology([]model.Topology) error
	PutRoutes([]model.Route) error
	Change(regionID string, kind model.ChangeKind, key string, generation int64)
}

// State is an app's rows and routes, or some of them.
type State struct {
	Rows   []model.Topology
	Routes []model.Route
}

type rowKey struct{ deployment, region string }

// Diff returns what of want differs from have, in lock order. What want does not
// mention stays. A generation that would go back is an error of the caller: the
// agents that hold the higher one would ignore the row forever.
func Diff(have, want State) (State, error) {
	var d State
	rows := make(map[rowKey]model.Topology, len(have.Rows))
	for _, t := range have.Rows {
		rows[rowKey{t.DeploymentID, t.RegionID}] = t
	}
	for _, t := range want.Rows {
		was, had := rows[rowKey{t.DeploymentID, t.RegionID}]
		if t.Generation < was.Generation || t.Generation < 1 {
			return State{}, fmt.Errorf("topology of %s in %s: generation %d after %d",
				t.DeploymentID, t.RegionID, t.Generation, was.Generation)
		}
		if !had || t != was {
			d.Rows = append(d.Rows, t)
		}
	}
	routes := make(map[string]model.Route, len(have.Routes))
	for _, r := range have.Routes {
		routes[r.RegionID] = r
	}
	for _, r := range want.Routes {
		was, had := routes[r.RegionID]
		if r.Generation < was.Generation || r.Generation < 1 {
			return State{}, fmt.Errorf("route of %s in %s: generation %d after %d",
				r.AppID, r.RegionID, r.Generation, was.Generation)
		}
		if !had || r.Generation != was.Generation {
			d.Routes = append(d.Routes, r)
		}
	}
	if err := oneEach(have.Rows, want.Rows); err != nil {
		return State{}, err
	}
	slices.SortFunc(d.Rows, func(a, b model.Topology) int {
		return cmp.Or(cmp.Compare(a.DeploymentID, b.DeploymentID), cmp.Compare(a.RegionID, b.RegionID))
	})
	slices.SortFunc(d.Routes, func(a, b model.Route) int { return cmp.Compare(a.RegionID, b.RegionID) })
	return d, nil
}

// oneEach refuses two rows of a region that are to run with one workload: its
// instances would go back and forth between them.
func oneEach(have, want []model.Topology) error {
	after := make(map[rowKey]model.Topology, len(have))
	for _, t := range slices.Concat(have, want) {
		after[rowKey{t.DeploymentID, t.RegionID}] = t
	}
	owners := make(map[rowKey]string, len(after))
	for at, t := range after {
		if !t.Told() {
			continue
		}
		workload := rowKey{t.WorkloadKey(), at.region}
		if other, taken := owners[workload]; taken {
			first, second := min(other, at.deployment), max(other, at.deployment)
			return fmt.Errorf("topology of %s in %s: %s is to run with workload %s too", first, at.region, second, workload.deployment)
		}
		owners[workload] = at.deployment
	}
	return nil
}

// Move holds the state that an app has and the state that it should have.
type Move struct{ Have, Want State }

// Write is WriteAll for one app.
func Write(tx Tx, have, want State) error { return WriteAll(tx, []Move{{have, want}}) }

// WriteAll puts what of each app's want differs from its have, and notes a change for each
// row and route whose generation grew.
func WriteAll(tx Tx, moves []Move) error {
	var all State
	grown := map[rowKey]int64{}
	for _, m := range moves {
		d, err := Diff(m.Have, m.Want)
		if err != nil {
			return err
		}
		all.Rows, all.Routes = append(all.Rows, d.Rows...), append(all.Routes, d.Routes...)
		for _, t := range m.Have.Rows {
			grown[rowKey{t.DeploymentID, t.RegionID}] = t.Generation
		}
	}
	if len(all.Rows) > 0 {
		if err := tx.PutTopology(all.Rows); err != nil {
			return fmt.Errorf("put topology: %w", err)
		}
	}
	if len(all.Routes) > 0 {
		if err := tx.PutRoutes(all.Routes); err != nil {
			return fmt.Errorf("put routes: %w", err)
		}
	}
	// Who takes a workload over is told first: who lets go of it would stop it.
	slices.SortStableFunc(all.Rows, func(a, b model.Topology) int { return cmp.Compare(last(a), last(b)) })
	for _, t := range all.Rows {
		if t.Generation > grown[rowKey{t.DeploymentID, t.RegionID}] {
			tx.Change(t.RegionID, model.KindDeployment, t.DeploymentID, t.Generation)
		}
	}
	for _, r := range all.Routes {
		tx.Change(r.RegionID, model.KindRoutes, r.AppID, r.Generation)
	}
	return nil
}

// last orders what regions are told: what is to run before what is to go.
func last(t model.Topology) int {
	if t.Told() {
		return 0
	}
	return 1
}

// Active reports whether the row is to run.
func Active(t model.Topology) bool {
	return t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING ||
		t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
}

// Scale returns the rows of the deployment with other replicas: those that run in
// regions that want tells a number for. Rows that have that many are left out, so an
// empty answer means that there is nothing to do.
func Scale(rows []model.Topology, deploymentID string, want func(regionID string) (int32, bool), traceparent string, now int64) []model.Topology {
	return bump(rows, traceparent, now, func(t *model.Topology) bool {
		replicas, wanted := want(t.RegionID)
		if t.DeploymentID != deploymentID || !wanted || t.Replicas == replicas {
			return false
		}
		t.Replicas = replicas
		return true
	})
}

// BumpSecrets returns the rows that are to fetch their secrets again: those that
// run and whose deployment, by id in specs, refers to the secret's newest version, whatever
// that is, in their region.
func BumpSecrets(rows []model.Topology, specs map[string]*windlassv1.DeploymentSpec, secret, traceparent string, now int64) []model.Topology {
	return bump(rows, traceparent, now, func(t *model.Topology) bool {
		return slices.ContainsFunc(override.In(specs[t.DeploymentID], t.RegionID).GetSecrets(), func(r *windlassv1.SecretReference) bool {
			return r.GetSecret() == secret && r.GetVersion() == 0
		})
	})
}

// bump returns the rows that regions run and that change has changed, a generation later.
func bump(rows []model.Topology, traceparent string, now int64, change func(*model.Topology) bool) []model.Topology {
	var changed []model.Topology
	for _, t := range rows {
		if t.Told() && change(&t) {
			t.Generation++
			t.Traceparent, t.UpdatedAt = traceparent, now
			changed = append(changed, t)
		}
	}
	return changed
}
