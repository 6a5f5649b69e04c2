package models

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/windlass-run/windlass/pkg/modelstate"
)

type replicaKey struct{ model, server string }

type replica struct {
	modelstate.Replica
	// since is when the present state began.
	since    time.Time
	failures int
	retryAt  time.Time
	// look is the value of Manager.looks when the present state began.
	look int64
	// reload means that the model is unloaded in order to be loaded again. Such an unload is not
	// taken back.
	reload bool
	// evicted means that the model is unloaded to make room. Such an unload is not taken back, either.
	evicted bool
	// unprepared means that the load has not reached the server: the model's files are being
	// fetched, or could not be fetched, or the server did not take the connection.
	unprepared bool
}

// setReplica adds a replica, or replaces it.
func (m *Manager) setReplica(key replicaKey, r *replica) {
	m.dropReplica(key)
	m.replicas[key] = r
	if m.replicasOf[key.model] == nil {
		m.replicasOf[key.model] = map[string]*replica{}
	}
	m.replicasOf[key.model][key.server] = r
	if s := m.servers[key.server]; s != nil {
		s.replicas[key.model] = r
	}
	m.count(key, r, 1)
	m.stale[key.model] = true
}

// dropReplica forgets a replica.
func (m *Manager) dropReplica(key replicaKey) {
	r := m.replicas[key]
	if r == nil {
		return
	}
	m.count(key, r, -1)
	m.stale[key.model] = true
	delete(m.replicas, key)
	delete(m.replicasOf[key.model], key.server)
	if len(m.replicasOf[key.model]) == 0 {
		delete(m.replicasOf, key.model)
	}
	if s := m.servers[key.server]; s != nil {
		delete(s.replicas, key.model)
	}
}

// count updates the counts by state. by is 1 to add a replica, and -1 to remove it.
func (m *Manager) count(key replicaKey, r *replica, by int) {
	unrouting := r.State == modelstate.UnrouteRequested
	if s := m.servers[key.server]; s != nil && (unrouting || r.State.Facts().Routed) {
		s.serving += by
	}
	switch {
	case !unrouting:
	case by > 0:
		m.unrouting[key] = r
	default:
		delete(m.unrouting, key)
	}
}

// apply applies an event to a replica, and starts the work that follows from the new state. It
// reports whether the state changed.
func (m *Manager) apply(key replicaKey, r *replica, e modelstate.Event, tick int64, reason string, now time.Time) bool {
	next, changed := r.Apply(e, tick, reason)
	if !changed {
		return false
	}
	m.count(key, r, -1)
	r.Replica, r.since, r.look = next, now, m.looks
	m.count(key, r, 1)
	m.stale[key.model] = true
	switch next.State {
	case modelstate.Available:
		r.failures = 0
		m.endRequest(key.model, now)
	case modelstate.LoadRequested, modelstate.UnloadRequested:
		if s := m.servers[key.server]; s != nil {
			s.queue = append(s.queue, key)
		}
	case modelstate.Unloaded:
		r.reload, r.evicted = false, false
	case modelstate.LoadedUnavailable:
		if s := m.servers[key.server]; s != nil && e == modelstate.RequestLoad {
			s.askAt = now // An unload was taken back. Only the server knows whether the model is ready.
		}
	case modelstate.LoadFailed, modelstate.UnloadFailed:
		r.retryAt = now.Add(m.cfg.Retry.Delay(r.failures, m.cfg.Rand))
		r.failures++
		m.cfg.Log.Warn("a server failed to load or unload a model", "instance", key.server, "model", m.models[key.model].Name, "state", next.State.String(), "reason", reason)
	default: // The other states need no action.
	}
	m.placeDirty = true
	m.signalChange()
	return true
}

// advanceReplica applies the events that come from time and from gateways.
func (m *Manager) advanceReplica(key replicaKey, r *replica, now time.Time, soon func(time.Time)) {
	switch r.State {
	case modelstate.Loaded:
		// The agent's observation sends the replica to gateways. It counts as ready once they have
		// acknowledged it.
		m.apply(key, r, modelstate.Routed, r.Tick, "", now)
	case modelstate.UnrouteRequested:
		due := r.since.Add(m.cfg.Patience)
		// The result of Released means nothing until gateways know the state. They know it when the
		// second look after the change begins.
		if m.looks >= r.look+2 && m.cfg.Released(key.model, key.server) || !now.Before(due) {
			m.apply(key, r, modelstate.Unrouted, r.Tick, "", now)
		} else {
			soon(due)
		}
	case modelstate.LoadedUnavailable:
		due := r.since.Add(m.cfg.Unready)
		s := m.servers[key.server]
		switch {
		case s != nil && s.calls[key.model]: // Wait for the result of the call.
		case now.Before(due):
			soon(due)
		default:
			r.reload = true
			m.apply(key, r, modelstate.RequestUnload, 0, "", now)
		}
	case modelstate.UnloadFailed:
		if now.Before(r.retryAt) {
			soon(r.retryAt)
		} else {
			m.apply(key, r, modelstate.RequestUnload, 0, "", now)
		}
	case modelstate.LoadFailed:
		switch {
		case !m.models[key.model].Deleted && now.Before(r.retryAt):
			soon(r.retryAt)
		case !m.models[key.model].Deleted && m.placedAt.Before(r.since):
			soon(m.placeAt) // A placement after the failure comes first, because it prefers other servers.
		default:
			m.placeDirty = true
			soon(m.placeAt)
			// The number of failures is kept, so that delays grow.
			m.setReplica(key, &replica{Replica: modelstate.Replica{State: modelstate.Unloaded, Tick: r.Tick + 1}, since: now, failures: r.failures})
		}
	default: // The other states wait for a server or for a placement.
	}
}

// startQueued starts the server's operations that may run now, in the order of their requests. An
// operation waits while another one of the same model runs.
func (m *Manager) startQueued(ctx context.Context, s *server, now time.Time) {
	var waiting []replicaKey
	defer func() { s.queue = append(waiting, s.queue...) }()
	for len(s.queue) > 0 {
		key := s.queue[0]
		r := m.replicas[key]
		switch {
		case r != nil && s.calls[key.model] && (r.State == modelstate.LoadRequested || r.State == modelstate.UnloadRequested):
			waiting = append(waiting, key)
		case r != nil && r.State == modelstate.LoadRequested:
			if !m.mayStart(s, key.model) {
				return
			}
			m.start(ctx, s, key, r, modelstate.LoadStarted, now)
		case r != nil && r.State == modelstate.UnloadRequested:
			if !m.mayStart(s, "") {
				return
			}
			m.start(ctx, s, key, r, modelstate.UnloadStarted, now)
		}
		s.queue = s.queue[1:]
	}
}

// mayStart reports whether a server may begin another operation. model is the model to load, or ""
// for an unload. A model that is suspected of ending servers is loaded alone.
func (m *Manager) mayStart(s *server, model string) bool {
	if !s.Ready || !s.alive || s.alone || len(s.calls) >= m.cfg.LoadsAtOnce {
		return false
	}
	return model == "" || m.kills[appModel{s.App, model}].count == 0 || len(s.calls) == 0
}

// start tells a server to load or unload a model.
func (m *Manager) start(ctx context.Context, s *server, key replicaKey, r *replica, e modelstate.Event, now time.Time) {
	model, target, tick := m.models[key.model], s.Server, r.Tick
	m.apply(key, r, e, tick, "", now)
	s.calls[key.model] = true
	load := e == modelstate.LoadStarted
	shared, prepares := false, model.Artifact.URL != "" && m.cfg.Prepare != nil
	r.unprepared = load && prepares
	if load {
		s.owners[model.Name] = key.model
		shared = len(m.versions[scopedName{model.Scope, model.Name}]) > 1 && m.cfg.Claim != nil
		s.alone = m.kills[appModel{s.App, key.model}].count > 0
	}
	m.work.Go(func() {
		call, done, broke := m.cfg.Loader.Unload, modelstate.UnloadDone, modelstate.UnloadBroke
		if load {
			call, done, broke = m.cfg.Loader.Load, modelstate.LoadDone, modelstate.LoadBroke
		}
		limited, cancel := context.WithTimeout(ctx, m.cfg.LoadTimeout)
		defer cancel()
		var err error
		if shared {
			if err = m.cfg.Claim(target.ID, model.Name, model.ID); err != nil {
				err = fmt.Errorf("%w: %w", errNotNoted, err)
			}
		}
		if err == nil && load && prepares {
			model, err = m.prepareFiles(limited, key, target, model)
		}
		unprepared := err != nil
		if err == nil {
			err = call(limited, target, model)
		}
		if err == nil && !load && prepares {
			m.cfg.Discard(target, model)
		}
		m.metrics.countEnded(load, time.Since(now), err)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.servers[s.ID] != s {
			return
		}
		now := time.Now()
		delete(s.calls, key.model)
		s.alone = false // if a model is loaded alone, this was the only call
		m.Again()
		event, reason := done, ""
		if err != nil {
			if !unprepared { // Only a call can have met the end of the server.
				s.alive, s.askAt, s.brokeAt = false, time.Time{}, now
			}
			event, reason = broke, err.Error()
		} else if !load {
			delete(s.held, model.Name) // so that IsGone need not wait for the next question
		}
		if current := m.replicas[key]; current != nil && isDialError(err) {
			current.unprepared = true
		}
		if current := m.replicas[key]; current != nil && !m.apply(key, current, event, tick, reason, now) && current.State == modelstate.LoadedUnavailable {
			current.since, s.askAt = now, now // The server was not asked about the model during the call.
		}
		if ctx.Err() == nil {
			m.startQueued(ctx, s, now)
		}
	})
}

// isDialError reports whether a call ended because the server did not take the connection.
func isDialError(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// prepareFiles makes the files of a model available to a server.
func (m *Manager) prepareFiles(ctx context.Context, key replicaKey, target Server, model Model) (Model, error) {
	prepared, err := m.cfg.Prepare(ctx, target, model)
	if err != nil {
		return model, fmt.Errorf("%w%w", errNoFiles, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.replicas[key]; r != nil {
		r.unprepared = false
	}
	return prepared, nil
}
