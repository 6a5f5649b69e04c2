package models

import (
	"maps"
	"slices"
	"time"

	"github.com/windlass-run/windlass/pkg/modelstate"
)

// Status is the state of a model version.
type Status struct {
	ModelID string
	modelstate.Summary
	// Short is how many replicas have no server, and Refused why.
	Short    int
	Refused  string
	Replicas []ReplicaStatus
	// Reason says why replicas are missing or failed. It is empty if none is.
	Reason string
}

// ReplicaStatus is the state of a replica that a server holds or failed to hold.
type ReplicaStatus struct {
	ServerID, Address string
	// ServerReady is whether the server passes its health check.
	ServerReady bool
	State       modelstate.State
	Reason      string
	Since       time.Time
	// Failures is how many loads have failed since one succeeded.
	Failures int
}

// Status returns the states of all models, by id.
func (m *Manager) Status() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.looks++
	of := map[string][]replicaKey{}
	for key, r := range m.replicas {
		of[key.model] = append(of[key.model], key)
		if r.State == modelstate.UnrouteRequested && m.looks <= r.look+2 {
			m.signal() // Its unload waits for the next look.
		}
	}
	all := make([]Status, 0, len(m.models))
	for _, id := range slices.Sorted(maps.Keys(m.models)) {
		model := m.models[id]
		status := Status{ModelID: id}
		var states []modelstate.Replica
		slices.SortFunc(of[id], compareKeys)
		for _, key := range of[id] {
			r := m.replicas[key]
			states = append(states, r.Replica)
			if r.State == modelstate.Unloaded {
				continue
			}
			one := ReplicaStatus{ServerID: key.server, State: r.State, Reason: r.Reason, Since: r.since, Failures: r.failures}
			if s := m.servers[key.server]; s != nil {
				one.Address, one.ServerReady = s.Address, s.Ready
			}
			status.Replicas = append(status.Replicas, one)
			if r.Reason != "" {
				status.Reason = r.Reason
			}
		}
		if status.Short = m.short[id]; status.Short > 0 {
			status.Refused = m.refused[id].String()
			status.Reason = join(status.Refused, status.Reason)
		}
		status.Summary = modelstate.Summarize(modelstate.Wanted{
			Replicas: model.Replicas, MinReplicas: model.MinReplicas, Deleted: model.Deleted, Short: m.short[id],
		}, states)
		all = append(all, status)
	}
	return all
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ": " + b
}
