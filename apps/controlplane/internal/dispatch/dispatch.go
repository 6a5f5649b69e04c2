// Package dispatch feeds every agent stream of this process from memory.
//
//	commit --nudge--> Tailer --changes--> Cursor (dirty keys) --> stream --> agent
//	   beat ------------^                                    \--> DesiredItems
//
// One Tailer per process reads the changes of regions that have a stream here. When it hears of
// a commit, of this or another process, it reads the changed regions at once, in one query. On
// a fixed beat it looks at all regions, for commits that it did not hear of. A beat reads the
// sum of all heads. When the sum has changed, it reads the heads, then the changes of the
// regions whose heads moved. So a change costs by the regions that it touches, an idle fleet
// costs one query and one row a beat whatever its size, and a process without streams costs
// none.
//
// A stream never waits for another: what it owes is a set of dirty keys, taken
// at once when its agent can take a frame, and every send has a deadline.
//
// # No gap between snapshot and deltas
//
// A stream first subscribes, and then reads its snapshot in one consistent read
// as of revision A. Changes at or below A are in it. Changes above A were
// published to the subscription, which existed before. The cursor drops the
// former when they arrive late and keeps the latter.
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

// Tx is what dispatch asks of a transaction.
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

// Config of a Service. Zero durations take the defaults stated.
type Config struct {
	Store Store
	// Caller tells whose credential the call carries and when that was issued,
	// unix ms.
	Caller     func(ctx context.Context) (regionID string, issuedAt int64, ok bool)
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Random returns numbers in [0, 1) for jitter, safely for concurrent use; nil
	// means math/rand.
	Random func() float64

	// Peer is the id of this process, under which others find the streams that it
	// holds; empty: there are no others.
	Peer string
	// Beat is how late a commit may be seen when no nudge came for it: 200 ms, a fifth of what
	// a person notices, at five queries a second and process.
	Beat time.Duration
	// Bookmark is the shortest time that the protocol allows between two of a stream, 10 s;
	// the longest is twice that. Streams get them after 1.2 to 1.45 times: see requestBookmarks.
	Bookmark time.Duration
	// Lease of agents' sessions; nil: NewLease(0).
	Lease *Lease
	// SendTimeout bounds one frame: 30 s, a stalled agent's whole patience.
	SendTimeout time.Duration
	// SnapshotRate and SnapshotBurst bound full reads: 50 a second, 100 at once.
	SnapshotRate  rate.Limit
	SnapshotBurst int
	// Limits that a new session starts with; nil: none.
	Limits func() *agentv1.ReportLimits
	// Even is the time between two checks whether this process has more than its share
	// of the streams: 5 s, two small queries. EvenAfter is how long the processes must have
	// been the same before streams are sent away: 15 s, so that a rolling restart is
	// over, and a process that died is no longer counted.
	Even, EvenAfter time.Duration
	// Neighbours is the time between two reads of the apps whose requests may go to other
	// regions: 5 s, one small query while this process has streams.
	Neighbours time.Duration
	Version    string
	// Domain below which deployments have their preview hosts; empty: they have none.
	Domain string
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
	streams  map[string]*stream // by region: the current session's
	draining chan struct{}
	drained  bool
	// leavers is how many streams there were when draining began.
	leavers int
	// pictures of the neighbours of each region that has some, by region; nil: not read yet.
	pictures map[string]*neighbours.Picture
}

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

// Nudge says that a commit, of this process or another, moved the heads of the
// regions; with none given, of any. It never blocks.
func (s *Service) Nudge(regions ...string) { s.tailer.Nudge(regions...) }

// Run tails the feed, tells streams when to send bookmarks, reads the neighbours of regions, and keeps this
// process at its share of the streams, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	beside.Go(func() { s.requestBookmarks(ctx) })
	beside.Go(func() { s.lookAround(ctx) })
	if s.cfg.Peer != "" {
		beside.Go(func() { s.shedExcess(ctx) })
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

// enterStream makes st its region's stream and ends the one before it: a session has
// one stream, and a newer session has replaced the older one's.
func (s *Service) enterStream(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.streams[st.region]; old != nil {
		old.endStream(errReplaced)
	}
	s.streams[st.region] = st
	st.dueAt = time.Now().Add(s.bookmarkDelay())
	if s.pictures != nil {
		st.around <- struct{}{} // it never blocks, because the buffer of a new stream is empty
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

// countStreams notes how many streams there are. The caller has locked s.mu.
func (s *Service) countStreams() {
	s.metrics.streams.Set(float64(len(s.streams)))
	s.cfg.Lease.setAgents(len(s.streams))
}
