package models

import (
	"math"
	"slices"
	"time"

	"github.com/windlass-run/windlass/pkg/modelstate"
	"github.com/windlass-run/windlass/pkg/placement"
)

const (
	// requestLasts is the time after which a request for a model that no server has no longer counts.
	// Gateways repeat it every second while requests wait.
	requestLasts = 10 * time.Second
	// requestSpacing is the time between two placements while requests wait, because time alone may
	// allow an eviction.
	requestSpacing = time.Second
	// shortSpacing is requestSpacing while only models without requests need an eviction.
	shortSpacing = 5 * time.Second
	// rateWindow is the time over which the requests for a model are averaged. It is long, so that
	// models with many requests are recognized although their requests come in bursts.
	rateWindow = 5 * time.Minute
)

// use is what the manager knows about the requests for a model that is OnRequest.
type use struct {
	// requested is since when requests wait for the model, and repeated is when a gateway last said
	// so. Zero: none waits.
	requested, repeated time.Time
	// lastUsed is when the model last got a request.
	lastUsed time.Time
	// count is the number of requests, halved for each rateWindow that has passed since at.
	count float64
	at    time.Time
}

func (u *use) add(n float64, now time.Time) {
	u.count, u.at, u.lastUsed = u.countAt(now)+n, now, now
}

func (u *use) countAt(now time.Time) float64 {
	return u.count * math.Exp2(-now.Sub(u.at).Seconds()/rateWindow.Seconds())
}

func (m *Manager) useOf(modelID string) *use {
	u := m.uses[modelID]
	if u == nil {
		u = &use{}
		m.uses[modelID] = u
	}
	return u
}

// Used records requests for a model that a server has.
func (m *Manager) Used(modelID string, requests uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.models[modelID].OnRequest {
		m.useOf(modelID).add(float64(requests), time.Now())
	}
}

// Request says that requests wait for a model. The manager loads it if no server has it, and evicts
// other models for it. Call it again at least every requestLasts while requests wait.
func (m *Manager) Request(modelID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	model := m.models[modelID]
	if !model.OnRequest || model.Deleted || model.Replicas == 0 || m.isServed(modelID) {
		return
	}
	u, now := m.useOf(modelID), time.Now()
	if u.repeated = now; !u.requested.IsZero() {
		return
	}
	u.requested = now
	u.add(1, now)
	m.stale[modelID], m.placeDirty = true, true
	m.signalChange()
}

// isServed reports whether gateways send requests for the model to a server.
func (m *Manager) isServed(modelID string) bool {
	for _, r := range m.replicasOf[modelID] {
		if r.State == modelstate.Available || r.State == modelstate.Draining {
			return true
		}
	}
	return false
}

// endRequest records that requests no longer wait for a model, because it is available.
func (m *Manager) endRequest(modelID string, now time.Time) {
	u := m.uses[modelID]
	if u == nil || u.requested.IsZero() {
		return
	}
	m.metrics.requests.WithLabelValues("available").Inc()
	m.metrics.requestTime.Observe(now.Sub(u.requested).Seconds())
	u.requested = time.Time{}
	m.stale[modelID] = true
}

// renewRequests ends requests that gateways do not repeat, and makes a placement due while models wait
// for an eviction.
func (m *Manager) renewRequests(now time.Time, soon func(time.Time)) {
	spacing := time.Duration(0)
	if m.needsEviction() {
		spacing = shortSpacing
	}
	for id, u := range m.uses {
		if u.requested.IsZero() {
			continue
		}
		if now.Sub(u.repeated) >= requestLasts {
			m.metrics.requests.WithLabelValues("given_up").Inc()
			u.requested = time.Time{}
			m.stale[id], m.placeDirty = true, true
			continue
		}
		spacing = requestSpacing
	}
	switch {
	case spacing == 0:
	case now.Sub(m.placedAt) >= spacing:
		m.placeDirty = true
	default:
		soon(m.placedAt.Add(spacing))
	}
}

// needsEviction reports whether a model for which no request waits may get a server by an eviction: a
// new one, or one that is not loaded on request.
func (m *Manager) needsEviction() bool {
	evicts := false
	for _, s := range m.servers {
		evicts = evicts || s.Evictions > 0
	}
	if !evicts {
		return false
	}
	for id := range m.short {
		if model := m.models[id]; !model.OnRequest || !model.Loaded {
			return true
		}
	}
	return false
}

// addUse adds to a model of a placement what is known about its requests. A model of which several
// versions are known is not evicted, so that an update compares versions that both serve.
func (m *Manager) addUse(p *placement.Model, model Model, now time.Time) {
	p.OnRequest = model.OnRequest && !model.Deleted && len(m.versions[scopedName{model.Scope, model.Name}]) == 1
	if !p.OnRequest {
		return
	}
	p.New = !model.Loaded && !m.isServed(model.ID)
	if m.cfg.Busy != nil {
		p.Busy = m.cfg.Busy(model.Deployment)
	}
	if u := m.uses[model.ID]; u != nil {
		p.Requested, p.LastUsed, p.Rate = u.requested, u.lastUsed, u.countAt(now)/rateWindow.Seconds()
	}
}

// evictionOf returns how a server makes room, or nil if it does not.
func (m *Manager) evictionOf(s *server) *placement.Eviction {
	if s.Evictions == 0 {
		return nil
	}
	e := &placement.Eviction{Keep: s.Keep, Past: s.evicted}
	if m.cfg.Holds != nil && m.cfg.Holds() {
		e.PerMinute = s.Evictions
	}
	return e
}

// evict unloads the replica of a model to make room.
func (m *Manager) evict(key replicaKey, now time.Time) {
	r, s := m.replicas[key], m.servers[key.server]
	if r == nil || s == nil {
		return
	}
	r.evicted = true
	if !m.apply(key, r, modelstate.RequestUnload, 0, "", now) {
		r.evicted = false
		return
	}
	s.evicted = append(slices.DeleteFunc(s.evicted, func(at time.Time) bool { return now.Sub(at) >= time.Minute }), now)
	m.metrics.evictions.Inc()
	var unused time.Duration
	if u := m.uses[key.model]; u != nil && !u.lastUsed.IsZero() {
		unused = now.Sub(u.lastUsed)
	}
	m.cfg.Log.Info("a server unloads a model to make room", "instance", key.server, "model", m.models[key.model].Name, "unused_for", unused.Round(time.Second).String())
}
