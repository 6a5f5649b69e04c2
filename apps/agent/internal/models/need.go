package models

import (
	"time"

	"github.com/windlass-run/windlass/pkg/placement"
)

// needLasts is how long the result of a placement tells the room that models need. Without other
// changes, models stop to need room as time passes.
const needLasts = time.Minute

// Need returns the room that models need of the servers of an instance's app, in percent of the room of
// the ready servers. ok is false before the first placement, and for instances that are not ready servers.
func (m *Manager) Need(serverID string) (percent float64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.servers[serverID]
	if s == nil || !isReadyServer(s) || m.needs == nil {
		return 0, false
	}
	if time.Since(m.placedAt) >= needLasts {
		m.placeDirty = true
		m.Again()
	}
	n := 0
	for _, other := range m.servers {
		if other.App == s.App && other.Scope == s.Scope && isReadyServer(other) {
			n++
		}
	}
	need := m.needs[placement.App{Scope: s.Scope, Name: s.App}]
	if s.Memory > 0 {
		percent = 100 * float64(need.Memory) / float64(s.Memory) / float64(n)
	}
	if s.Slots > 0 {
		percent = max(percent, 100*float64(need.Models)/float64(s.Slots)/float64(n))
	}
	return percent, true
}

func isReadyServer(s *server) bool { return s.Ready && !s.Draining }
