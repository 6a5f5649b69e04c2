package models

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/modelstate"
	"github.com/windlass-run/windlass/pkg/placement"
)

// Server is an instance that serves models.
type Server struct {
	// ID is the instance's id. Incarnation differs after each restart of its process.
	ID, Incarnation string
	// App is the app of the instance, and Index orders the instances of an app. Scope is what a server and its models
	// have in common.
	App   string
	Scope string
	Index int
	// Address is host:port.
	Address string
	// Protocol is how models are loaded.
	Protocol Protocol
	// Ready is whether the instance passes its health check. Draining is whether it is going to stop.
	Ready, Draining bool
	Capabilities    []string
	Memory          int64
	Overcommit      int
	Slots           int
}

// Protocol is how a server loads models.
type Protocol string

// The protocols.
const (
	// V2 is the Open Inference Protocol with the repository extension.
	V2 Protocol = "v2"
	// LoRA is vLLM's calls for adapters.
	LoRA Protocol = "lora"
)

// Model is a version of a model that the region should have.
type Model struct {
	// ID is the version's id. Name is the model's name on servers, which several versions may have.
	ID, Name string
	// Order is greater than that of each version that was added earlier.
	Order int64
	// Path is from where a server loads an adapter.
	Path                  string
	Requires              []string
	App                   string
	Scope                 string
	Memory                int64
	Replicas, MinReplicas int
	// Deleted is whether the model should be unloaded everywhere.
	Deleted bool
}

// Held is a model that a server says it has.
type Held struct {
	Name  string
	Ready bool
}

// Loader calls servers. Its methods must return soon after ctx ended.
type Loader interface {
	// Held returns the models that a server has.
	Held(ctx context.Context, s Server) ([]Held, error)
	// Load returns when the server has the model and says that the model is ready.
	Load(ctx context.Context, s Server, m Model) error
	// Unload returns when the server does not have the model.
	Unload(ctx context.Context, s Server, m Model) error
}

// Config of a Manager.
type Config struct {
	Loader Loader
	// Released reports whether no gateway sends to the replica of a model on a server any more, nor has a request in
	// flight there. It must not call the manager.
	Released func(modelID, serverID string) bool
	// Claim durably notes which version a server loads under a name. The manager calls it before a load if several
	// versions have the name. The load fails if Claim does. Nil: nothing is noted.
	Claim func(serverID, name, modelID string) error
	// Claimed returns the version that was noted last for a name on a server, and "" if there is none. It must not
	// call the manager. Nil: nothing was noted.
	Claimed func(serverID, name string) (modelID string)
	Log     *slog.Logger
	Rand    func() float64
	// Patience is how long the unload of a model waits for gateways. Default: 30 s.
	Patience time.Duration
	// LoadTimeout limits a load, and AskTimeout a question to a server. Defaults: 30 min, 5 s.
	LoadTimeout, AskTimeout time.Duration
	// Observe is how often a server is asked what it holds. Default: 5 s.
	Observe time.Duration
	// Unready is how long a model may say that it is not ready before it is unloaded and loaded again.
	// Default: 30 s.
	Unready time.Duration
	// Retry spaces out loads that fail. Default: 1 s to 1 min.
	Retry backoff.Policy
	// LoadsAtOnce is how many loads and unloads run on one server at a time. Default: 4.
	LoadsAtOnce int
}

// killsBeforeQuarantine is how many ends of servers quarantine the model that they were loading.
const killsBeforeQuarantine = 2

// maxSpacing is the longest time from one step to the next, if there is something to do.
const maxSpacing = 100 * time.Millisecond

// seenLate is how long after its end a server may be seen to have ended.
const seenLate = 5 * time.Second

// Manager keeps models loaded. It is safe for concurrent use.
type Manager struct {
	cfg  Config
	wake chan struct{}
	// changed is signalled, with a buffer of one, when Status would return something new.
	changed chan struct{}
	work    sync.WaitGroup

	mu     sync.Mutex
	models map[string]Model
	// versions are the ids of the models of a name.
	versions map[scopedName]map[string]bool
	servers  map[string]*server
	replicas map[replicaKey]*replica
	// kills counts the servers of an app that ended while they loaded a model.
	kills map[appModel]int
	// short and refused are of the last placement, by model.
	short   map[string]int
	refused map[string]placement.Refused
	// placeDirty means that the placement may be another one than the last.
	placeDirty bool
	// looks counts the calls of Status.
	looks int64
	// placeAt is when the next placement may be made.
	placeAt time.Time
	// began is when servers were set first. settled is whether they have told what they hold, or had the time to.
	began   time.Time
	settled bool
}

type replicaKey struct{ model, server string }

type appModel struct{ app, model string }

type scopedName struct{ scope, name string }

type server struct {
	Server
	// adopted is whether the server has told what it holds. alive is whether it has answered since the last load that
	// failed: a load fails as well because the server ends.
	adopted, alive, asking bool
	askAt                  time.Time
	failures               int
	// busy is how many operations run, and alone is whether one of them must stay alone.
	busy  int
	alone bool
	// held are the models that the server said it has, by name.
	held map[string]bool
	// owners are the ids of the versions that the server holds or held last, by name.
	owners map[string]string
	// droppedAt is when a version that the server may have held was dropped last.
	droppedAt time.Time
	// queue are replicas to load or unload. Their states may have changed since they came into it.
	queue []replicaKey
	// brokeAt is when the last load failed.
	brokeAt time.Time
}

type replica struct {
	modelstate.Replica
	// since is when the state began.
	since    time.Time
	failures int
	retryAt  time.Time
	// look is the number of looks when the state began.
	look int64
	// reload is whether the model is unloaded to be loaded again, which is not taken back.
	reload bool
}

// New checks the config.
func New(cfg Config) (*Manager, error) {
	if cfg.Loader == nil || cfg.Released == nil || cfg.Log == nil || cfg.Rand == nil {
		return nil, errors.New("models: Loader, Released, Log and Rand of Config are required")
	}
	cfg.Patience = cmp.Or(cfg.Patience, 30*time.Second)
	cfg.LoadTimeout = cmp.Or(cfg.LoadTimeout, 30*time.Minute)
	cfg.AskTimeout = cmp.Or(cfg.AskTimeout, 5*time.Second)
	cfg.Observe = cmp.Or(cfg.Observe, 5*time.Second)
	cfg.Unready = cmp.Or(cfg.Unready, 30*time.Second)
	cfg.LoadsAtOnce = cmp.Or(cfg.LoadsAtOnce, 4)
	if cfg.Retry == (backoff.Policy{}) {
		cfg.Retry = backoff.Policy{Min: time.Second, Max: time.Minute}
	}
	return &Manager{
		cfg: cfg, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		models: map[string]Model{}, versions: map[scopedName]map[string]bool{}, servers: map[string]*server{}, replicas: map[replicaKey]*replica{}, kills: map[appModel]int{},
		short: map[string]int{}, refused: map[string]placement.Refused{},
	}, nil
}

// Changed is signalled when Status would return something new.
func (m *Manager) Changed() <-chan struct{} { return m.changed }

// Put adds a model that the region should have, or changes it.
func (m *Manager) Put(model Model) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was, known := m.models[model.ID]
	if known {
		m.forgetName(was)
	}
	m.models[model.ID] = model
	name := scopedName{model.Scope, model.Name}
	if m.versions[name] == nil {
		m.versions[name] = map[string]bool{}
	}
	m.versions[name][model.ID] = true
	for _, s := range m.servers {
		if _, has := s.held[model.Name]; has && !known && s.mayHave(model) {
			s.askAt = time.Time{} // It told so when the model was not known.
		}
	}
	m.placeDirty = true
	m.signal()
}

// Drop forgets a model. Servers that hold it keep it.
func (m *Manager) Drop(modelID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	model := m.models[modelID]
	m.forgetName(model)
	delete(m.models, modelID)
	now := time.Now()
	for id, s := range m.servers {
		delete(m.replicas, replicaKey{modelID, id})
		if s.owners[model.Name] == modelID {
			delete(s.owners, model.Name)
			s.droppedAt = now
		}
	}
	m.placeDirty = true
	m.signal()
}

func (m *Manager) forgetName(model Model) {
	name := scopedName{model.Scope, model.Name}
	delete(m.versions[name], model.ID)
	if len(m.versions[name]) == 0 {
		delete(m.versions, name)
	}
}

// mayHave reports whether what a server has under a model's name can be the model.
func (s *server) mayHave(model Model) bool {
	return model.Scope == s.Scope && (model.App == "" || model.App == s.App)
}

// ownerOf returns the version that a server has under a name, and "" if it is none of the models.
//
// Servers do not tell versions apart. A load is noted if several versions have the name. What was not noted was
// loaded while its version was the only one, so that it is the oldest.
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

// Reload unloads the replica of a model and loads it again.
func (m *Manager) Reload(modelID, serverID string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := replicaKey{modelID, serverID}
	r := m.replicas[key]
	if r == nil || !r.State.Facts().Holds {
		return false
	}
	r.reload = true
	return m.apply(key, r, modelstate.RequestUnload, 0, "", time.Now())
}

// Serves reports whether gateways may send requests for models to a server.
func (m *Manager) Serves(serverID string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, r := range m.replicas {
		if key.server == serverID && (r.State.Facts().Routed || r.State == modelstate.UnrouteRequested) {
			return true
		}
	}
	return false
}

// Again makes the manager ask Released again.
func (m *Manager) Again() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// SetServers replaces the servers. One that is missing, or that has another incarnation, has lost its models.
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
			m.servers[s.ID] = &server{Server: s, owners: map[string]string{}}
		} else {
			known.Server = s
		}
	}
	for id, s := range m.servers {
		if !seen[id] {
			m.loseServer(s, now)
			delete(m.servers, id)
		}
	}
	m.placeDirty = true
	m.signal()
}

// hasServers reports whether the servers are those that the manager has.
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
	for key, r := range m.replicas {
		if key.server != s.ID {
			continue
		}
		// The load may have failed before the end of the server was seen.
		if r.State == modelstate.Loading || r.State == modelstate.LoadFailed && now.Sub(r.since) < seenLate {
			suspect := appModel{s.App, key.model}
			m.kills[suspect]++
			m.cfg.Log.Warn("a server ended while it loaded a model", "instance", s.ID, "app", s.App, "model", m.models[key.model].Name,
				"times", m.kills[suspect], "quarantined", m.kills[suspect] >= killsBeforeQuarantine)
		}
		m.apply(key, r, modelstate.ServerLost, 0, "", now)
		delete(m.replicas, key)
	}
}

// Run works until ctx ends, and then waits for the calls of servers.
func (m *Manager) Run(ctx context.Context) error {
	defer m.work.Wait()
	for {
		m.mu.Lock()
		began := time.Now()
		next := m.step(ctx, began)
		took := time.Since(began)
		m.mu.Unlock()
		// One step sees a burst of results. It costs more the more models there are, so that steps of many models
		// come more rarely.
		select {
		case <-time.After(min(max(time.Millisecond, 2*took), maxSpacing)):
		case <-ctx.Done():
			return nil
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-m.wake:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		timer.Stop()
	}
}

func (m *Manager) signal() {
	for _, c := range []chan struct{}{m.wake, m.changed} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// apply applies an event to a replica, and notes what has to be done again because of it.
func (m *Manager) apply(key replicaKey, r *replica, e modelstate.Event, tick int64, reason string, now time.Time) bool {
	next, changed := r.Apply(e, tick, reason)
	if !changed {
		return false
	}
	r.Replica, r.since, r.look = next, now, m.looks
	switch next.State {
	case modelstate.Available:
		r.failures = 0
	case modelstate.LoadRequested, modelstate.UnloadRequested:
		if s := m.servers[key.server]; s != nil {
			s.queue = append(s.queue, key)
		}
	case modelstate.Unloaded:
		r.reload = false
	case modelstate.LoadedUnavailable:
		if s := m.servers[key.server]; s != nil && e == modelstate.RequestLoad {
			s.askAt = now // An unload was taken back: only the server knows whether the model is ready.
		}
	case modelstate.LoadFailed, modelstate.UnloadFailed:
		r.retryAt = now.Add(m.cfg.Retry.Delay(r.failures, m.cfg.Rand))
		r.failures++
		m.cfg.Log.Warn("a server failed to load or unload a model", "instance", key.server, "model", m.models[key.model].Name, "state", next.State.String(), "reason", reason)
	default: // The other states wait.
	}
	m.placeDirty = true
	m.signal()
	return true
}

// step does what can be done now, and returns when to look again. It holds the lock.
func (m *Manager) step(ctx context.Context, now time.Time) (next time.Time) {
	next = now.Add(24 * time.Hour)
	soon := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	for _, s := range m.servers {
		if !s.Ready || s.asking {
			continue
		}
		if now.Before(s.askAt) {
			soon(s.askAt)
			continue
		}
		m.ask(ctx, s)
	}
	if m.placeDirty {
		switch {
		case !m.settle(now):
			soon(m.began.Add(m.cfg.AskTimeout))
		case now.Before(m.placeAt):
			soon(m.placeAt)
		default:
			m.placeDirty = false
			began := time.Now()
			m.place(now)
			// A placement costs more the more models there are. So it takes a fifth of the time at most.
			m.placeAt = now.Add(4 * time.Since(began))
		}
	}
	for key, r := range m.replicas {
		m.advance(key, r, now, soon)
	}
	for _, s := range m.servers {
		m.startQueued(ctx, s, now)
	}
	return next
}

// settle reports whether models may be placed. After its start, an agent first asks the servers what they hold: a
// model that is on one of them must not be loaded on another one. A server that is not ready or does not
// answer holds this up for AskTimeout only.
func (m *Manager) settle(now time.Time) bool {
	if m.settled || m.began.IsZero() {
		return m.settled
	}
	m.settled = now.Sub(m.began) >= m.cfg.AskTimeout
	if !m.settled {
		m.settled = true
		for _, s := range m.servers {
			m.settled = m.settled && s.adopted
		}
	}
	return m.settled
}

func compareKeys(a, b replicaKey) int {
	return cmp.Or(cmp.Compare(a.model, b.model), cmp.Compare(a.server, b.server))
}

// startQueued starts the operations of a server that may run now, in the order in which they were requested.
func (m *Manager) startQueued(ctx context.Context, s *server, now time.Time) {
	for len(s.queue) > 0 {
		key := s.queue[0]
		r := m.replicas[key]
		switch {
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

// advance does what time and gateways make of a replica's state.
func (m *Manager) advance(key replicaKey, r *replica, now time.Time, soon func(time.Time)) {
	switch r.State {
	case modelstate.Loaded:
		// The agent's observation tells gateways, and counts the replica as ready when they have acknowledged it.
		m.apply(key, r, modelstate.Routed, r.Tick, "", now)
	case modelstate.UnrouteRequested:
		due := r.since.Add(m.cfg.Patience)
		// What gateways released before they knew the state says nothing. They know it when the look after the one
		// that has it begins.
		if m.looks >= r.look+2 && m.cfg.Released(key.model, key.server) || !now.Before(due) {
			m.apply(key, r, modelstate.Unrouted, r.Tick, "", now)
		} else {
			soon(due)
		}
	case modelstate.LoadedUnavailable:
		if due := r.since.Add(m.cfg.Unready); now.Before(due) {
			soon(due)
		} else {
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
		if now.Before(r.retryAt) {
			soon(r.retryAt)
		} else if !m.placeDirty {
			m.placeDirty = true
			soon(m.placeAt)
			delete(m.replicas, key)
			// The failures stay known, so that delays grow.
			m.replicas[key] = &replica{Replica: modelstate.Replica{State: modelstate.Unloaded, Tick: r.Tick + 1}, since: now, failures: r.failures}
		}
	default: // The other states wait for servers or for the placement.
	}
}

// mayStart reports whether a server may begin another operation. model is the model to load, and empty for an
// unload. A model that is suspected to end servers is loaded alone.
func (m *Manager) mayStart(s *server, model string) bool {
	if !s.Ready || !s.alive || s.alone || s.busy >= m.cfg.LoadsAtOnce {
		return false
	}
	return model == "" || m.kills[appModel{s.App, model}] == 0 || s.busy == 0
}

// start tells a server to load or unload a model.
func (m *Manager) start(ctx context.Context, s *server, key replicaKey, r *replica, e modelstate.Event, now time.Time) {
	model, target, tick := m.models[key.model], s.Server, r.Tick
	m.apply(key, r, e, tick, "", now)
	s.busy++
	load := e == modelstate.LoadStarted
	shared := false
	if load {
		s.owners[model.Name] = key.model
		shared = len(m.versions[scopedName{model.Scope, model.Name}]) > 1 && m.cfg.Claim != nil
	}
	if load && m.kills[appModel{s.App, key.model}] > 0 {
		s.alone = true
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
			err = m.cfg.Claim(target.ID, model.Name, model.ID)
		}
		if err == nil {
			err = call(limited, target, model)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.servers[s.ID] != s {
			return
		}
		now := time.Now()
		s.busy--
		s.alone = s.alone && s.busy > 0
		m.signal()
		event, reason := done, ""
		if err != nil {
			s.alive, s.askAt, s.brokeAt = false, time.Time{}, now
			event, reason = broke, err.Error()
		}
		if current := m.replicas[key]; current != nil {
			m.apply(key, current, event, tick, reason, now)
		}
		if ctx.Err() == nil {
			m.startQueued(ctx, s, now)
		}
	})
}

// ask asks a server what it holds.
func (m *Manager) ask(ctx context.Context, s *server) {
	s.asking = true
	target, began := s.Server, time.Now()
	ticks := map[replicaKey]int64{}
	for key, r := range m.replicas {
		if key.server == s.ID && !r.State.Facts().Busy {
			ticks[key] = r.Tick
		}
	}
	m.work.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, m.cfg.AskTimeout)
		defer cancel()
		held, err := m.cfg.Loader.Held(ctx, target)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.servers[s.ID] != s {
			return
		}
		now := time.Now()
		s.asking = false
		defer m.signal()
		if err != nil {
			s.askAt = now.Add(m.cfg.Retry.Delay(s.failures, m.cfg.Rand))
			s.failures++
			return
		}
		s.failures = 0
		s.alive = s.alive || !began.Before(s.brokeAt)
		if !s.alive {
			s.askAt = now
			return
		}
		s.askAt = now.Add(m.cfg.Observe/2 + time.Duration(m.cfg.Rand()*float64(m.cfg.Observe)))
		m.observe(s, held, began, ticks, now)
	})
}

// observe takes over what a server says that it holds. ticks are of began, when it was asked.
func (m *Manager) observe(s *server, held []Held, began time.Time, ticks map[replicaKey]int64, now time.Time) {
	s.held = map[string]bool{}
	for _, h := range held {
		s.held[h.Name] = h.Ready
		id := m.ownerOf(s, h.Name)
		key := replicaKey{id, s.ID}
		// A version that was dropped meanwhile may be what the server had when it was asked.
		if id == "" || m.replicas[key] != nil || began.Before(s.droppedAt) {
			continue
		}
		// The agent was not there when it was loaded.
		m.replicas[key] = &replica{Replica: modelstate.Replica{State: modelstate.Unknown}, since: now}
		s.owners[h.Name] = id
		ticks[key] = 0
	}
	for key, tick := range ticks {
		r := m.replicas[key]
		if r == nil {
			continue
		}
		name := m.models[key.model].Name
		ready, has := s.held[name]
		e, reason := modelstate.SeenAbsent, ""
		switch {
		case !has || m.ownerOf(s, name) != key.model:
		case ready:
			e = modelstate.SeenReady
		default:
			e, reason = modelstate.SeenUnready, "the server has the model, and says that it is not ready"
		}
		m.apply(key, r, e, tick, reason, now)
	}
	if !s.adopted {
		s.adopted, m.placeDirty = true, true
	}
}

// place decides where models should be, and requests it.
func (m *Manager) place(now time.Time) {
	servers, ids := m.placementServers()
	keys := map[string]placement.Key{}
	for key, id := range ids {
		keys[id] = key
	}
	failed := map[string][]placement.Key{}
	for key, r := range m.replicas {
		if r.State == modelstate.LoadFailed {
			if at, ok := keys[key.server]; ok {
				failed[key.model] = append(failed[key.model], at)
			}
		}
	}
	quarantined := map[string][]string{}
	for k, n := range m.kills {
		if n >= killsBeforeQuarantine {
			quarantined[k.model] = append(quarantined[k.model], k.app)
		}
	}
	var models []placement.Model
	for id, model := range m.models {
		p := placement.Model{
			ID: id, Name: model.Name, Scope: model.Scope, Requires: model.Requires, App: model.App, Memory: model.Memory, Replicas: model.Replicas, MinReplicas: model.MinReplicas,
			Failed: failed[id], Quarantined: quarantined[id],
		}
		if model.Deleted {
			p.Replicas, p.MinReplicas = 0, 0
		}
		models = append(models, p)
	}
	clear(m.short)
	clear(m.refused)
	for _, d := range placement.Place(servers, models) {
		if d.Short > 0 {
			m.short[d.Model], m.refused[d.Model] = d.Short, d.Refused
		}
		for _, at := range d.Servers {
			m.request(replicaKey{d.Model, ids[at]}, modelstate.RequestLoad, now)
		}
		for _, at := range d.Unload {
			m.request(replicaKey{d.Model, ids[at]}, modelstate.RequestUnload, now)
		}
	}
	for key, r := range m.replicas {
		if s := m.servers[key.server]; s != nil && s.Draining {
			m.apply(key, r, modelstate.Drain, 0, "", now)
		}
	}
}

func (m *Manager) request(key replicaKey, e modelstate.Event, now time.Time) {
	r := m.replicas[key]
	if r == nil {
		r = &replica{Replica: modelstate.Replica{State: modelstate.Unloaded}, since: now}
		m.replicas[key] = r
	}
	m.apply(key, r, e, 0, "", now)
}

// placementServers returns the servers that have told what they hold, and their ids.
func (m *Manager) placementServers() ([]placement.Server, map[placement.Key]string) {
	order := slices.SortedFunc(maps.Values(m.servers), func(a, b *server) int {
		return cmp.Or(cmp.Compare(a.App, b.App), cmp.Compare(a.Index, b.Index), cmp.Compare(a.ID, b.ID))
	})
	holds := map[string][]placement.Held{}
	for key, r := range m.replicas {
		if r.State.Facts().Holds {
			holds[key.server] = append(holds[key.server], placement.Held{
				Model: key.model, Name: m.models[key.model].Name, Memory: m.models[key.model].Memory,
				Serving: r.State == modelstate.Available || r.State == modelstate.Draining,
				// An unload that the server was not told can be taken back.
				Leaving: r.reload || r.State == modelstate.Unloading || r.State == modelstate.UnloadFailed,
			})
		}
	}
	var servers []placement.Server
	ids := map[placement.Key]string{}
	for i, s := range order {
		if !s.adopted {
			continue
		}
		// Two instances of an app may have the same index during a rollout.
		p := placement.Server{
			App: s.App, Index: i, Scope: s.Scope, Capabilities: s.Capabilities, Memory: s.Memory, Overcommit: s.Overcommit, Slots: s.Slots,
			Draining: s.Draining || !s.Ready, Holds: holds[s.ID],
		}
		servers = append(servers, p)
		ids[p.Key()] = s.ID
	}
	return servers, ids
}
