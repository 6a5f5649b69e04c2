// Package peers lets the control plane's processes work together: it finds the other processes, notifies them
// of commits, and forwards requests for agents to the process that holds the agent's stream.
//
//	commit here ─> Tell ─> a set for each peer ─> Nudge ─> tailer, watchers there
//	GetLogs here ─> Ask ─> region_streams ─> Ask ─> stream there ─> agent
//	                         ^ who has it            v
//	                       peers: id, address, last seen (one row a process)
//	KEDA asks here ─> Scaling ─> region_streams ─> GetScaling ─> scaler there
//	loads come here ─> PassLoads ─> TakeLoads ─> scaler there
//
// # Nothing depends on it
//
// The truth is in SQL, and a process finds every commit by itself with its next beat. So a nudge is never
// stored, acknowledged or ordered. It may be lost, duplicated or late, which changes only how soon a stream
// moves. So there is no leader and no quorum here, and a table of peers that may be out of date is enough.
//
// # No commit waits for a peer
//
// Tell adds to sets under a mutex and returns, so that the peers do not affect the cost of a commit. Each
// peer has a goroutine that sends the content of its set, one call at a time. Changes that come during a
// call go into the next call. A peer that hangs delays only its own goroutine, for the time of a call. Its
// set is bounded: above the bound it says "any region".
//
// # Which processes exist
//
// Each process renews its row every Beat, on the database's clock. A process whose row was not renewed for a Lease is
// not called any more, and any process deletes that row. A process that was only slow writes its row again. A process
// that stops in order deletes its row. A new process sends an empty nudge to each process that it finds. They read the
// table again, so that the new process is notified of commits before their next beat.
//
// # Who may call
//
// Peers have their own listener. So the API's listener can be public, and a flood of API calls delays no
// nudge. A call has a statement (from, to, until when), sealed with the installation's root key for a purpose
// of its own. The statement cannot be made without the keyset, is valid for only one process, and rotates with
// the keyset. Calls are encrypted: see TLS.
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
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Tx is the queries of peers.
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

// Agents asks agents whose stream is on this process. The context must have a deadline.
type Agents interface {
	// Ask fails with model.ErrAgentUnreachable if it finds no agent, or gets no answer in time.
	Ask(ctx context.Context, regionID string, req *agentv1.Request) ([]byte, error)
	// Connected reports whether the region has a stream on this process.
	Connected(regionID string) bool
}

// Scaler is the scaler of this process.
type Scaler interface {
	// Current returns the newest decision for an app in a region whose stream this process has, or nil.
	Current(regionID, appID string) *windlassv1.RegionScaling
	// Live returns the newest decisions for an app, by region id.
	Live(appID string) map[string]*windlassv1.RegionScaling
	// Take stores loads of a region whose stream this process has. It must not block.
	Take(regionID string, loads []*agentv1.LoadReport) (dropped int)
}

// Nudge is the changes of commits that a process may have streams for.
type Nudge struct {
	// Regions are the regions whose feed has moved. AllRegions is true if there are too many to list.
	Regions    []string
	AllRegions bool
	// Apps are the apps that changed for their watchers.
	Apps []string
}

// Config configures a Service. Durations of zero take the stated defaults.
type Config struct {
	// ID is the id of this process, and Address the host:port at which other processes call it.
	ID, Address string
	Store       Store
	Box         *seal.Box
	Agents      Agents
	Scaler      Scaler
	// HTTP carries calls to peers.
	HTTP       *http.Client
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Random returns numbers in [0, 1) for jitter; nil means math/rand.
	Random func() float64

	// Beat is how often this process renews its row. Default: 5 s.
	Beat time.Duration
	// Lease is how long a row that is not renewed is valid. Default: 30 s, six beats, so that a short outage of
	// the database does not separate the processes.
	Lease time.Duration
	// CallTimeout bounds a nudge. Default: 2 s, which is much longer than a nudge takes.
	CallTimeout time.Duration
}

func (c *Config) setDefaults() {
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
	takers  takers

	mu      sync.RWMutex
	senders map[string]*sender // by peer id
}

// New checks the config and returns a service. Run makes it known to its peers.
func New(cfg Config) (*Service, error) {
	if cfg.ID == "" || cfg.Address == "" || cfg.Store == nil || cfg.Box == nil || cfg.Agents == nil || cfg.Scaler == nil ||
		cfg.HTTP == nil || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("peers: ID, Address, Store, Box, Agents, Scaler, HTTP, Log and Registerer are required")
	}
	cfg.setDefaults()
	s := &Service{
		cfg: cfg, started: time.Now(),
		refresh: make(chan struct{}, 1),
		senders: map[string]*sender{},
		takers:  takers{by: map[string]string{}, none: map[string]time.Time{}},
	}
	for _, id := range cfg.Box.Keys() {
		s.keys = append(s.keys, model.PeerKey{KeyID: id, Seals: id == cfg.Box.Primary()})
	}
	s.metrics = newMetrics(cfg.Registerer, s.count)
	return s, nil
}

// Tell sends the peers the changes of a commit of this process. It never blocks.
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

// minRefresh is the shortest time between two reads of the table, whatever the number of requests.
const minRefresh = 250 * time.Millisecond

// keysFor is how long the keys of a process that ended are kept. It is longer than the credentials that it
// sealed are valid.
const keysFor = 48 * time.Hour

// readTimeout bounds one round of transactions.
const readTimeout = 5 * time.Second

// Run renews this process's row and reads the rows of other processes until ctx ends. Then it deletes its row.
func (s *Service) Run(ctx context.Context) error {
	defer s.leaveCluster(ctx)
	swept := time.Now()
	for failing := false; ; {
		sweep := time.Since(swept) > s.cfg.Lease
		if sweep {
			swept = time.Now()
		}
		err := s.runRound(ctx, sweep)
		if err != nil && ctx.Err() == nil && !failing {
			s.cfg.Log.Warn("cannot renew this process's row among its peers, will be tried again", "error", err)
		}
		failing = err != nil
		if !s.awaitRound(ctx) {
			return nil
		}
	}
}

// awaitRound returns when it is time for the next round, or false when ctx ended.
func (s *Service) awaitRound(ctx context.Context) bool {
	if backoff.Sleep(ctx, minRefresh) != nil {
		return false
	}
	// The wait is between half and one and a half beats, so that processes that started together do not write
	// together.
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

// requestRound requests a round now. It never blocks.
func (s *Service) requestRound() {
	select {
	case s.refresh <- struct{}{}:
	default:
	}
}

// runRound is one round. It writes this process's own rows in one transaction, and deletes rows of other processes in other
// transactions. If one transaction did both, it could deadlock with the same transaction of another process.
func (s *Service) runRound(ctx context.Context, sweep bool) error {
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
			s.cfg.Log.Info("deleted rows of processes that stopped without removing them", "processes", gone)
		}
	}
	others, err := s.list(bounded)
	if err != nil {
		return err
	}
	s.settleSenders(ctx, others)
	return nil
}

func (s *Service) list(ctx context.Context) (others []model.Peer, err error) {
	err = s.cfg.Store.View(ctx, func(tx Tx) error {
		others, err = tx.ListPeers(s.cfg.Lease.Milliseconds())
		return err
	})
	return slices.DeleteFunc(others, func(p model.Peer) bool { return p.ID == s.cfg.ID }), err
}

// settleSenders starts and stops senders, so that each existing peer has one.
func (s *Service) settleSenders(ctx context.Context, others []model.Peer) {
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
		s.running.Go(func() { to.runLoads(sending) })
		s.cfg.Log.Info("found a peer", "peer", p.ID, "address", p.Address)
	}
	for _, id := range slices.Sorted(maps.Keys(s.senders)) {
		if to := s.senders[id]; !there[id] {
			to.cancel()
			delete(s.senders, id)
			s.takers.forgetPeer(id)
			s.cfg.Log.Info("a peer is gone", "peer", id, "address", to.peer.Address)
		}
	}
}

// leaveCluster stops the senders and deletes this process's row, so that other processes need not wait for its lease to end.
func (s *Service) leaveCluster(ctx context.Context) {
	s.settleSenders(ctx, nil)
	s.running.Wait()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	err := s.cfg.Store.Update(bounded, func(tx Tx) error { return tx.DeletePeer(s.cfg.ID) })
	if err != nil {
		s.cfg.Log.Warn("cannot delete this process's row: it stays until its peers delete it", "error", err)
	}
}
