package models

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/agent/internal/artifact"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/modelstate"
	"github.com/windlass-run/windlass/pkg/placement"
)

// Model is a version of a model that the region should have.
type Model struct {
	// ID is the version's id. Name is the model's name on servers. Several versions may have the
	// same name.
	ID, Name string
	// Deployment is the id of the version's deployment.
	Deployment string
	// Order is greater than the Order of every version that was added earlier.
	Order int64
	// Path is the path from which a server loads an adapter.
	Path string
	// Artifact has the files of the model. Its URL is "" if the agent does not fetch them.
	Artifact              artifact.Reference
	Requires              []string
	App                   string
	Scope                 string
	Memory                int64
	Replicas, MinReplicas int
	// OnRequest means that gateways hold requests for the model while no server has it, so that it
	// may be evicted. Loaded means that it has been loaded before.
	OnRequest, Loaded bool
	// Deleted means that the model should be unloaded everywhere.
	Deleted bool
}

// Loader calls servers. Its methods must return soon after ctx ended.
type Loader interface {
	// Held returns the models that a server has. It need not check in each call whether all of them
	// are ready. It checks the models in first before other models.
	Held(ctx context.Context, s Server, first []string) ([]Held, error)
	// Load returns once the server has the model and says that the model is ready.
	Load(ctx context.Context, s Server, m Model) error
	// Unload returns once the server does not have the model any more.
	Unload(ctx context.Context, s Server, m Model) error
}

// Config of a Manager.
type Config struct {
	Loader Loader
	// Released reports whether no gateway sends to the replica of a model on a server any more, and
	// no gateway has a request in flight there. It must not call the manager.
	Released func(modelID, serverID string) bool
	// Claim stores durably which version a server loads under a name. The manager calls it before a
	// load if several versions have the name. If Claim fails, so does the load. Nil: nothing is
	// stored.
	Claim func(serverID, name, modelID string) error
	// Claimed returns the version that Claim stored last for a name on a server, or "" if there is
	// none. It must not call the manager. Nil: nothing was stored.
	Claimed func(serverID, name string) (modelID string)
	// Prepare makes the files of a model with an Artifact available to a server before its load. It
	// returns the model to load, and must return soon after ctx ended. Discard undoes it after the
	// unload. Nil: models have no artifacts.
	Prepare func(ctx context.Context, s Server, m Model) (Model, error)
	Discard func(s Server, m Model)
	// Holds reports whether gateways hold all requests for models that no server has. Without it, no
	// model is evicted. Busy reports whether requests to a deployment are in flight. They must not
	// call the manager. Nil: gateways hold no requests, and models are not busy.
	Holds func() bool
	Busy  func(deploymentID string) bool
	Log   *slog.Logger
	Rand  func() float64
	// Registerer gets the metrics. Nil: no metrics.
	Registerer prometheus.Registerer
	// Patience is how long the unload of a model waits for gateways. Default: 30 s.
	Patience time.Duration
	// LoadTimeout limits a load, and AskTimeout limits a question to a server. Defaults: 30 min and
	// 5 s.
	LoadTimeout, AskTimeout time.Duration
	// Observe is the mean time between two questions to a server which models it holds.
	// Default: 5 s.
	Observe time.Duration
	// Unready is how long a loaded model may be not ready before it is unloaded and loaded again.
	// Default: 30 s.
	Unready time.Duration
	// Forgive is the time after which one end of a server no longer counts against the model that
	// the server was loading. Default: 1 h.
	Forgive time.Duration
	// Retry is the delay between attempts of a load, an unload or a question that fails.
	// Default: 1 s to 1 min.
	Retry backoff.Policy
	// LoadsAtOnce is how many loads and unloads run on one server at the same time. Default: 4.
	LoadsAtOnce int
}

// maxSpacing is the longest time from one step to the next, if there is anything to do.
const maxSpacing = 100 * time.Millisecond

// Manager keeps models loaded. It is safe for concurrent use.
type Manager struct {
	cfg     Config
	metrics *metrics
	wake    chan struct{}
	// changed is signalled, with a buffer of one, when Status would return something new.
	changed chan struct{}
	work    sync.WaitGroup

	mu     sync.Mutex
	models map[string]Model
	// versions has the ids of the models that have a name, by scope and name.
	versions map[scopedName]map[string]bool
	servers  map[string]*server
	replicas map[replicaKey]*replica
	// replicasOf has the same replicas, by model and server.
	replicasOf map[string]map[string]*replica
	// unrouting has the replicas that gateways should no longer route to.
	unrouting map[replicaKey]*replica
	// statuses has the last result of Status by model, and listed has it in the order of ids. ids
	// is nil after the models have changed. stale has the models whose status may have changed.
	statuses map[string]*Status
	listed   []*Status
	ids      []string
	stale    map[string]bool
	// kills counts the servers of an app that ended while they loaded a model, by app and model.
	kills map[appModel]kills
	// short, refused and loadable are results of the last placement, by model. loadable has the
	// models whose missing replicas a request can load.
	short    map[string]int
	refused  map[string]string
	loadable map[string]bool
	// needs has the room that models need of the servers of an app, from the last placement.
	needs map[placement.App]placement.Room
	// uses has the requests for models that are OnRequest, by model.
	uses map[string]*use
	// placeDirty means that a new placement may differ from the last one.
	placeDirty bool
	// looks counts the calls of Status.
	looks int64
	// placeAt is when the next placement may be made. placedAt is when the last one was made.
	placeAt, placedAt time.Time
	// began is when servers were set for the first time. settled means that they have answered
	// which models they hold, or had enough time to answer.
	began   time.Time
	settled bool
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
	cfg.Forgive = cmp.Or(cfg.Forgive, time.Hour)
	cfg.LoadsAtOnce = cmp.Or(cfg.LoadsAtOnce, 4)
	if cfg.Retry == (backoff.Policy{}) {
		cfg.Retry = backoff.Policy{Min: time.Second, Max: time.Minute}
	}
	metrics, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register the metrics of models: %w", err)
	}
	return &Manager{
		cfg: cfg, metrics: metrics, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		models: map[string]Model{}, versions: map[scopedName]map[string]bool{}, servers: map[string]*server{},
		replicas: map[replicaKey]*replica{}, replicasOf: map[string]map[string]*replica{}, unrouting: map[replicaKey]*replica{},
		statuses: map[string]*Status{}, stale: map[string]bool{}, kills: map[appModel]kills{},
		short: map[string]int{}, refused: map[string]string{}, loadable: map[string]bool{}, uses: map[string]*use{},
	}, nil
}

// Changed is signalled when Status would return something new.
func (m *Manager) Changed() <-chan struct{} { return m.changed }

// Put adds a model that the region should have, or changes it.
func (m *Manager) Put(model Model) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was, known := m.models[model.ID]
	if known && reflect.DeepEqual(was, model) {
		return
	}
	if known {
		m.forgetName(was)
	}
	m.models[model.ID] = model
	name := scopedName{model.Scope, model.Name}
	if m.versions[name] == nil {
		m.versions[name] = map[string]bool{}
	}
	m.versions[name][model.ID] = true
	m.stale[model.ID] = true
	if !known {
		m.ids = nil
	}
	for _, s := range m.servers {
		if _, has := s.held[model.Name]; has && !known && s.mayHave(model) {
			s.askAt = time.Time{} // The server's last answer came before the model was known, so the server is asked again.
		}
	}
	m.placeDirty = true
	m.signalChange()
}

// Drop forgets a model. Servers that hold the model keep it.
func (m *Manager) Drop(modelID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	model := m.models[modelID]
	m.forgetName(model)
	delete(m.models, modelID)
	delete(m.statuses, modelID)
	delete(m.short, modelID)
	delete(m.refused, modelID)
	delete(m.loadable, modelID)
	delete(m.uses, modelID)
	m.ids = nil
	maps.DeleteFunc(m.kills, func(k appModel, _ kills) bool { return k.model == modelID })
	now := time.Now()
	for id, s := range m.servers {
		m.dropReplica(replicaKey{modelID, id})
		if s.owners[model.Name] == modelID {
			delete(s.owners, model.Name)
			s.droppedAt = now
		}
	}
	m.placeDirty = true
	m.signalChange()
}

func (m *Manager) forgetName(model Model) {
	name := scopedName{model.Scope, model.Name}
	delete(m.versions[name], model.ID)
	if len(m.versions[name]) == 0 {
		delete(m.versions, name)
	}
}

// Reload unloads the replica of a model and loads it again. If the server does not have the model,
// or was not asked whether the model is ready, Reload does nothing and returns false.
func (m *Manager) Reload(modelID, serverID string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := replicaKey{modelID, serverID}
	r := m.replicas[key]
	if r == nil || !r.State.Facts().Holds || r.State == modelstate.Unknown {
		return false
	}
	r.reload = true
	return m.apply(key, r, modelstate.RequestUnload, 0, "", time.Now())
}

// Again makes the manager examine its state again, and call Released again.
func (m *Manager) Again() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx ends, and then waits for its calls to servers.
func (m *Manager) Run(ctx context.Context) error {
	defer m.work.Wait()
	for {
		m.mu.Lock()
		began := time.Now()
		next := m.startDue(ctx, began)
		took := time.Since(began)
		m.mu.Unlock()
		// One step handles a burst of results. A step costs more with more models, so steps come
		// less often then.
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

// signalChange wakes Run and signals Changed.
func (m *Manager) signalChange() {
	m.Again()
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// startDue starts everything that can be started now, and returns when to call it again. The caller
// holds the lock.
func (m *Manager) startDue(ctx context.Context, now time.Time) (next time.Time) {
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
		m.askServer(ctx, s)
	}
	m.forgiveKills(now, soon)
	m.renewRequests(now, soon)
	if m.placeDirty {
		switch {
		case !m.maySettle(now):
			soon(m.began.Add(m.cfg.AskTimeout))
		case now.Before(m.placeAt):
			soon(m.placeAt)
		default:
			m.placeDirty, m.placedAt = false, now
			began := time.Now()
			m.placeModels(now)
			// A placement costs more with more models. This delay limits placements to a fifth of
			// the time.
			m.placeAt = now.Add(4 * time.Since(began))
		}
	}
	for key, r := range m.replicas {
		m.advanceReplica(key, r, now, soon)
	}
	for _, s := range m.servers {
		m.startQueued(ctx, s, now)
	}
	return next
}

// maySettle reports whether models may be placed. After its start, an agent first asks the servers
// which models they hold, because a model that is on one server must not be loaded on another one.
// A server that is not ready or does not answer delays this for at most AskTimeout.
func (m *Manager) maySettle(now time.Time) bool {
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
