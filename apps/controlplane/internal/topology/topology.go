// Package topology writes the desired state: where each deployment should run, and
// where its requests are routed. All writes of rows go through this package, because
// it keeps an invariant: the region gets a change for a row exactly if its generation
// grew, in the same transaction.
//
// A generation grows exactly if agents must see the change. A weight is part of the
// route and not of the workload, so a new weight raises only the route's generation.
// A status that follows what an agent reports raises neither.
//
// In a region at most one row wants a workload. A row takes a workload over in the
// same transaction in which the other row stops or is transferred.
package topology

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Tx is the part of a transaction that this package needs. The transaction must hold the lock of the app's row.
type Tx interface {
	PutTopology([]model.Topology) error
	PutRoutes([]model.Route) error
	Change(regionID string, kind model.ChangeKind, key string, generation int64)
}

// State is topology rows and routes of an app, not necessarily all of them.
type State struct {
	Rows   []model.Topology
	Routes []model.Route
}

type rowKey struct{ deployment, region string }

// Diff returns the rows and routes of want that differ from have, in lock order. Rows
// and routes that want does not have stay. A generation below the one in have is
// an error, because agents with the higher generation would ignore the row for ever.
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
	if err := checkOneOwner(have.Rows, want.Rows); err != nil {
		return State{}, err
	}
	slices.SortFunc(d.Rows, func(a, b model.Topology) int {
		return cmp.Or(cmp.Compare(a.DeploymentID, b.DeploymentID), cmp.Compare(a.RegionID, b.RegionID))
	})
	slices.SortFunc(d.Routes, func(a, b model.Route) int { return cmp.Compare(a.RegionID, b.RegionID) })
	return d, nil
}

// checkOneOwner returns an error if two rows of a region want the same workload. Its
// instances would be changed back and forth between the two.
func checkOneOwner(have, want []model.Topology) error {
	after := make(map[rowKey]model.Topology, len(have))
	for _, t := range slices.Concat(have, want) {
		after[rowKey{t.DeploymentID, t.RegionID}] = t
	}
	owners := make(map[rowKey]string, len(after))
	for at, t := range after {
		if !t.Assigned() {
			continue
		}
		workload := rowKey{t.WorkloadKey(), at.region}
		if other, taken := owners[workload]; taken {
			first, second := min(other, at.deployment), max(other, at.deployment)
			return fmt.Errorf("topology of %s in %s: %s wants the same workload %s", first, at.region, second, workload.deployment)
		}
		owners[workload] = at.deployment
	}
	return nil
}

// Move is an app's current state, and the state that it should have.
type Move struct{ Have, Want State }

// Write is WriteAll for one app.
func Write(tx Tx, have, want State) error { return WriteAll(tx, []Move{{have, want}}) }

// WriteAll writes the differences between the two states of each app. It adds a change for each
// row and route whose generation grew.
func WriteAll(tx Tx, moves []Move) error {
	var all State
	generations := map[rowKey]int64{}
	for _, m := range moves {
		d, err := Diff(m.Have, m.Want)
		if err != nil {
			return err
		}
		all.Rows, all.Routes = append(all.Rows, d.Rows...), append(all.Routes, d.Routes...)
		for _, t := range m.Have.Rows {
			generations[rowKey{t.DeploymentID, t.RegionID}] = t.Generation
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
	// The row that takes a workload over comes first. Otherwise the region would stop the workload when it
	// gets the row that gives it up.
	slices.SortStableFunc(all.Rows, func(a, b model.Topology) int { return cmp.Compare(changeOrder(a), changeOrder(b)) })
	for _, t := range all.Rows {
		if t.Generation > generations[rowKey{t.DeploymentID, t.RegionID}] {
			tx.Change(t.RegionID, model.KindDeployment, t.DeploymentID, t.Generation)
		}
	}
	for _, r := range all.Routes {
		tx.Change(r.RegionID, model.KindRoutes, r.AppID, r.Generation)
	}
	return nil
}

// changeOrder is lower for rows that should run than for rows that should be removed.
func changeOrder(t model.Topology) int {
	if t.Assigned() {
		return 0
	}
	return 1
}

// Active reports whether the row's status is starting or started. Unlike Assigned it includes transferred rows.
func Active(t model.Topology) bool {
	return t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING ||
		t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
}

// Scale returns the running rows of the deployment whose replicas change, with the new
// number. want returns the number for a region, and false to leave the region as it is.
func Scale(rows []model.Topology, deploymentID string, want func(regionID string) (int32, bool), traceparent string, now int64) []model.Topology {
	return bumpRows(rows, traceparent, now, func(t *model.Topology) bool {
		replicas, wanted := want(t.RegionID)
		if t.DeploymentID != deploymentID || !wanted || t.Replicas == replicas {
			return false
		}
		t.Replicas = replicas
		return true
	})
}

// BumpSecrets returns the rows whose agents should fetch the secret again, with a new
// generation. They are the running rows whose deployment refers to the secret without a fixed
// version, in that region. specs holds the deployments by id.
func BumpSecrets(rows []model.Topology, specs map[string]*windlassv1.DeploymentSpec, secret, traceparent string, now int64) []model.Topology {
	return bumpRows(rows, traceparent, now, func(t *model.Topology) bool {
		return slices.ContainsFunc(override.In(specs[t.DeploymentID], t.RegionID).GetSecrets(), func(r *windlassv1.SecretReference) bool {
			return r.GetSecret() == secret && r.GetVersion() == 0
		})
	})
}

// Renew returns the running rows of the app with a new generation, because something of the app changed that
// agents must see with each deployment.
func Renew(rows []model.Topology, traceparent string, now int64) []model.Topology {
	return bumpRows(rows, traceparent, now, func(*model.Topology) bool { return true })
}

// bumpRows calls change for each running row. It returns the rows for which change returns true, with the
// next generation.
func bumpRows(rows []model.Topology, traceparent string, now int64, change func(*model.Topology) bool) []model.Topology {
	var changed []model.Topology
	for _, t := range rows {
		if t.Assigned() && change(&t) {
			t.Generation++
			t.Traceparent, t.UpdatedAt = traceparent, now
			changed = append(changed, t)
		}
	}
	return changed
}
