package controlplane

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/memory"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/seal"
	"github.com/windlass-run/windlass/pkg/service"
)

// Memory is a database in memory, for control planes of NewInMemory: it outlives
// them, as a real one would, and can be copied and set back.
type Memory struct{ store *memory.Store }

// NewMemory returns an empty one, on the clock of this process.
func NewMemory() *Memory {
	return &Memory{store: memory.New(func() int64 { return time.Now().UnixMilli() })}
}

// Backup returns a copy as of now.
func (m *Memory) Backup() *Memory { return &Memory{store: m.store.Clone()} }

// Restore sets the database back to a copy.
func (m *Memory) Restore(backup *Memory) { m.store.Restore(backup.store) }

// Bootstrap is Bootstrap for this database.
func (m *Memory) Bootstrap(ctx context.Context, cfg BootstrapConfig) (BootstrapResult, error) {
	return bootstrap(ctx, m.store, cfg, time.Now())
}

// InMemoryConfig of a control plane without sockets.
type InMemoryConfig struct {
	Memory     *Memory
	Keyset     []byte // of seal.Generate
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Tracer     *sdktrace.TracerProvider
	Rand       func() float64
	LeaseTTL   time.Duration
	// Peer is the address at which other control planes on the Memory call this
	// one's PeerHandler, by PeerHTTP; empty: there are no others.
	Peer     string
	PeerHTTP *http.Client
}

// InMemory is the shipped control plane over an in-memory database and driver,
// which pass the same contract suites as the real ones. It needs no sockets, so
// that it runs in virtual time.
type InMemory struct{ core *core }

// NewInMemory wires one.
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
		store: cfg.Memory.store, box: box, images: rollout.Registry{},
		newDriver: func(step rollout.Step) (driver, error) { return rollout.NewMemory(step, cfg.Log), nil },
		log:       cfg.Log, registerer: cfg.Registerer, tracer: cfg.Tracer, rand: cfg.Rand,
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

// PeerHandler serves other control planes; nil without a Peer.
func (m *InMemory) PeerHandler() http.Handler { return m.core.peerHandler }

// Components are the parts to run, together.
func (m *InMemory) Components() []service.Component { return m.core.components }

// Drain sends agents away.
func (m *InMemory) Drain() { m.core.dispatch.Drain() }
