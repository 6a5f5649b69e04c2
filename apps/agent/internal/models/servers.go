package models

import (
	"cmp"
	"context"
	"errors"
	"net"
	"reflect"
	"time"

	"github.com/windlass-run/windlass/pkg/modelstate"
)

// Server is an instance that serves models.
type Server struct {
	// ID is the instance's id. Incarnation differs after each restart of the instance's process.
	ID, Incarnation string
	// App is the instance's app. Index orders the instances of an app. A server and its models have
	// the same Scope.
	App   string
	Scope string
	// Workspace is the workspace whose share of questions is used for this server.
	Workspace string
	Index     int
	// Address is host:port.
	Address string
	// Protocol says how the server loads models.
	Protocol Protocol
	// Ready means that the instance passes its health check. Draining means that it is going to
	// stop.
	Ready, Draining bool
	Capabilities    []string
	Memory          int64
	Overcommit      int
	Slots           int
	// Evictions is how many models the server may unload in a minute to make room for others. 0: none.
	// Keep is how long a model serves before it may be unloaded to make room.
	Evictions int
	Keep      time.Duration
}

// Protocol is a way to load models.
type Protocol string

// The protocols.
const (
	// V2 is the Open Inference Protocol with the repository extension.
	V2 Protocol = "v2"
	// LoRA is vLLM's calls for adapters.
	LoRA Protocol = "lora"
	// SGLang is SGLang's calls for adapters.
	SGLang Protocol = "sglang"
)

// HasAdapters reports whether the server loads adapters of its own model.
func (p Protocol) HasAdapters() bool { return p == LoRA || p == SGLang }

// Held is a model that a server says it has.
type Held struct {
	Name string
	// Checked means that the server was asked whether the model is ready. Ready is the server's
	// answer.
	Checked, Ready bool
	// Loading means that the server says that it is loading the model.
	Loading bool
}

// askSpacing is the time between two questions to a server while some of its models were never
// checked. It applies only if the last answer settled the state of at least one such model.
const askSpacing = 10 * time.Millisecond

// seenLate is the longest time from the end of a server until the agent observes it.
const seenLate = 5 * time.Second

// tellWithin is how long after its start the agent waits for servers to say which models they hold.
const tellWithin = time.Minute

// killsBeforeQuarantine is how many servers must end while they load a model until the model is
// quarantined.
const killsBeforeQuarantine = 2

type server struct {
	Server
	// adopted means that the server has answered which models it holds. alive means that it has
	// answered since the last failed load or unload, because a call may fail when its server ends.
	adopted, alive, asking bool
	askAt                  time.Time
	failures               int
	// silent is the reason why the server did not answer the last question, or "" if it did.
	silent string
	// calls has the models with a running load or unload, even if its result is no longer wanted. A
	// model has at most one running call. alone means that no other call may begin.
	calls map[string]bool
	alone bool
	// replicas has the server's replicas by model. serving is how many of them gateways may send
	// to.
	replicas map[string]*replica
	serving  int
	// held has the models that the server said it has, by name.
	held map[string]Held
	// owners has the version that the server holds or held last, by name.
	owners map[string]string
	// droppedAt is when a version that the server may have held was last dropped.
	droppedAt time.Time
	// queue has the replicas to load or unload. Their states may have changed since they were
	// added.
	queue []replicaKey
	// brokeAt is when the last load or unload failed.
	brokeAt time.Time
	// evicted has the times of the evictions of the last minute.
	evicted []time.Time
}

type appModel struct{ app, model string }

// kills is a number of servers that ended, at most killsBeforeQuarantine. since is when the number
// changed.
type kills struct {
	count int
	since time.Time
}

type scopedName struct{ scope, name string }

// SetServers replaces the servers. A server that is missing, or that has another incarnation, has
// lost its models.
func (m *Manager) SetServers(servers []Server) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.began.IsZero() {
		m.began = now
	} else if m.hasServers(servers) {
		return
	}
	seen := map[string]bool{}
	for _, s := range servers {
		seen[s.ID] = true
		known := m.servers[s.ID]
		if known != nil && (known.Incarnation != s.Incarnation || known.Address != s.Address) {
			m.loseServer(known, now)
			known = nil
		}
		if known == nil {
			m.servers[s.ID] = &server{Server: s, owners: map[string]string{}, replicas: map[string]*replica{}, calls: map[string]bool{}}
		} else {
			known.Server = s
			for model := range known.replicas {
				m.stale[model] = true
			}
		}
	}
	for id, s := range m.servers {
		if !seen[id] {
			m.loseServer(s, now)
			delete(m.servers, id)
		}
	}
	m.placeDirty = true
	m.signalChange()
}

// hasServers reports whether the manager has exactly these servers.
func (m *Manager) hasServers(servers []Server) bool {
	if len(servers) != len(m.servers) {
		return false
	}
	for _, s := range servers {
		if known := m.servers[s.ID]; known == nil || !reflect.DeepEqual(known.Server, s) {
			return false
		}
	}
	return true
}

// loseServer drops the replicas of a server that has ended, and counts the models that may have ended it.
func (m *Manager) loseServer(s *server, now time.Time) {
	for model, r := range s.replicas {
		key := replicaKey{model, s.ID}
		// A load fails when its server ends, and the agent may notice the end of the server only
		// later. So a load that has just failed counts as running. A server that drains should end,
		// so its end is not the fault of a model. Neither is its end during a download.
		if !s.Draining && !r.unprepared && (r.State == modelstate.Loading || r.State == modelstate.LoadFailed && now.Sub(r.since) < seenLate) {
			suspect := appModel{s.App, key.model}
			count := min(m.kills[suspect].count+1, killsBeforeQuarantine)
			m.kills[suspect] = kills{count, now}
			m.metrics.deaths.Inc()
			m.cfg.Log.Warn("a server ended while it loaded a model", "instance", s.ID, "app", s.App, "model", m.models[key.model].Name,
				"times", count, "quarantined", count >= killsBeforeQuarantine)
		}
		m.apply(key, r, modelstate.ServerLost, 0, "", now)
		m.dropReplica(key)
	}
}

// forgiveKills lowers by one each count of kills that did not change for Config.Forgive. So a
// quarantined model is tried again, and one more end of a server quarantines it again.
func (m *Manager) forgiveKills(now time.Time, soon func(time.Time)) {
	for suspect, k := range m.kills {
		due := k.since.Add(m.cfg.Forgive)
		switch {
		case now.Before(due):
			soon(due)
			continue
		case k.count > 1:
			m.kills[suspect] = kills{k.count - 1, now}
			soon(now.Add(m.cfg.Forgive))
		default:
			delete(m.kills, suspect)
		}
		m.placeDirty = true
	}
}

// Serves reports whether gateways may send requests for models to a server.
func (m *Manager) Serves(serverID string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.servers[serverID]
	return s != nil && s.serving > 0
}

// IsEmpty reports whether gateways may not send requests for models to a server. For tellWithin
// after the agent's start, the result is false for a ready server that has not answered which
// models it holds. The reason is that an earlier agent may have loaded models there. For an unknown
// server, the result is true.
func (m *Manager) IsEmpty(serverID string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.servers[serverID]
	return s == nil || s.serving == 0 && (s.adopted || !s.Ready || time.Since(m.began) >= tellWithin)
}

// IsGone reports whether no server has a model, according to the answers of servers since the last
// failed load or unload. The states of replicas are not enough for this: there are none before
// servers were asked, and a server may have a model whose load failed.
func (m *Manager) IsGone(modelID string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	model := m.models[modelID]
	early := time.Since(m.began) < tellWithin
	for id, s := range m.servers {
		if !s.mayHave(model) {
			continue
		}
		r := m.replicas[replicaKey{modelID, id}]
		_, has := s.held[model.Name]
		switch {
		case !s.adopted && early,
			r != nil && s.Ready && s.adopted && !s.alive,
			r != nil && r.State == modelstate.LoadFailed,
			has && m.ownerOf(s, model.Name) == modelID:
			return false
		}
	}
	return true
}

// mayHave reports whether a model on this server with the model's name can be this model.
func (s *server) mayHave(model Model) bool {
	return model.Scope == s.Scope && (model.App == "" || model.App == s.App)
}

// ownerOf returns the version that a server has under a name, or "" if it is no known version.
//
// Servers do not distinguish versions. A load is claimed if several versions have the name at that
// time. A load without a claim was the load of the only version, which is the oldest now.
func (m *Manager) ownerOf(s *server, name string) string {
	versions := m.versions[scopedName{s.Scope, name}]
	if id := s.owners[name]; versions[id] {
		return id
	}
	if m.cfg.Claimed != nil {
		if id := m.cfg.Claimed(s.ID, name); versions[id] {
			return id
		}
	}
	oldest := ""
	for id := range versions {
		model := m.models[id]
		if s.mayHave(model) && (oldest == "" || cmp.Or(cmp.Compare(model.Order, m.models[oldest].Order), cmp.Compare(id, oldest)) < 0) {
			oldest = id
		}
	}
	return oldest
}

// askServer asks a server which models it holds.
func (m *Manager) askServer(ctx context.Context, s *server) {
	s.asking = true
	target, began := s.Server, time.Now()
	ticks := map[replicaKey]int64{}
	var first []string
	for model, r := range s.replicas {
		f := r.State.Facts()
		if f.Busy || s.calls[model] {
			continue
		}
		ticks[replicaKey{model, s.ID}] = r.Tick
		name := m.models[model].Name
		if _, has := s.held[name]; has && !f.Routed {
			first = append(first, name)
		}
	}
	m.work.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, m.cfg.AskTimeout)
		defer cancel()
		held, err := m.cfg.Loader.Held(ctx, target, first)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.servers[s.ID] != s {
			return
		}
		now := time.Now()
		s.asking = false
		defer m.Again()
		if err != nil {
			s.askAt = now.Add(m.cfg.Retry.Delay(s.failures, m.cfg.Rand))
			s.failures++
			m.noteSilent(s, silenceOf(err))
			return
		}
		s.failures = 0
		m.noteSilent(s, "")
		s.alive = s.alive || !began.Before(s.brokeAt)
		if !s.alive {
			s.askAt = now
			return
		}
		s.askAt = now.Add(m.cfg.Observe/2 + time.Duration(m.cfg.Rand()*float64(m.cfg.Observe)))
		m.observeServer(s, held, began, ticks, now)
	})
}

// noteSilent records why a server does not say which models it holds. Models without a server show
// the reason.
func (m *Manager) noteSilent(s *server, why string) {
	if s.silent == why {
		return
	}
	if s.silent == "" {
		m.cfg.Log.Warn("a server does not say which models it has", "server", s.ID, "app", s.App, "error", why)
	}
	// The text may differ with each question, by a port or an id. Such a difference causes no new
	// placement.
	m.placeDirty = m.placeDirty || !s.adopted && (s.silent == "") != (why == "")
	s.silent = why
}

// silenceOf returns why a question to a server failed, without the addresses of this host.
func silenceOf(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	return err.Error()
}

// observeServer processes a server's answer which models it holds. began is when the server was asked.
// ticks has the ticks of its replicas at that time.
func (m *Manager) observeServer(s *server, held []Held, began time.Time, ticks map[replicaKey]int64, now time.Time) {
	s.held = make(map[string]Held, len(held))
	for _, h := range held {
		s.held[h.Name] = h
		id := m.ownerOf(s, h.Name)
		key := replicaKey{id, s.ID}
		// A version that was dropped since then may be the version that the server had when it was
		// asked.
		if id == "" || m.replicas[key] != nil || began.Before(s.droppedAt) {
			continue
		}
		// The model was loaded before the agent started, or while its version was not known.
		m.setReplica(key, &replica{Replica: modelstate.Replica{State: modelstate.Unknown}, since: now})
		s.owners[h.Name] = id
		ticks[key] = 0
	}
	unknown, settled := false, false
	for key, tick := range ticks {
		r := m.replicas[key]
		if r == nil {
			continue
		}
		wasUnknown := r.State == modelstate.Unknown
		model := m.models[key.model]
		h, has := s.held[model.Name]
		e, reason := modelstate.SeenAbsent, ""
		switch {
		case !has || m.ownerOf(s, model.Name) != key.model:
		case h.Loading && wasUnknown && now.Sub(r.since) < m.cfg.LoadTimeout:
			continue // An earlier agent process began the load, and the server goes on with it.
		case !h.Checked && wasUnknown && (model.Deleted || model.Replicas == 0):
			// The model is unloaded, whether it is ready or not.
			e, reason = modelstate.SeenUnready, "the server has the model, and was not asked whether it is ready"
		case !h.Checked:
			unknown = unknown || wasUnknown
			continue
		case h.Ready:
			e = modelstate.SeenReady
		default:
			e, reason = modelstate.SeenUnready, "the server has the model, and says that it is not ready"
		}
		settled = m.apply(key, r, e, tick, reason, now) && wasUnknown || settled
	}
	if unknown && settled {
		s.askAt = now.Add(askSpacing)
	}
	if !s.adopted {
		s.adopted, m.placeDirty = true, true
	}
}
