// Package scaler decides how many replicas scaled apps have in their regions.
//
//	Report ─> ingest ─> Observe        keeps the newest load of each (app, region), and must not block. Passes on
//	                      │            loads of a region whose stream is on another process
//	                    step           reads apps that changed, in a few queries for all of them
//	                      │            decides for apps that were observed or are due (package scaling)
//	                      v
//	                    Rescale        one transaction for each number or limit that changed
//	                    StoreLoads     the observed load, as means of a minute, in batches of many apps
//
// Only the process that has the region's stream decides about the region, and it keeps the windows in memory.
// After the stream has moved, windows fill again, and replicas stay until then. A decision is written only if
// the app has not changed since it was read. So late processes, deploys and people never undo each other's changes.
//
// A step reads the apps that a commit changed, up to 500 in one query. Nudges report the commits of other
// processes, but may be lost. So an app with a load is also read if its last read was a minute ago.
package scaler

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/scaling"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Apps reads scaled apps and writes decisions.
type Apps interface {
	// ScaledApps returns the given apps that have a policy and a live version.
	ScaledApps(ctx context.Context, ids []string) ([]model.ScaledApp, error)
	// Rescale fails with model.ErrStale if the app has changed since the decision read it.
	Rescale(ctx context.Context, r model.Rescale) error
	// StoreLoads inserts or replaces the load of apps, up to 500 chunks.
	StoreLoads(ctx context.Context, chunks []model.LoadChunk) error
}

// Needs are the parts that a Service uses while it runs. They are made after the Service, because some of them call
// it.
type Needs struct {
	Apps Apps
	// Holds reports whether the region's stream is on this process.
	Holds func(regionID string) bool
	// PassOn passes loads on to the process that has the region's stream. It returns how many loads it dropped. It
	// must not block. nil: there are no other processes.
	PassOn func(regionID string, loads []*agentv1.LoadReport) (dropped int)
}

// Config configures a Service.
type Config struct {
	// Metrics answers metrics of type prometheus. nil: they are missing.
	Metrics    Measurer
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

const (
	// every is the longest time between two steps.
	every = time.Second
	// gather is how long a step waits for more loads.
	gather = 100 * time.Millisecond
	// readAtOnce bounds the apps of one read.
	readAtOnce = 500
	// readAgain is how long the read state of an app is valid, unless a commit is known to have changed it.
	readAgain = time.Minute
	// writesAtOnce bounds the transactions that are under way.
	writesAtOnce = 8
	// writeTimeout bounds one transaction.
	writeTimeout = 10 * time.Second
	// forgetAfter is how long an app's load is kept after the region's last report of it.
	forgetAfter = 10 * time.Minute
	// limitEvery is the shortest time between two history entries for a limit alone.
	limitEvery = 5 * time.Minute
	// lateFor is how long a load that is older than the newest load of its app and region counts as late, because it was
	// delayed on another way. After that time, an older load means that the agent's clock was set back. lateFor is
	// shorter than scaling.Fresh.
	lateFor = 15 * time.Second
	// refusedFor is how long a refusal is assumed to hold.
	refusedFor = time.Minute
	// maxTargets and maxNone bound the memory, because a report may name apps that do not exist.
	maxTargets = 200_000
	maxNone    = 50_000
	// maxStrays is how many apps that are not scaled in a region the region may report within strayFor. Each of them
	// costs a read, and a tenant's own agent may name any app. One report may have the same number of loads.
	maxStrays = 10_000
	strayFor  = time.Minute
)

// Service is the scaler of one process.
type Service struct {
	cfg     Config
	metrics *metrics
	wake    chan struct{}
	// needs is nil until Run.
	needs atomic.Pointer[Needs]

	mu   sync.Mutex
	apps map[string]*app
	// dirty has the ids of apps to read before their next decision.
	dirty map[string]bool
	// none has the apps that are known not to be scaled, by id, with the time when they were read.
	none    map[string]time.Time
	targets map[appRegion]*target
	strays  map[string]*strays // by region id
	// asking has the ids of workspaces whose queries are running.
	asking map[string]bool
}

// strays counts the apps of a region's reports that are not known to be scaled there.
type strays struct {
	since time.Time
	n     int
}

// appRegion is an app in a region.
type appRegion struct{ app, region string }

// app is a scaled app in the state in which it was read.
type app struct {
	model.ScaledApp

	readAt time.Time
	// policies are by region id. roles are the policies of a pool's roles. An app with roles has no policies.
	policies map[string]*scaling.Policy
	roles    map[string][]scaling.RolePolicy
	// zero says when the pools go to zero, nil for never.
	zero *scaling.Zero
}

// scalesIn reports whether the app scales in the region.
func (a *app) scalesIn(regionID string) bool {
	return a.policies[regionID] != nil || a.roles[regionID] != nil
}

// target is an app in a region, or a role of its pool there, with the last decision for it.
type target struct {
	window scaling.Window
	kept   scaling.Kept
	// log has the load that is not stored yet. It is unused in the target of a pool, whose roles have logs.
	log loadLog
	// load is the newest report, until it is added to the window. heard is when it arrived, and at is its time by the
	// agent's clock, in Unix ms.
	load  *agentv1.LoadReport
	heard time.Time
	at    int64
	// results has the last result of each query. problems says why levels are missing in the newest report, by name.
	results  map[metricQuery]result
	problems map[string]string
	next     time.Time
	// retryAt is when a decision may be written again after a failed write. refused is why the last decision was refused,
	// empty if it was not refused. told is the refusal that has a history entry, and toldAt is the time of that entry.
	retryAt       time.Time
	refused, told string
	toldAt        time.Time
	// writing is true while a decision is being written.
	writing bool
	// stray is true while the app is counted in strays, until the app is read.
	stray bool
	// shown is the newest decision, for people. recorded is compared with the next decision, which gets a
	// history entry if it differs.
	shown    *windlassv1.RegionScaling
	recorded record
	// quota and room are the numbers that are possible, by the last refusals for the workspace's quota and for the
	// region's room. They are used until quotaUntil and roomUntil.
	quota, room           *int
	quotaUntil, roomUntil time.Time
	// raised is the raise in the newest load. raiseRefused is the generation whose raise the API refused for a reason
	// other than a limit of decisions, 0 for none.
	raised       raise
	raiseRefused int64
	// closedUntil is when the region stops counting as closed, after a refusal.
	closedUntil time.Time
	// roles are the targets of a pool's roles, by name. The pool's own target has everything that the roles share: the
	// window of the whole pool, the load, the results of queries, the problems, closedUntil, and the times of the next
	// decision and write.
	roles map[string]*target
	// zeroSince is when the pool was first seen at zero. It is the zero time while the pool is not at zero.
	zeroSince time.Time
	// silent marks, by index, the missing metrics that already have a history entry.
	silent [scaling.MaxMetrics]bool
}

// raise is the number to which a region that was cut off raised the replicas of a generation by itself.
type raise struct {
	to         int32
	generation int64
}

// partOf returns the target of a role, or t itself for "". It returns nil if the role has none.
func (t *target) partOf(role string) *target {
	if role == "" {
		return t
	}
	return t.roles[role]
}

// roleTarget returns the target of a role, which it makes if there is none.
func (t *target) roleTarget(name string) *target {
	if t.roles == nil {
		t.roles = map[string]*target{}
	}
	if t.roles[name] == nil {
		t.roles[name] = &target{}
	}
	return t.roles[name]
}

// record is the part of a decision that is compared with the next decision.
type record struct {
	at     time.Time
	wanted int
	limit  scaling.Limit
}

// New returns a Service that does nothing, and drops all loads, until Run.
func New(cfg Config) (*Service, error) {
	if cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("scaler: Log and Registerer are required")
	}
	return &Service{
		cfg: cfg, metrics: newMetrics(cfg.Registerer), wake: make(chan struct{}, 1),
		apps: map[string]*app{}, dirty: map[string]bool{}, none: map[string]time.Time{}, targets: map[appRegion]*target{}, strays: map[string]*strays{}, asking: map[string]bool{},
	}, nil
}

// Changed marks apps that a commit changed, so that they are read before their next decision. It does not block.
func (s *Service) Changed(appIDs []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range appIDs {
		if delete(s.none, id); s.apps[id] != nil {
			s.dirty[id] = true
		}
	}
}

// Live returns the newest decisions of this process for an app, by region id.
func (s *Service) Live(appID string) map[string]*windlassv1.RegionScaling {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]*windlassv1.RegionScaling{}
	if a := s.apps[appID]; a != nil {
		for region := range a.Regions {
			if t := s.targets[appRegion{appID, region}]; t != nil && t.shown != nil {
				out[region] = t.shown
			}
		}
	}
	return out
}

// Current returns the newest decision for an app in a region. It returns nil if the region's stream is on another
// process, or if the region has not reported the app's load within scaling.Fresh.
func (s *Service) Current(regionID, appID string) *windlassv1.RegionScaling {
	if needs := s.needs.Load(); needs == nil || !needs.Holds(regionID) {
		return nil
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	a, t := s.apps[appID], s.targets[appRegion{appID, regionID}]
	if a == nil || !a.scalesIn(regionID) || t == nil || t.shown == nil {
		return nil
	}
	if now.Sub(t.heard) > scaling.Fresh || now.Sub(time.UnixMilli(t.shown.GetAt())) > scaling.Fresh {
		return nil
	}
	return t.shown
}

// Run makes decisions until ctx ends. All fields of needs except PassOn are required.
func (s *Service) Run(ctx context.Context, needs Needs) error {
	if needs.Apps == nil || needs.Holds == nil {
		return errors.New("scaler: Apps and Holds are required")
	}
	s.needs.Store(&needs)
	if s.cfg.Metrics != nil {
		var asking sync.WaitGroup
		defer asking.Wait()
		asking.Go(func() { s.runQueries(ctx, needs.Holds) })
	}
	storing, stopStoring := context.WithCancel(ctx)
	stored := make(chan struct{})
	go func() {
		defer close(stored)
		s.storeLoads(storing, needs.Apps)
	}()
	defer func() {
		stopStoring()
		<-stored
	}()
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-s.wake:
			timer.Reset(gather)
			select {
			case <-ctx.Done():
				return nil
			case <-timer.C:
			}
		}
		if err := s.runStep(ctx, needs); err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn("cannot scale apps", "error", err)
		}
		timer.Reset(every)
	}
}

// runStep reads the apps that changed, decides, and writes.
func (s *Service) runStep(ctx context.Context, needs Needs) error {
	if err := s.read(ctx, needs.Apps); err != nil {
		return err
	}
	writes := s.decideAll(time.Now(), needs.Holds)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writesAtOnce)
	for _, w := range writes {
		group.Go(func() error {
			s.write(ctx, needs.Apps, w)
			return nil
		})
	}
	return group.Wait()
}
