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
	// Short is how many replicas have no server. Refused says why.
	Short   int
	Refused string
	// OnRequest means that replicas without a server are fine, because the model has been loaded
	// before, and a request loads it again.
	OnRequest bool
	Replicas  []ReplicaStatus
	// Reason says why replicas are missing or failed. It is empty if all replicas are fine.
	Reason string
}

// ReplicaStatus is the state of a replica that a server holds or failed to hold.
type ReplicaStatus struct {
	ServerID, Address string
	// ServerReady means that the server passes its health check. ServerEvicts means that the server
	// unloads models to make room.
	ServerReady, ServerEvicts bool
	State                     modelstate.State
	Reason                    string
	Since                     time.Time
	// Failures is how many loads have failed since the last success.
	Failures int
}

// Status returns the states of all models, by id. The caller must not change them. If the status of
// a model has not changed, its pointer is the same as in the last call.
func (m *Manager) Status() []*Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.looks++
	for _, r := range m.unrouting {
		if m.looks <= r.look+2 {
			m.signalChange() // The unload waits for the next call of Status.
			break
		}
	}
	if m.ids != nil && len(m.stale) == 0 {
		return m.listed
	}
	for id := range m.stale {
		if model, ok := m.models[id]; ok {
			m.statuses[id] = m.statusOf(model)
		}
	}
	clear(m.stale)
	if m.ids == nil {
		m.ids = slices.AppendSeq(make([]string, 0, len(m.statuses)), maps.Keys(m.statuses))
		slices.Sort(m.ids)
	}
	m.listed = make([]*Status, 0, len(m.ids))
	for _, id := range m.ids {
		m.listed = append(m.listed, m.statuses[id])
	}
	return m.listed
}

func (m *Manager) statusOf(model Model) *Status {
	status := &Status{ModelID: model.ID}
	var states []modelstate.Replica
	of := m.replicasOf[model.ID]
	for _, server := range slices.Sorted(maps.Keys(of)) {
		r := of[server]
		states = append(states, r.Replica)
		if r.State == modelstate.Unloaded {
			continue
		}
		one := ReplicaStatus{ServerID: server, State: r.State, Reason: r.Reason, Since: r.since, Failures: r.failures}
		if s := m.servers[server]; s != nil {
			one.Address, one.ServerReady, one.ServerEvicts = s.Address, s.Ready, s.Evictions > 0
		}
		status.Replicas = append(status.Replicas, one)
		if r.Reason != "" {
			status.Reason = r.Reason
		}
	}
	if status.Short = m.short[model.ID]; status.Short > 0 {
		status.Refused = m.refused[model.ID]
		status.OnRequest = model.Loaded && m.loadable[model.ID]
		status.Reason = joinTexts(status.Refused, status.Reason)
	}
	status.Summary = modelstate.Summarize(modelstate.Wanted{
		Replicas: model.Replicas, MinReplicas: model.MinReplicas, Deleted: model.Deleted, Short: status.Short,
	}, states)
	return status
}

func joinTexts(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ": " + b
}
