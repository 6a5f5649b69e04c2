// Package ingest stores the reports of agents.
//
//	Report --> full lane:      queue -> batch -> one transaction -> reply
//	       \-> heartbeat lane: reply at once; leases renewed together, each second
//
// # Group commit
//
// Reports that arrive while a transaction commits share the next transaction (package batch). A batch has a constant
// number of statements, plus a few for each sixteen regions, but never one for each instance. The end of an inventory
// and a new quarantine need extra statements. If a batch fails, its reports are stored one by one, so that only the
// bad report fails.
//
// # Fences
//
// A report counts only if its (session, epoch, fence) is its region's current one. This is read in the same
// transaction, after the renewal of the lease has locked the region's row, so that no newer session begins before the
// whole report is stored. Each written row has (fence, sequence) as a guard, which SQL compares, so that a repeated
// report changes nothing. A report that arrives after a newer report of its session stores nothing. An agent has one
// report in flight, so it has given up the late report and has reported everything again. The late report may name
// instances that no longer exist, and their rows would stay for ever.
//
// # Overload
//
// Agents report state: of several changes of an instance, only the last counts. So states above the capacity wait in
// the agents, which keep one state of each instance. Only reports that can be stored soon, at the rate of recent
// batches, wait here:
//
//	wait             limits for agents
//	< 50 ms          200 ms between reports, 1,000 instances in each
//	more             4 times the wait (and commit) between reports, up to 4 s; a pause of
//	                 5 times the wait between reports with instances, up to 5 s;
//	                 fewer instances in each, down to 100
//	> 200 ms         reports with more than 50 instances are refused, and may be sent
//	                 again after 5 times the wait, up to 5 s, or later if refused again
//
// Agents send edges at once, as counts and states. These and other small reports have their own lane and
// transactions. Regions take turns: a batch has at most one report of each region, and the queue two, so that a
// region with many reports delays only itself. At most 200,000 rows or 4,096 reports wait, about 100 MiB. Above that,
// all reports are refused. A refused report stores nothing, and the agent later sends its newest state.
//
// The simulator measures this: "ingest" shows how many states can be stored in a second, and "overload" shows the
// delay of edges when ten times as many states arrive.
//
// Texts and ids are cut or refused by length, because a value that does not fit its column would fail the whole
// report and each of its retries.
//
// # Notices
//
// Notices report actions of an agent without an instruction. They become history entries, at a limited rate for each
// region, because an app keeps a limited number of entries. They have no guard in SQL. Instead, the sequence of the
// last report, which is read before the lease is renewed, shows whether a report's notices were already stored.
//
// # Loads
//
// Loads of scaled apps are kept only in the memory of the process that decides their replicas. A report with only
// loads is handled like a heartbeat, without a transaction.
//
// # Wake-ups
//
// An app's workflow is woken only if a report changes a value that plan reads (rollup.Edges). The wake-up row is in
// the same transaction as the facts. It is due at once for a deployment that starts or stops, and for all deployments
// of an app with a rollout in flight. For other deployments it is due after gather, so that further reports can
// arrive.
package ingest

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/batch"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Tx has the queries of ingest.
type Tx interface {
	CheckSessions(regionIDs []string) ([]model.Region, error)
	NoteReports(sessions []model.Region, leaseTTL int64) error
	GetAssignments(deployments map[string][]string) ([]model.Assignment, error)
	GetObserved(deployments map[string][]string) ([]model.Observed, error)
	ListRoutes(appIDs []string) ([]model.Route, error)
	ListRouteObserved(appIDs []string) ([]model.RouteObserved, error)
	PutObserved([]model.Observed) error
	PutRouteObserved([]model.RouteObserved) error
	PutInstances([]model.Instance) error
	MarkLost(regionID string, below model.Guard, now int64) ([]string, error)
	ResetObserved(regionID string, below model.Guard, now int64) ([]string, error)
	SetQuarantine(regionID string, rows []model.Quarantined) error
	AppsInRegion(regionID string) ([]string, error)
	GetDeployments(ids []string) ([]model.Deployment, error)
	InsertHistory([]model.History) error
	NotifyRegion(model.RegionNotice) error
	Wake(appIDs []string, due, now int64) error
	WakeAt(due map[string]int64, now int64) error
}

// Store runs transactions on the primary.
type Store interface {
	Update(ctx context.Context, fn func(Tx) error) error
}

// Config configures a Service. Zero durations mean the defaults below.
type Config struct {
	Store Store
	// Caller returns the region of the call's credential and when the credential was issued.
	Caller func(ctx context.Context) (regionID string, issuedAt int64, ok bool)
	// Edges reports whether a change of a region's report can change a decision.
	Edges func(before, after model.Observed) bool
	// RouteEdges is Edges for an acknowledgement of routes.
	RouteEdges func(before, after model.RouteObserved) bool
	// Loads receives the loads of the region's apps, and returns the number of dropped loads. It drops loads of apps
	// that are not scaled there, and all loads if no process is known to have the region's stream. It must not block.
	// nil: all loads are dropped.
	Loads      func(regionID string, reports []*agentv1.LoadReport) (unknown int)
	Log        *slog.Logger
	Registerer prometheus.Registerer

	// Lease returns the current length of leases, from package dispatch. Default: always 15 s.
	Lease func() time.Duration
	// MinInterval is the shortest time between two reports of an agent. Default: 200 ms.
	MinInterval time.Duration
	// MaxInstances is the maximum number of instances in a report. Default: 1,000.
	MaxInstances int
}

const (
	// maxBatchReports and maxBatchRows limit one transaction, so that it holds its locks for much less than a second.
	// A batch may have minBatchRows even if the store is slow, because smaller batches would make it slower.
	maxBatchReports = 256
	maxBatchRows    = 10_000
	minBatchRows    = 1000
	// queueLength and maxQueuedRows limit the waiting reports and rows: two hundred full reports, about 100 MiB.
	queueLength   = 4096
	maxQueuedRows = 200_000
	// bulkBatches is the number of batches of large reports that are stored concurrently. While one batch waits for
	// its commit, the database works on other batches, and another batch is prepared.
	bulkBatches = 4
	// batchTimeout is the timeout for one transaction with its retries. It is also the timeout for all transactions
	// of a failed batch's reports together, because other reports wait for them.
	batchTimeout = 20 * time.Second
	// heartbeatFlush is how long the renewal of a lease may wait for other renewals. It is a fifth of the shortest
	// heartbeat interval.
	heartbeatFlush = time.Second
)

// Service serves Report.
type Service struct {
	cfg     Config
	queue   *queue
	metrics *metrics

	mu       sync.Mutex
	sessions map[string]known        // by region: the session that was current at the last check
	renewals map[string]model.Region // by region: leases to renew
	noticing map[string]budget       // by region: number of notices that may be stored
}

// known is a session with the time at which it was current.
type known struct {
	region model.Region
	at     time.Time
}

type pending struct {
	region   string
	issuedAt int64
	req      *agentv1.ReportRequest
	// heard is the sequence of the newest report of the session that was stored before this report.
	heard int64
	// late is true if a newer report of the session is stored. Then this report is answered but not stored. late is
	// set under the lock of the region's row.
	late bool
}

// New returns a Service, or an error if the config is not valid.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Caller == nil || cfg.Edges == nil || cfg.RouteEdges == nil || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("ingest: Store, Caller, Edges, RouteEdges, Log and Registerer are required")
	}
	if cfg.Lease == nil {
		cfg.Lease = func() time.Duration { return 15 * time.Second }
	}
	if cfg.MinInterval == 0 {
		cfg.MinInterval = 200 * time.Millisecond
	}
	if cfg.MaxInstances == 0 {
		cfg.MaxInstances = 1000
	}
	s := &Service{
		cfg:      cfg,
		sessions: map[string]known{},
		renewals: map[string]model.Region{},
		noticing: map[string]budget{},
	}
	s.queue = newQueue(s.store, s.observeOutcome)
	s.metrics = newMetrics(cfg.Registerer, s)
	return s, nil
}

// Limits returns the current limits on reports of agents.
func (s *Service) Limits() *agentv1.ReportLimits {
	l := s.currentLimits()
	out := &agentv1.ReportLimits{MinInterval: durationpb.New(l.interval), MaxInstances: int32(l.instances)}
	if l.pause > 0 {
		out.Pause = durationpb.New(l.pause)
	}
	return out
}

func (s *Service) currentLimits() limits {
	return s.queue.loadAt(time.Now()).limitsOf(s.cfg.MinInterval, s.cfg.MaxInstances)
}

// Report stores one report, or refuses all of it.
func (s *Service) Report(ctx context.Context, req *agentv1.ReportRequest) (*agentv1.ReportResponse, error) {
	start := time.Now()
	defer func() { s.metrics.latency.Observe(time.Since(start).Seconds()) }()
	region, issuedAt, ok := s.cfg.Caller(ctx)
	if !ok {
		return nil, rpc.Error(connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "", "no agent credential: join the region first")
	}
	if req.InventoryEnd && (req.InventorySince < 1 || req.InventorySince > req.Sequence) {
		return nil, rpc.Error(connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "inventory_since",
			"inventory_since must be the sequence of the report that began the inventory, which is at most the sequence of this report")
	}
	p := &pending{region: region, issuedAt: issuedAt, req: req}
	if !s.acceptHeartbeat(p, start) {
		if err := s.enqueueReport(ctx, p); err != nil {
			return nil, err
		}
	}
	if !p.late {
		s.takeLoads(region, req.Loads, time.Now())
	}
	return &agentv1.ReportResponse{Limits: s.Limits(), LeaseTtl: durationpb.New(s.cfg.Lease())}, nil
}

// enqueueReport adds the report to the queue and waits for its answer.
func (s *Service) enqueueReport(ctx context.Context, p *pending) error {
	answer, err := s.queue.Do(ctx, p)
	refused, isRefused := errors.AsType[*refusal](err)
	switch {
	case err == nil:
		return answer
	case isRefused:
		return s.refuseReport(refused)
	case errors.Is(err, batch.ErrClosed):
		return unavailableError("this server is stopping: send the report again")
	case ctx.Err() != nil:
		return ctx.Err()
	}
	s.cfg.Log.ErrorContext(ctx, "cannot store a report", "region", p.region, "error", err)
	return unavailableError("the report could not be stored: send it again")
}

// observeOutcome records metrics after each transaction of reports.
func (s *Service) observeOutcome(o batch.Outcome) {
	switch {
	case o.Err == nil:
		s.metrics.batch.Observe(float64(o.Size))
	case o.Size > 1 && !errors.Is(o.Err, batch.ErrClosed):
		s.cfg.Log.Warn("a batch of reports failed: storing its reports one by one", "reports", o.Size, "error", o.Err)
	}
}

func unavailableError(message string) error {
	return rpc.Error(connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE, "", message)
}

// refuseReport returns the error for a report that the queue refused.
func (s *Service) refuseReport(r *refusal) error {
	why, message := "behind", "more instances are reported than can be stored: send the report later"
	switch {
	case r.full:
		why, message = "full", "too many reports are waiting: send the report later"
	case r.crowded:
		why, message = "crowded", "reports of this region are already waiting: send one report at a time"
	}
	s.metrics.refused.WithLabelValues(why).Inc()
	return rpc.ErrorWith(connect.CodeResourceExhausted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED,
		Limit:  &windlassv1.LimitDetail{Name: "reports", RetryAfterMs: r.retryAfter.Milliseconds()},
	}, message)
}

// rowCount returns the approximate number of rows of the report, in the database and in the queue.
func (p *pending) rowCount() int {
	r := p.req
	return 1 + len(r.Instances) + len(r.Applied) + len(r.Rollups) + len(r.Quarantined) + len(r.Notices)
}

// acceptHeartbeat accepts a report that has no changes, if its session was recently current, and reports whether it did. If a
// newer session has begun since, the next report or the flush detects that. Until then, the only effect is a queued
// renewal, which the store will refuse.
func (s *Service) acceptHeartbeat(p *pending, now time.Time) bool {
	r := p.req
	if len(r.Applied)+len(r.Instances)+len(r.Rollups)+len(r.Quarantined)+len(r.Notices) > 0 ||
		r.Capacity != nil || r.InventoryBegin || r.InventoryEnd || r.QuarantineComplete {
		return false
	}
	lease := s.cfg.Lease()
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.sessions[p.region]
	if !ok || now.Sub(k.at) > lease || checkSession(k.region, p) != nil {
		return false
	}
	k.region.ReceivedRevision = max(k.region.ReceivedRevision, r.ReceivedRevision)
	k.region.LastReportAt = now.UnixMilli()
	k.region.Capacity = nil
	s.renewals[p.region] = k.region
	s.metrics.heartbeats.Inc()
	return true
}

// checkSession returns an error if a report is not of the region's current session.
func checkSession(region model.Region, p *pending) error {
	switch {
	case p.issuedAt < region.CredentialNotBefore:
		return rpc.Error(connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "", "the agent credential was revoked: join the region again")
	case !region.InSession(model.Region{SessionID: p.req.SessionId, SessionEpoch: p.req.Epoch, SessionFence: p.req.Fence}):
		return rpc.Error(connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_STALE_SESSION, "fence", "the session is no longer the region's current one: watch again")
	case region.SessionSequence < p.req.PreviousSequence:
		return rpc.Error(connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_STALE_SESSION, "previous_sequence", "an earlier report of the session is lost: watch again")
	}
	return nil
}

// Run renews leases until ctx ends, and then closes the queue. Waiting reports are refused as unavailable,
// and their agents send them again.
func (s *Service) Run(ctx context.Context) error {
	s.renewLeases(ctx)
	s.queue.Close()
	return nil
}

// renewLeases flushes the queued lease renewals each heartbeatFlush until ctx ends.
func (s *Service) renewLeases(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(heartbeatFlush):
		}
		s.mu.Lock()
		due := s.renewals
		s.renewals = map[string]model.Region{}
		s.mu.Unlock()
		if len(due) == 0 {
			continue
		}
		if err := s.flush(ctx, due); err != nil && ctx.Err() == nil {
			s.cfg.Log.WarnContext(ctx, "cannot renew leases", "regions", len(due), "error", err)
		}
	}
}

// flush renews leases together, and refreshes the cached sessions. It does not renew a session whose stored sequence
// is lower than the cached one, because then the database was restored from a backup, and later reports are lost. A
// renewal with the cached sequence would hide that for ever. The next report of such a session is refused.
func (s *Service) flush(ctx context.Context, due map[string]model.Region) error {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	ids := slices.Sorted(maps.Keys(due))
	var current []model.Region
	err := s.cfg.Store.Update(ctx, func(tx Tx) (err error) {
		before, err := tx.CheckSessions(ids)
		if err != nil {
			return err
		}
		var kept []model.Region
		for _, b := range before {
			if r := due[b.ID]; b.InSession(r) && b.SessionSequence >= r.SessionSequence {
				kept = append(kept, r)
			}
		}
		if err = tx.NoteReports(kept, s.cfg.Lease().Milliseconds()); err != nil {
			return err
		}
		if err = wakeReturned(tx, before, kept, time.Now().UnixMilli()); err != nil {
			return err
		}
		current, err = tx.CheckSessions(ids)
		return err
	})
	if err != nil {
		return err
	}
	s.rememberCurrent(current)
	return nil
}

func (s *Service) rememberCurrent(current []model.Region) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range current {
		s.sessions[r.ID] = known{region: r, at: now}
	}
}
