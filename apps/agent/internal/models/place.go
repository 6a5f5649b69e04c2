package models

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/windlass-run/windlass/pkg/modelstate"
	"github.com/windlass-run/windlass/pkg/placement"
)

// placeModels decides which servers should have which models, and requests loads and unloads.
func (m *Manager) placeModels(now time.Time) {
	servers, ids := m.placementServers()
	failed := map[string][]placement.Key{}
	for at, id := range ids {
		for model, r := range m.servers[id].replicas {
			if r.State == modelstate.LoadFailed {
				failed[model] = append(failed[model], at)
			}
		}
	}
	quarantined := map[string][]string{}
	for k, n := range m.kills {
		if n.count >= killsBeforeQuarantine {
			quarantined[k.model] = append(quarantined[k.model], k.app)
		}
	}
	var models []placement.Model
	for id, model := range m.models {
		p := placement.Model{
			ID: id, Name: model.Name, Scope: model.Scope, Requires: model.Requires, App: model.App, Memory: model.Memory, Replicas: model.Replicas, MinReplicas: model.MinReplicas,
			Failed: failed[id], Quarantined: quarantined[id],
		}
		m.addUse(&p, model, now)
		if model.Deleted {
			p.Replicas, p.MinReplicas = 0, 0
		}
		models = append(models, p)
	}
	decisions := placement.Place(now, servers, models)
	m.needs = placement.Needs(now, servers, models, decisions)
	for _, d := range decisions {
		m.noteShort(d)
		for _, at := range d.Evict {
			m.evict(replicaKey{d.Model, ids[at]}, now)
		}
		for _, at := range d.Servers {
			m.requestEvent(replicaKey{d.Model, ids[at]}, modelstate.RequestLoad, now)
		}
		for _, at := range d.Unload {
			m.requestEvent(replicaKey{d.Model, ids[at]}, modelstate.RequestUnload, now)
		}
	}
	for _, s := range m.servers {
		if !s.Draining {
			continue
		}
		for model, r := range s.replicas {
			m.apply(replicaKey{model, s.ID}, r, modelstate.Drain, 0, "", now)
		}
	}
}

// noteShort records how many replicas of a model have no server, and why.
func (m *Manager) noteShort(d placement.Decision) {
	refused := ""
	if d.Short > 0 {
		refused = m.refusedText(d)
	}
	if m.short[d.Model] == d.Short && m.refused[d.Model] == refused && m.loadable[d.Model] == d.OnRequest {
		return
	}
	m.stale[d.Model] = true
	m.signalChange()
	delete(m.loadable, d.Model)
	if d.Short == 0 {
		delete(m.short, d.Model)
		delete(m.refused, d.Model)
		return
	}
	if d.OnRequest {
		m.loadable[d.Model] = true
	}
	m.short[d.Model], m.refused[d.Model] = d.Short, refused
}

// refusedText says why a model has no further server. Servers that do not say which models they
// hold come first, because the placement does not know them.
func (m *Manager) refusedText(d placement.Decision) string {
	model, silent, why := m.models[d.Model], 0, ""
	for _, s := range m.servers {
		if s.adopted || s.silent == "" || s.Scope != model.Scope || model.App != "" && s.App != model.App {
			continue
		}
		if silent++; why == "" || s.silent < why {
			why = s.silent
		}
	}
	var parts []string
	switch {
	case silent == 1:
		parts = append(parts, "1 server does not say which models it has: "+why)
	case silent > 1:
		parts = append(parts, fmt.Sprintf("%d servers do not say which models they have: %s", silent, why))
	}
	if silent == 0 || d.Refused.Servers > 0 {
		parts = append(parts, d.Refused.String())
	}
	return strings.Join(parts, "; ")
}

func (m *Manager) requestEvent(key replicaKey, e modelstate.Event, now time.Time) {
	r := m.replicas[key]
	if r == nil {
		r = &replica{Replica: modelstate.Replica{State: modelstate.Unloaded}, since: now}
		m.setReplica(key, r)
	}
	m.apply(key, r, e, 0, "", now)
}

// placementServers returns the servers that have answered which models they hold, and their ids.
func (m *Manager) placementServers() ([]placement.Server, map[placement.Key]string) {
	order := slices.SortedFunc(maps.Values(m.servers), func(a, b *server) int {
		return cmp.Or(cmp.Compare(a.App, b.App), cmp.Compare(a.Index, b.Index), cmp.Compare(a.ID, b.ID))
	})
	var servers []placement.Server
	ids := map[placement.Key]string{}
	for i, s := range order {
		if !s.adopted {
			continue
		}
		// Two instances of an app may have the same index during a rollout.
		p := placement.Server{
			App: s.App, Index: i, Scope: s.Scope, Capabilities: s.Capabilities, Memory: s.Memory, Overcommit: s.Overcommit, Slots: s.Slots,
			Draining: s.Draining || !s.Ready, Eviction: m.evictionOf(s),
		}
		for model, r := range s.replicas {
			if !r.State.Facts().Holds {
				continue
			}
			p.Holds = append(p.Holds, placement.Held{
				Model: model, Name: m.models[model].Name, Memory: m.models[model].Memory, Serving: r.State.Facts().Routed, Since: r.since,
				// An unload that has not begun can be taken back, unless it makes room.
				Leaving: r.reload || r.evicted || r.State == modelstate.Unloading || r.State == modelstate.UnloadFailed,
			})
		}
		servers = append(servers, p)
		ids[p.Key()] = s.ID
	}
	return servers, ids
}
