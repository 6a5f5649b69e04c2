// Package dispatch serves the agents' streams of this process.
//
//	commit --nudge--> Tailer --changes--> Cursor (dirty keys) --> stream --> agent
//	   beat ------------^                                    \--> DesiredItems
//
// One Tailer per process reads the changes of regions that have a stream here. After a nudge for a commit of this or
// another process, it reads the changed regions at once, in one query. On a fixed beat it checks all regions for
// commits without a nudge. A beat reads the sum of all heads. If the sum has changed, it reads the heads, and then
// the changes of the regions whose heads moved. So the cost of a change depends on the regions that it changes. An
// idle fleet of any size costs one query with one row per beat. A process without streams needs no queries.
//
// A stream never waits for another stream. Its unsent changes are a set of dirty keys, which it takes when its agent
// can receive a frame. Every send has a deadline.
//
// # No gap between snapshot and deltas
//
// A stream first subscribes, and then reads its snapshot in one consistent read, as of revision A. Changes at or
// below A are in the snapshot. If the subscription gets them later, the cursor drops them. Changes above A are
// published to the subscription, which existed before the read, and the cursor keeps them.
package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/neighbours"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Tx has the queries of dispatch.
type Tx interface {
	GetHead(regionID string) (model.Head, error)
	GetHeads(regionIDs []string) ([]model.Head, error)
	SumHeads() (model.HeadSum, error)
	Changes(after map[string]int64, limit int) ([]model.Change, error)
	ChainAt(regionID string, revision int64) ([]byte, error)
	BumpEpoch(regionID string, salt []byte) (model.Head, error)
	DesiredItems(kind model.ChangeKind, keys map[string][]string) ([]model.DesiredItem, error)
	EachDesired(regionID string, size int, page func([]model.DesiredItem) error) error
	LockRegion(id string) (model.Region, error)
	StartSession(regionID, sessionID string, leaseTTL int64, agent model.Region) (model.Region, bool, error)
	AppsInRegion(regionID string) ([]string, error)
	PutStream(regionID, peerID string) error
	ListPeers(seenWithin int64) ([]model.Peer, error)
	CountStreams() (int, error)
	Wake(appIDs []string, due, now int64) error
	NotifyRegion(model.RegionNotice) error
	CrossRegion() ([]model.AppRegion, error)
	RegionsOf(workspaceIDs []string) ([]model.WorkspaceRegion, error)
}

// Store runs transactions on the primary.
type Store interface {
	Update(ctx context.Context, fn func(Tx) error) error
	View(ctx context.Context, fn func(Tx) error) error
	Snapshot(ctx context.Context, fn func(Tx) error) error
}

// Config configures a Service. Zero durations mean the defaults below.
type Config struct {
	Store Store
	// Caller returns the region of the call's credential, and when the credential was issued, in unix ms.
	Caller     func(ctx context.Context) (regionID string, issuedAt int64, ok bool)
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Random returns numbers in [0, 1) for jitter. It must be safe for concurrent use. nil: math/rand.
	Random func() float64

	// Peer is the id of this process, by which other processes find its streams. Empty: there are no other processes.
	Peer string
	// Beat is the time between two polls, which is the maximum delay of a commit without a nudge. Default: 200 ms,
	// which costs five queries a second per process.
	Beat time.Duration
	// Bookmark is the minimum time between two bookmarks of a stream in the protocol. The maximum is twice as long.
	// Streams send bookmarks after 1.2 to 1.45 times this: see bookmarkDelay. Default: 10 s.
	Bookmark time.Duration
	// Lease is the lease of agents' sessions. nil: NewLease(0).
	Lease *Lease
	// SendTimeout is the timeout for sending one frame. Default: 30 s.
	SendTimeout time.Duration
	// SnapshotRate and SnapshotBurst limit full reads. Defaults: 50 a second, 100 at once.
	SnapshotRate  rate.Limit
	SnapshotBurst int
	// Limits returns the limits on reports for a new session. nil: no limits.
	Limits func() *agentv1.ReportLimits
	// Even is the time between two checks of this process's share of the streams. Each check needs two small queries.
	// Default: 5 s. EvenAfter is how long the set of processes must be unchanged before streams are sent away, so
	// that a rolling restart is over, and a process that died is no longer counted. Default: 15 s.
	Even, EvenAfter time.Duration
	// Neighbours is the time between two reads of the apps whose requests may go to other regions. Each read is one
	// small query, while this process has streams. Default: 5 s.
	Neighbours time.Duration
	Version    string
	// Domain is the parent domain of deployments' preview hosts. Empty: deployments have no preview hosts.
	Domain string
	// Quota has the control plane's limits for workspaces that have none of their own.
	Quota model.Limits
}

func (c *Config) setDefaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.Beat, 200*time.Millisecond)
	set(&c.Bookmark, 10*time.Second)
	set(&c.SendTimeout, 30*time.Second)
	set(&c.Even, 5*time.Second)
	set(&c.EvenAfter, 15*time.Second)
	set(&c.Neighbours, 5*time.Second)
	if c.SnapshotRate == 0 {
		c.SnapshotRate = 50
	}
	if c.SnapshotBurst == 0 {
		c.SnapshotBurst = 100
	}
	if c.Random == nil {
		c.Random = rand.Float64
	}
	if c.Lease == nil {
		c.Lease = NewLease(0)
	}
	if c.Limits == nil {
		c.Limits = func() *agentv1.ReportLimits { return nil }
	}
}

// Service serves Watch and UploadLogs, and carries requests to agents.
type Service struct {
	cfg      Config
	tailer   *Tailer
	reader   *reader
	metrics  *metrics
	limiter  *rate.Limiter
	requests *requests

	mu       sync.Mutex
	streams  map[string]*stream // by region: the stream of the current session
	draining chan struct{}
	drained  bool
	// leavers is the number of streams when draining began.
	leavers int
	// pictures are the pictures of neighbours, by region, of regions that have neighbours. nil: not read yet.
	pictures map[string]*neighbours.Picture
}

func (c *Config) sendingLimits() sending { return sending{domain: c.Domain, limits: c.Quota} }

// New checks the config and returns a service, which does nothing until Run.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Caller == nil || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("dispatch: Store, Caller, Log and Registerer are required")
	}
	cfg.setDefaults()
	s := &Service{
		cfg:      cfg,
		limiter:  rate.NewLimiter(cfg.SnapshotRate, cfg.SnapshotBurst),
		requests: newRequests(),
		streams:  map[string]*stream{},
		draining: make(chan struct{}),
	}
	s.metrics = newMetrics(cfg.Registerer)
	s.tailer = newTailer(cfg.Store, cfg.Log, cfg.Beat, cfg.Random)
	s.reader = &reader{store: cfg.Store}
	return s, nil
}

// Nudge announces that a commit of this or another process has moved the heads of the regions. Without regions, any
// head may have moved. Nudge never blocks.
func (s *Service) Nudge(regions ...string) { s.tailer.Nudge(regions...) }

// Run polls the feed, requests bookmarks, reads the neighbours of regions, and sends away streams above this
// process's share, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	defer loops.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	loops.Go(func() { s.requestBookmarks(ctx) })
	loops.Go(func() { s.lookAround(ctx) })
	if s.cfg.Peer != "" {
		loops.Go(func() { s.shedExcess(ctx) })
	}
	return s.tailer.Run(ctx)
}

// Drain sends every stream away. New streams are sent away at once.
func (s *Service) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.drained {
		s.drained, s.leavers = true, len(s.streams)
		close(s.draining)
	}
}

// Connected reports whether the region has a stream on this process.
func (s *Service) Connected(regionID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams[regionID] != nil
}

// enterStream makes st its region's stream, and ends the previous stream: a region has one session, and a session one
// stream.
func (s *Service) enterStream(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.streams[st.region]; old != nil {
		old.endStream(errReplaced)
	}
	s.streams[st.region] = st
	st.dueAt = time.Now().Add(s.bookmarkDelay())
	if s.pictures != nil {
		st.around <- struct{}{} // this never blocks, because the buffer of a new stream is empty
	}
	s.countStreams()
}

func (s *Service) leaveStream(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[st.region] == st {
		delete(s.streams, st.region)
	}
	s.countStreams()
}

// countStreams updates the metric and the lease with the number of streams. The caller must have locked s.mu.
func (s *Service) countStreams() {
	s.metrics.streams.Set(float64(len(s.streams)))
	s.cfg.Lease.setAgents(len(s.streams))
}
