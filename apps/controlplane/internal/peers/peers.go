// Package peers lets the control plane's processes work together: it knows who
// the others are, tells them of commits, and carries requests for agents to the
// one that holds the agent's stream.
//
//	commit here ─> Tell ─> a set for each peer ─> Nudge ─> tailer, watchers there
//	GetLogs here ─> Ask ─> region_streams ─> Ask ─> stream there ─> agent
//	                         ^ who has it            v
//	                       peers: id, address, last seen (one row a process)
//
// # Nothing depends on it
//
// The truth is in SQL, and a process that is told of a commit would have found it by
// itself with its next beat. So a nudge is never stored, acknowledged or ordered; it may
// be lost, doubled or late, and all that changes is how soon a stream moves. That
// is why there is no leader and no quorum here, and why a table of rows that may be
// out of date is enough to know each other by.
//
// # No commit waits for a peer
//
// Tell adds to sets under a mutex and returns: a commit costs the same whatever
// the peers do. Each peer has a goroutine that takes what its set holds, one call
// at a time, so that what comes while a call is under way becomes the next one.
// A peer that hangs holds up its own goroutine, for the time of a call, and its set
// is bounded: past that it says "any region".
//
// # Who is there
//
// Each process renews its row every Beat, on the database's clock. A row that was
// not renewed for a Lease is called no more, and any process deletes it; a
// process that was only slow writes it again. One that stops in order takes its row
// along. A newcomer greets those that it finds, and they read the table again: it
// need not wait for their next beat to be told of commits.
//
// # Who may call
//
// A listener of its own, so that the API's can be public and a flood of its calls
// keeps no nudge waiting. A call carries a statement (from, to, until when), sealed
// under the installation's root key with a purpose of its own: without the keyset
// it cannot be made, one made for a process is good for no other, and
// the keyset's rotation is its rotation. As with every other listener here, what
// travels is the network's to hide.
package peers

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/seal"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Tx is what peers asks of a transaction.
type Tx interface {
	PutPeer(model.Peer) error
	ListPeers(seenWithin int64) ([]model.Peer, error)
	DeletePeer(id string) error
	DeletePeers(unseenFor int64) (int, error)
	GetStream(regionID string) (peerID string, err error)
	PutPeerKeys(peerID string, keys []model.PeerKey) error
	DeletePeerKeys(unseenFor int64) (int, error)
}

// Store runs transactions on the primary.
type Store interface {
	Update(ctx context.Context, fn func(Tx) error) error
	View(ctx context.Context, fn func(Tx) error) error
}

// Agents asks agents whose stream is on this process. The context has a deadline.
type Agents interface {
	// Ask fails with model.ErrAgentUnreachable when it finds no agent, or gets no answer in time.
	Ask(ctx context.Context, regionID string, req *agentv1.Request) ([]byte, error)
	// Connected reports whether the region has a stream on this process.
	Connected(regionID string) bool
}

// Nudge is what commits changed that a process may have streams for.
type Nudge struct {
	// Regions whose feed has moved. AllRegions: more than can be told.
	Regions    []string
	AllRegions bool
	// Apps that look different to who watches them.
	Apps []string
}

// Config of a Service. Zero durations take the defaults stated.
type Config struct {
	// ID of this process, and the host:port at which the others call it.
	ID, Address string
	Store       Store
	Box         *seal.Box
	Agents      Agents
	// HTTP carries calls to peers.
	HTTP       *http.Client
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Random returns numbers in [0, 1) for jitter; nil means math/rand.
	Random func() float64

	// Beat is how often this process says that it is there: 5 s.
	Beat time.Duration
	// Lease is how long a row that is not renewed counts: 30 s, six beats, so that
	// a database that is away for a moment does not part us.
	Lease time.Duration
	// CallTimeout bounds a nudge: 2 s, many times what one takes.
	CallTimeout time.Duration
}

func (c *Config) defaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.Beat, 5*time.Second)
	set(&c.Lease, 30*time.Second)
	set(&c.CallTimeout, 2*time.Second)
	if c.Random == nil {
		c.Random = rand.Float64
	}
}

// Service is this process among its peers.
type Service struct {
	cfg     Config
	started time.Time
	keys    []model.PeerKey
	metrics *metrics
	refresh chan struct{} // buffer of one: read the table now
	running sync.WaitGroup

	mu      sync.RWMutex
	senders map[string]*sender // by peer id
}

// New checks the config and returns a service; Run makes it known.
func New(cfg Config) (*Service, error) {
	if cfg.ID == "" || cfg.Address == "" || cfg.Store == nil || cfg.Box == nil || cfg.Agents == nil ||
		cfg.HTTP == nil || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("peers: ID, Address, Store, Box, Agents, HTTP, Log and Registerer are required")
	}
	cfg.defaults()
	s := &Service{
		cfg: cfg, started: time.Now(),
		refresh: make(chan struct{}, 1),
		senders: map[string]*sender{},
	}
	for _, id := range cfg.Box.Keys() {
		s.keys = append(s.keys, model.PeerKey{KeyID: id, Seals: id == cfg.Box.Primary()})
	}
	s.metrics = newMetrics(cfg.Registerer, s.count)
	return s, nil
}

// Tell sends the peers what a commit of this process changed. It never blocks.
func (s *Service) Tell(n Nudge) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, id := range slices.Sorted(maps.Keys(s.senders)) {
		s.senders[id].add(n)
	}
}

func (s *Service) count() float64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return float64(len(s.senders))
}

// minRefresh is the shortest time between two readings of the table, however many
// ask for one.
const minRefresh = 250 * time.Millisecond

// keysFor is how long the keys of a process that ended are remembered: longer than the credentials that it
// sealed are valid.
const keysFor = 48 * time.Hour

// readTimeout bounds one round with the database.
const readTimeout = 5 * time.Second

// Run keeps this process known to the others, and the others to it, until ctx
// ends; then it takes its row away.
func (s *Service) Run(ctx context.Context) error {
	defer s.leave(ctx)
	swept := time.Now()
	for failing := false; ; {
		sweep := time.Since(swept) > s.cfg.Lease
		if sweep {
			swept = time.Now()
		}
		err := s.beat(ctx, sweep)
		if err != nil && ctx.Err() == nil && !failing {
			s.cfg.Log.Warn("cannot renew this process's row among its peers, will be tried again", "error", err)
		}
		failing = err != nil
		if !s.await(ctx) {
			return nil
		}
	}
}

// await returns when it is time for the next round, or false when ctx ended.
func (s *Service) await(ctx context.Context) bool {
	if backoff.Sleep(ctx, minRefresh) != nil {
		return false
	}
	// Between half and one and a half beats, so that processes that started together
	// do not write together.
	timer := time.NewTimer(s.cfg.Beat/2 + time.Duration(s.cfg.Random()*float64(s.cfg.Beat)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-s.refresh:
	case <-timer.C:
	}
	return true
}

// again asks for a round now. It never blocks.
func (s *Service) again() {
	select {
	case s.refresh <- struct{}{}:
	default:
	}
}

// beat is one round. Each statement is a transaction of its own: one that wrote our
// row and then went over the others' would deadlock with theirs.
func (s *Service) beat(ctx context.Context, sweep bool) error {
	bounded, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err := s.cfg.Store.Update(bounded, func(tx Tx) error {
		if err := tx.PutPeerKeys(s.cfg.ID, s.keys); err != nil {
			return err
		}
		return tx.PutPeer(model.Peer{ID: s.cfg.ID, Address: s.cfg.Address, StartedAt: s.started.UnixMilli()})
	})
	if err != nil {
		return err
	}
	if sweep {
		var gone int
		err = s.cfg.Store.Update(bounded, func(tx Tx) (err error) {
			gone, err = tx.DeletePeers(s.cfg.Lease.Milliseconds())
			return err
		})
		if err != nil {
			return err
		}
		err = s.cfg.Store.Update(bounded, func(tx Tx) error {
			_, err := tx.DeletePeerKeys(keysFor.Milliseconds())
			return err
		})
		if err != nil {
			return err
		}
		if gone > 0 {
			s.cfg.Log.Info("forgot processes that stopped without a word", "processes", gone)
		}
	}
	others, err := s.list(bounded)
	if err != nil {
		return err
	}
	s.settle(ctx, others)
	return nil
}

func (s *Service) list(ctx context.Context) (others []model.Peer, err error) {
	err = s.cfg.Store.View(ctx, func(tx Tx) error {
		others, err = tx.ListPeers(s.cfg.Lease.Milliseconds())
		return err
	})
	return slices.DeleteFunc(others, func(p model.Peer) bool { return p.ID == s.cfg.ID }), err
}

// settle makes the senders those of the peers that there are.
func (s *Service) settle(ctx context.Context, others []model.Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := map[string]bool{}
	for _, p := range others {
		there[p.ID] = true
		if old := s.senders[p.ID]; old != nil {
			if old.peer.Address == p.Address {
				continue
			}
			old.cancel()
		}
		sending, cancel := context.WithCancel(ctx)
		to := newSender(s, p, cancel)
		s.senders[p.ID] = to
		s.running.Go(func() { to.run(sending) })
		s.cfg.Log.Info("found a peer", "peer", p.ID, "address", p.Address)
	}
	for _, id := range slices.Sorted(maps.Keys(s.senders)) {
		if to := s.senders[id]; !there[id] {
			to.cancel()
			delete(s.senders, id)
			s.cfg.Log.Info("a peer is gone", "peer", id, "address", to.peer.Address)
		}
	}
}

// leave stops the senders and takes this process's row away, so that the others
// need not find out.
func (s *Service) leave(ctx context.Context) {
	s.settle(ctx, nil)
	s.running.Wait()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	err := s.cfg.Store.Update(bounded, func(tx Tx) error { return tx.DeletePeer(s.cfg.ID) })
	if err != nil {
		s.cfg.Log.Warn("this process's row stays until its peers find it old", "error", err)
	}
}
