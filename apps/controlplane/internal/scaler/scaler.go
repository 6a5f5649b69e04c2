// Package scaler decides how many replicas scaled apps have in their regions.
//
//	Report ─> ingest ─> Observe        keeps the newest load of each (app, region), and must not block. Passes on
//	                      │            loads of a region whose stream is on another process
//	                    step           reads apps that changed, in a few queries for all of them
//	                      │            decides for what was observed or is due (package scaling)
//	                      v
//	                    Rescale        one transaction for each number or limit that changed
//
// Windows are in memory, on the process that has the region's stream, which alone decides about the region.
// After the stream has moved, windows fill again, and until then replicas stay. A decision is written only if
// the app has not changed since it was read. So late processes, deploys and people never undo each other's changes.
//
// A step reads the apps that a commit changed, up to 500 in one query. Nudges report the commits of other
// processes, but may be lost. So a load also makes its app be read, if that was last read a minute ago.
package scaler

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/scaling"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Apps reads scaled apps and writes decisions.
type Apps interface {
	// ScaledApps returns those of the apps that have a policy and a live version.
	ScaledApps(ctx context.Context, ids []string) ([]model.ScaledApp, error)
	// Rescale fails with model.ErrStale if the app has changed since the decision read it.
	Rescale(ctx context.Context, r model.Rescale) error
}

// Needs are the parts that a Service uses while it runs. They exist after it, because some of them call it.
type Needs struct {
	Apps Apps
	// Holds reports whether the region's stream is on this process.
	Holds func(regionID string) bool
	// PassOn passes loads on to the process that has the region's stream. It returns how many loads it dropped. It
	// must not block. nil: there are no other processes.
	PassOn func(regionID string, loads []*agentv1.LoadReport) (dropped int)
}

// Config is of a Service.
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
	// readAgain is how long the read state of an app is valid, if no commit is known to have changed it.
	readAgain = time.Minute
	// writesAtOnce bounds the transactions that are under way.
	writesAtOnce = 8
	// writeTimeout bounds one transaction.
	writeTimeout = 10 * time.Second
	// forgetAfter is how long an app's load is kept after the region's last report of it.
	forgetAfter = 10 * time.Minute
	// limitEvery is the shortest time between two history entries for a limit alone.
	limitEvery = 5 * time.Minute
	// lateFor is for how long after a load an older one of its app and region is late, because it took another way.
	// Later, it means that the agent's clock was set back. It is shorter than scaling.Fresh.
	lateFor = 15 * time.Second
	// refusedFor is how long a refusal is assumed to hold.
	refusedFor = time.Minute
	// maxTargets and maxNone bound the memory, because a report may name apps that do not exist.
	maxTargets = 200_000
	maxNone    = 50_000
	// maxStrays is how many apps that are not scaled in a region it may name within strayFor: each costs a read,
	// and a tenant's own agent may name any. One report may have as many loads.
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
	targets map[place]*target
	strays  map[string]*strays // by region id
	// asking has the ids of workspaces whose queries are under way.
	asking map[string]bool
}

// strays counts the apps of a region's reports that are not known to be scaled there.
type strays struct {
	since time.Time
	n     int
}

// place is an app in a region.
type place struct{ app, region string }

// app is a scaled app as it was read.
type app struct {
	model.ScaledApp

	readAt time.Time
	// policies are by region id.
	policies map[string]*scaling.Policy
}

// target is an app in a region, with the last decision for it.
type target struct {
	window scaling.Window
	kept   scaling.Kept
	// load is the newest report until it is added to the window. heard is when it came, and at is its time by the
	// agent's clock, in Unix ms.
	load  *agentv1.LoadReport
	heard time.Time
	at    int64
	// results are of the queries of metrics, by query.
	results map[string]result
	next    time.Time
	// retryAt is when a decision may be written again after a failed write.
	retryAt time.Time
	// writing is true while a decision is being written.
	writing bool
	// stray is true while the app is counted in strays, until it was read.
	stray bool
	// shown is the newest decision, for people. recorded is compared with the next decision, which gets a
	// history entry if it differs.
	shown      *windlassv1.RegionScaling
	recorded   record
	quota      *int
	quotaUntil time.Time
	// closedUntil is until when the region counts as closed, after a refusal.
	closedUntil time.Time
	// silent marks, by index, the missing metrics that already have a history entry.
	silent [scaling.MaxMetrics]bool
}

// record is the part of a decision that the next one is compared with.
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
		apps: map[string]*app{}, dirty: map[string]bool{}, none: map[string]time.Time{}, targets: map[place]*target{}, strays: map[string]*strays{}, asking: map[string]bool{},
	}, nil
}

// Observe takes loads that a region reported to this process. If the region's stream is on another process, it
// passes them on. It returns how many of them were dropped. It does not block.
func (s *Service) Observe(regionID string, loads []*agentv1.LoadReport) (dropped int) {
	needs := s.needs.Load()
	switch {
	case needs == nil:
		return len(loads)
	case needs.Holds(regionID):
		return s.Take(regionID, loads)
	case needs.PassOn != nil:
		return needs.PassOn(regionID, loads)
	}
	return len(loads)
}

// Take stores loads of a region whose stream is on this process. It returns how many of them it dropped: those of
// apps that are known not to be scaled there, and new ones above maxTargets and maxStrays. A load that is older than the
// last one is ignored. It does not block.
func (s *Service) Take(regionID string, loads []*agentv1.LoadReport) (dropped int) {
	now := time.Now()
	s.mu.Lock()
	for _, load := range loads {
		at := place{load.GetAppId(), regionID}
		t := s.targets[at]
		a := s.apps[at.app]
		old := a == nil || now.Sub(a.readAt) >= readAgain
		elsewhere := !old && a.policies[regionID] == nil && !s.dirty[at.app]
		if now.Sub(s.none[at.app]) < readAgain || elsewhere || t == nil && len(s.targets) >= maxTargets {
			dropped++
			continue
		}
		if t == nil {
			t = &target{stray: a == nil || a.policies[regionID] == nil}
			if t.stray && !s.addStray(regionID, now) {
				dropped++
				continue
			}
			s.targets[at] = t
		}
		if load.GetAt() < t.at && now.Sub(t.heard) < lateFor {
			continue
		}
		if old {
			s.dirty[at.app] = true
		}
		t.load, t.heard, t.at = load, now, load.GetAt()
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return dropped
}

// addStray counts a stray of the region, and reports whether it may have one more. Called with mu held.
func (s *Service) addStray(regionID string, now time.Time) bool {
	in := s.strays[regionID]
	if in == nil || now.Sub(in.since) >= strayFor {
		in = &strays{since: now}
		s.strays[regionID] = in
	}
	if in.n >= maxStrays {
		return false
	}
	in.n++
	return true
}

// noStray takes a target out of the count, because its app is scaled there. Called with mu held.
func (s *Service) noStray(at place, t *target) {
	if in := s.strays[at.region]; t.stray && in != nil {
		in.n = max(in.n-1, 0)
	}
	t.stray = false
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
			if t := s.targets[place{appID, region}]; t != nil && t.shown != nil {
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
	a, t := s.apps[appID], s.targets[place{appID, regionID}]
	if a == nil || a.policies[regionID] == nil || t == nil || t.shown == nil {
		return nil
	}
	if now.Sub(t.heard) > scaling.Fresh || now.Sub(time.UnixMilli(t.shown.GetAt())) > scaling.Fresh {
		return nil
	}
	return t.shown
}

// Run decides until ctx ends. All fields of needs but PassOn are required.
func (s *Service) Run(ctx context.Context, needs Needs) error {
	if needs.Apps == nil || needs.Holds == nil {
		return errors.New("scaler: Apps and Holds are required")
	}
	s.needs.Store(&needs)
	if s.cfg.Metrics != nil {
		var asking sync.WaitGroup
		defer asking.Wait()
		asking.Go(func() { s.ask(ctx, needs.Holds) })
	}
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
		if err := s.step(ctx, needs); err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn("cannot scale apps", "error", err)
		}
		timer.Reset(every)
	}
}

// step reads what changed, decides, and writes.
func (s *Service) step(ctx context.Context, needs Needs) error {
	if err := s.read(ctx, needs.Apps); err != nil {
		return err
	}
	writes := s.decide(time.Now(), needs.Holds)
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

// read reads the apps that changed. A read that fails leaves them to the next step.
func (s *Service) read(ctx context.Context, apps Apps) error {
	for {
		s.mu.Lock()
		ids := slices.Sorted(maps.Keys(s.dirty))
		ids = ids[:min(len(ids), readAtOnce)]
		for _, id := range ids {
			delete(s.dirty, id)
		}
		s.mu.Unlock()
		if len(ids) == 0 {
			return nil
		}
		now := time.Now()
		found, err := apps.ScaledApps(ctx, ids)
		s.mu.Lock()
		if err != nil {
			for _, id := range ids {
				s.dirty[id] = true
			}
		} else {
			s.take(ids, found, now)
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// take stores what was read of the apps.
func (s *Service) take(ids []string, found []model.ScaledApp, now time.Time) {
	have := map[string]bool{}
	for _, f := range found {
		have[f.AppID] = true
		a := &app{ScaledApp: f, readAt: now, policies: map[string]*scaling.Policy{}}
		for id := range f.Regions {
			policy, fault := scaling.New(f.Scaling.Policy, id)
			if fault != nil {
				// The API checks policies. Only a newer release can have written one that is not valid here.
				s.cfg.Log.Warn("cannot use scaling policy", "app_id", f.AppID, "error", fault)
				continue
			}
			a.policies[id] = &policy
		}
		s.apps[f.AppID] = a
		delete(s.none, f.AppID)
	}
	for _, id := range ids {
		if !have[id] {
			delete(s.apps, id)
			if len(s.none) >= maxNone {
				clear(s.none) // apps that are reported again are read again
			}
			s.none[id] = now
		}
	}
}

// write is a decision to write.
type write struct {
	at place
	model.Rescale

	decision scaling.Decision
	heard    time.Time
	// missing is the index of the metric that the history entry is about, -1 for none.
	missing int
}

// decide decides for each app and region that was observed, or is due. It returns the decisions to write, in the
// order of apps and regions.
func (s *Service) decide(now time.Time, holds func(regionID string) bool) (writes []write) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.strays, func(_ string, in *strays) bool { return now.Sub(in.since) >= strayFor })
	for at, t := range s.targets {
		a := s.apps[at.app]
		if a == nil || a.policies[at.region] == nil || now.Sub(t.heard) > forgetAfter || !holds(at.region) {
			if !s.dirty[at.app] {
				s.metrics.forget(at.app, t.shown)
				delete(s.targets, at)
			}
			continue
		}
		s.noStray(at, t)
		policy := a.policies[at.region]
		observed := t.load != nil
		if observed {
			sample := sampleOf(t.load, a.Deployments, t.heard)
			sample.Results = t.fresh(policy, now)
			t.window.Add(sample, policy.Up.Window)
			t.load = nil
		}
		if t.writing || s.dirty[at.app] || !observed && now.Before(t.next) {
			continue
		}
		if w, ok := s.decideFor(at, a, t, policy, now); ok {
			t.writing = true
			writes = append(writes, w)
		}
	}
	slices.SortFunc(writes, func(a, b write) int {
		return cmp.Or(cmp.Compare(a.at.app, b.at.app), cmp.Compare(a.at.region, b.at.region))
	})
	return writes
}

func (s *Service) decideFor(at place, a *app, t *target, policy *scaling.Policy, now time.Time) (write, bool) {
	region := a.Regions[at.region]
	state := scaling.State{Desired: int(region.Replicas), StartupBudget: a.StartupBudget, Kept: t.kept}
	if until := a.Scaling.HeldUntil(at.region, now.UnixMilli()); until > 0 {
		state.HoldUntil = time.UnixMilli(until)
	}
	if region.Moving {
		state.Floor = int(region.Replicas)
	}
	if t.quota != nil && now.Before(t.quotaUntil) {
		state.Quota = t.quota
	}
	state.Closed = now.Before(t.closedUntil)
	d := scaling.Decide(policy, &t.window, state, now)
	t.kept, t.next = d.Unwritten, d.Next
	t.shown = show(d, region.Name)
	for i, want := range d.Wants {
		if want.Missing {
			t.shown.Wants[i].Problem = t.results[want.Metric.Query].problem
		}
	}
	s.metrics.note(a, region.Name, d)
	if now.Before(t.retryAt) {
		return write{}, false
	}
	writes := d.Wanted != d.Desired && a.Scaling.Active()
	what, missing := t.what(d, now, writes, a.Scaling.Active())
	if what == "" && !writes {
		return write{}, false
	}
	return write{at: at, decision: d, heard: t.heard, missing: missing, Rescale: model.Rescale{
		AppID: a.AppID, WorkspaceID: a.WorkspaceID, RegionID: at.region, From: region.Replicas, Generation: region.Generation,
		ScalingAt: a.Scaling.UpdatedAt, Writes: writes, What: what, Decision: t.shown,
	}}, true
}

// what returns the kind of the decision's history entry, empty for none. There is an entry for another
// number, also if the policy only advises, for a metric that has long been missing, and for another limit.
// missing is the index of that metric, -1 for none.
func (t *target) what(d scaling.Decision, now time.Time, writes, active bool) (what string, missing int) {
	if writes || !active && d.Wanted != t.recorded.wanted && !t.recorded.at.IsZero() {
		return "ScalingDecided", -1
	}
	for i, want := range d.Wants {
		if t.silent[i] && !want.Missing {
			t.silent[i] = false
		}
		if want.Notice(now) && !t.silent[i] {
			return "ScalingMetricMissing", i
		}
	}
	limit := lasting(d.Limit)
	switch {
	case t.recorded.at.IsZero():
		// The first decision of this process gets an entry only if it is limited.
		if limit == scaling.None {
			t.recorded = record{now, d.Wanted, limit}
			return "", -1
		}
		return "ScalingLimited", -1
	case limit != t.recorded.limit && now.Sub(t.recorded.at) >= limitEvery:
		return "ScalingLimited", -1
	}
	return "", -1
}

// write writes one decision, and records the outcome.
func (s *Service) write(ctx context.Context, apps Apps, w write) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := apps.Rescale(ctx, w.Rescale)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.targets[w.at]
	if t != nil {
		t.writing = false
	}
	outcome := outcomeOf(w, err)
	s.metrics.decisions.WithLabelValues(outcome).Inc()
	if err != nil || w.Writes {
		// The app is read again before the next decision.
		if s.apps[w.at.app] != nil {
			s.dirty[w.at.app] = true
		}
	}
	if t == nil {
		return
	}
	if err == nil {
		t.recorded = record{now, w.decision.Wanted, lasting(w.decision.Limit)}
		if w.missing >= 0 {
			t.silent[w.missing] = true
		}
		if w.Writes {
			t.kept = w.decision.Kept
			s.metrics.delay.Observe(now.Sub(w.heard).Seconds())
		}
		return
	}
	t.next = now.Add(every)
	if errors.Is(err, model.ErrStale) {
		return
	}
	if quota, ok := quotaOf(err, s.apps[w.at.app], w); ok {
		t.quota, t.quotaUntil = &quota, now.Add(refusedFor)
		return
	}
	if rpc.DetailOf(err).GetReason() == windlassv1.ErrorReason_ERROR_REASON_REGION_CLOSED {
		t.closedUntil = now.Add(refusedFor)
		return
	}
	if outcome == "refused" {
		t.retryAt = now.Add(refusedFor)
		s.cfg.Log.Info("scaling decision refused", "app_id", w.AppID, "region_id", w.RegionID, "error", err)
		return
	}
	t.retryAt = now.Add(10 * every)
	if ctx.Err() == nil || errors.Is(err, context.DeadlineExceeded) {
		s.cfg.Log.Warn("cannot write scaling decision", "app_id", w.AppID, "region_id", w.RegionID, "error", err)
	}
}

func outcomeOf(w write, err error) string {
	switch {
	case errors.Is(err, model.ErrStale):
		return "conflict"
	case err != nil && rpc.DetailOf(err) != nil && connect.CodeOf(err) != connect.CodeInternal:
		return "refused"
	case err != nil:
		return "error"
	case !w.Writes:
		return "kept"
	case w.decision.Wanted > w.decision.Desired:
		return "up"
	}
	return "down"
}

// quotaOf returns how many replicas the quota allows in the region, from the error of a refused decision.
func quotaOf(err error, a *app, w write) (replicas int, ok bool) {
	detail := rpc.DetailOf(err)
	if detail.GetReason() != windlassv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED || a == nil {
		return 0, false
	}
	region := a.Regions[w.RegionID]
	free, each := max(detail.GetLimit().GetMax()-detail.GetLimit().GetUsed(), 0), region.Instances
	if detail.GetLimit().GetName() == "gpus" {
		each = region.GPUs
	}
	return int(region.Counted) + int(free/max(each, 1)), true
}
