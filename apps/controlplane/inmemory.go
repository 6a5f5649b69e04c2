package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/memory"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/seal"
	"github.com/windlass-run/windlass/pkg/service"
)

// Memory is a database in memory, for control planes of NewInMemory. Like a real database, it outlives its control
// planes. It can be copied and restored.
type Memory struct{ store *memory.Store }

// NewMemory returns an empty database with the clock of this process.
func NewMemory() *Memory {
	return &Memory{store: memory.New(func() int64 { return time.Now().UnixMilli() })}
}

// Backup returns a copy of the current state.
func (m *Memory) Backup() *Memory { return &Memory{store: m.store.Clone()} }

// Restore replaces the database's content with that of backup.
func (m *Memory) Restore(backup *Memory) { m.store.Restore(backup.store) }

// MemoryWrite is what one commit wrote.
type MemoryWrite = memory.Written

// Observe calls f with every commit to the database, in order, before the commit is visible. f must not use
// the database.
func (m *Memory) Observe(f func(MemoryWrite)) { m.store.Observe(f) }

// Link is a control plane's connection to its database. Its functions may delay and fail, like a network. nil
// functions do nothing.
type Link struct {
	// Before is called before a transaction begins.
	Before func(ctx context.Context) error
	// Within is called in a write transaction, after its last statement.
	Within func(ctx context.Context) error
	// After is called after a commit. If it fails, the commit's outcome is unknown to the caller.
	After func(ctx context.Context) error
}

// errLink marks errors of a Link.
var errLink = errors.New("the database is out of reach")

// linked is a Memory that is reached over a Link. It calls only its own control plane's commit listeners, which
// notify other control planes.
type linked struct {
	*memory.Store
	link Link

	mu        sync.Mutex
	listeners []func(store.Commit)
}

func runToEnd(ctx context.Context, f func(context.Context) error) error {
	if f == nil {
		return nil
	}
	if err := f(ctx); err != nil {
		return fmt.Errorf("%w: %w", errLink, err)
	}
	return nil
}

func (l *linked) Update(ctx context.Context, fn func(store.Tx) error) error {
	if err := runToEnd(ctx, l.link.Before); err != nil {
		return err
	}
	commit, err := l.Store.Commit(ctx, func(tx store.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		return runToEnd(ctx, l.link.Within)
	})
	if err != nil {
		return err
	}
	if err := runToEnd(ctx, l.link.After); err != nil {
		return fmt.Errorf("%w: %w", model.ErrOutcomeUnknown, err)
	}
	if memory.Tells(commit) {
		l.mu.Lock()
		listeners := l.listeners
		l.mu.Unlock()
		for _, f := range listeners {
			f(commit)
		}
	}
	return nil
}

func (l *linked) UpdateBatched(ctx context.Context, _, _ string, fn func(store.Tx) (last func() error, err error)) error {
	return l.Update(ctx, store.Alone(fn))
}

func (l *linked) View(ctx context.Context, fn func(store.Tx) error) error {
	if err := runToEnd(ctx, l.link.Before); err != nil {
		return err
	}
	return l.Store.View(ctx, fn)
}

func (l *linked) Snapshot(ctx context.Context, fn func(store.Tx) error) error {
	if err := runToEnd(ctx, l.link.Before); err != nil {
		return err
	}
	return l.Store.Snapshot(ctx, fn)
}

func (l *linked) OnCommit(f func(store.Commit)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listeners = append(slices.Clip(l.listeners), f)
}

// Bootstrap is like the function Bootstrap, for this database.
func (m *Memory) Bootstrap(ctx context.Context, cfg BootstrapConfig) (BootstrapResult, error) {
	return bootstrapStore(ctx, m.store, cfg, time.Now())
}

// InMemoryConfig configures a control plane without sockets.
type InMemoryConfig struct {
	Memory     *Memory
	Keyset     []byte // from seal.Generate
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Tracer     *sdktrace.TracerProvider
	Rand       func() float64
	LeaseTTL   time.Duration
	// Peer is the address at which other control planes on the same Memory call this one's PeerHandler, with
	// PeerHTTP. Empty: there are no other control planes.
	Peer     string
	PeerHTTP *http.Client
	// Link is the connection to the Memory.
	Link Link
}

// InMemory is the real control plane with a database and a driver in memory, which pass the same contract tests as
// the real database and driver. It needs no sockets, so it can run in virtual time.
type InMemory struct{ core *core }

// NewInMemory returns a control plane, whose Components must be run.
func NewInMemory(cfg InMemoryConfig) (*InMemory, error) {
	box, err := seal.New(cfg.Keyset)
	if err != nil {
		return nil, err
	}
	id := ""
	if cfg.Peer != "" {
		id = ident.New("cp")
	}
	c, err := newCore(parts{
		store: &linked{Store: cfg.Memory.store, link: cfg.Link}, box: box, images: rollout.Registry{},
		unavailable: func(err error) bool { return errors.Is(err, errLink) },
		newDriver: func(step rollout.Step, _ func(context.Context) error) (driver, error) {
			return rollout.NewMemory(step, cfg.Log), nil
		},
		log: cfg.Log, registerer: cfg.Registerer, tracer: cfg.Tracer, rand: cfg.Rand,
		domain: "windlass.local", leaseTTL: cfg.LeaseTTL,
		peerID: id, peerAddress: cfg.Peer, peerHTTP: cfg.PeerHTTP,
	})
	if err != nil {
		return nil, fmt.Errorf("in-memory control plane: %w", err)
	}
	return &InMemory{core: c}, nil
}

// Handler serves users and agents.
func (m *InMemory) Handler() http.Handler { return m.core.handler }

// PeerHandler serves other control planes. It is nil if InMemoryConfig.Peer is empty.
func (m *InMemory) PeerHandler() http.Handler { return m.core.peerHandler }

// Components returns the parts, which must run together.
func (m *InMemory) Components() []service.Component { return m.core.components }

// Drain closes agents' streams.
func (m *InMemory) Drain() { m.core.dispatch.Drain() }
