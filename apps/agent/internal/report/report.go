// Package report tells the control plane what the region runs: coalesced,
// batched, and at once when somebody waits for it.
//
// One report is in flight at a time, which is the flow control. A report that
// was not answered is sent again as it was, under the same sequence, since the
// control plane may have stored it: what is new meanwhile goes into the next.
// Only an answered report moves the picture of what the control plane knows, so
// a lost one is never a lost change.
//
// A session begins with a complete inventory, in as many reports as the limits
// ask for. What changes while it runs is told after it. There is another when a
// report was left unanswered as its stream ended, since what it named may be
// stored and may be gone by now; and one now and then, as the net under all this.
package report

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/backoff"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Source is what there is to report.
type Source interface {
	// Observation is what runs. A list of instances is never changed once it was
	// returned, and one that is returned again says that nothing of its deployment
	// changed: finding what did then costs by the deployments that did, and not by the
	// instances that there are. A source that makes its lists anew each time has them
	// compared. An instance is of one deployment at a time.
	Observation() (runtime.Observation, bool)
	Applied() []*agentv1.AppliedState
	// Quarantined is everything quarantined; ok is false while that is not known.
	Quarantined() (keys []*agentv1.QuarantinedKey, ok bool)
	// Changed is signalled when any of them would tell something new.
	Changed() <-chan struct{}
}

// Config of a Reporter.
type Config struct {
	Source Source
	// Send makes the call. An error of code FailedPrecondition or Unauthenticated
	// ends the session; any other is tried again.
	Send func(ctx context.Context, req *agentv1.ReportRequest) (*agentv1.ReportResponse, error)
	// Received is the resume cursor's revision.
	Received   func() int64
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Rand       func() float64
	// Retry spaces out attempts: 200 ms to 4 s, below a third of a lease.
	Retry backoff.Policy
	// SendTimeout bounds one attempt: 10 s.
	SendTimeout time.Duration
	// Resync is the shortest time between two inventories of a session; the
	// longest is twice that: 15 min.
	Resync time.Duration
}

// Reporter reports for one session after the other.
type Reporter struct {
	cfg      Config
	sequence int64
	// previous is the last answered report that said anything, since the
	// inventory began: what a control plane that lost it has lost.
	previous int64
	session  Session
	latency  prometheus.Histogram

	mu     sync.Mutex
	limits *agentv1.ReportLimits
	ttl    time.Duration

	// latest is the picture that was taken last; reported is what the control plane
	// has stored of it, as far as we know.
	latest   picture
	reported picture
	complete bool // the session's inventory was stored
}

// Session is what a Hello gave.
type Session struct {
	ID           string
	Epoch, Fence int64
	Resumed      bool
	LeaseTTL     time.Duration
	Limits       *agentv1.ReportLimits
}

// ErrSessionOver says that the control plane refuses this session's reports.
var ErrSessionOver = errors.New("the control plane no longer accepts this session's reports")

// New checks the config.
func New(cfg Config) (*Reporter, error) {
	if cfg.Source == nil || cfg.Send == nil || cfg.Received == nil || cfg.Log == nil || cfg.Registerer == nil || cfg.Rand == nil {
		return nil, errors.New("report: every field of Config without a default is required")
	}
	if cfg.Retry == (backoff.Policy{}) {
		cfg.Retry = backoff.Policy{Min: 200 * time.Millisecond, Max: 4 * time.Second}
	}
	if cfg.SendTimeout == 0 {
		cfg.SendTimeout = 10 * time.Second
	}
	if cfg.Resync == 0 {
		cfg.Resync = 15 * time.Minute
	}
	r := &Reporter{cfg: cfg, latest: emptyPicture(), reported: emptyPicture(), latency: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "windlass_agent_report_duration_seconds", Help: "Time until a report was answered, retries included.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
	})}
	cfg.Registerer.MustRegister(r.latency)
	return r, nil
}

// Run reports for one session until ctx ends (nil) or the control plane refuses
// it (ErrSessionOver). Calls must not overlap.
func (r *Reporter) Run(ctx context.Context, s Session) error {
	if !s.Resumed || s.ID != r.session.ID || s.Epoch != r.session.Epoch || s.Fence != r.session.Fence {
		r.complete = false
	}
	if s.ID != r.session.ID || s.Fence != r.session.Fence {
		r.sequence, r.previous = 0, 0
	}
	r.session = s
	r.adopt(s.Limits, s.LeaseTTL)
	for ctx.Err() == nil {
		if !r.complete {
			if err := r.inventory(ctx); err != nil || ctx.Err() != nil {
				return over(ctx, err)
			}
		}
		if err := r.changes(ctx); err != nil {
			return over(ctx, err)
		}
		if ctx.Err() == nil {
			r.complete = false // another inventory is due
		}
	}
	return nil
}

// over makes the end of ctx a clean end.
func over(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the end of ctx is an order, and err what came of it
	}
	return err
}

// inventory reports everything, in chunks of the limits' size.
func (r *Reporter) inventory(ctx context.Context) error {
	var now picture
	for {
		var ok bool
		if now, ok = r.take(); ok {
			break
		}
		// The region is alive although its runtime does not answer yet.
		select {
		case <-ctx.Done():
			return nil
		case <-r.cfg.Source.Changed():
		case <-time.After(r.beat()):
			if err := r.send(ctx, &agentv1.ReportRequest{}); err != nil {
				return err
			}
		}
	}
	all := compare(emptyPicture(), now)
	all.capacity = now.capacity
	all.quarantine, all.quarantined = now.judged, now.quarantined
	// A notice is of what happened, not of what is: a new session knows what was told.
	all.notices = unsaid(r.reported.notices, now.notices)
	since, begin := r.sequence+1, true
	r.previous = 0
	size, _ := r.pace()
	for req, last := range all.reports(size) {
		req.InventoryBegin, begin = begin, false
		if last {
			req.InventoryEnd, req.InventorySince = true, since
		}
		if err := r.send(ctx, req); err != nil {
			return err
		}
	}
	r.reported, r.complete = now, true
	return nil
}

// changes reports what is new, and that we live, until a new inventory is due.
func (r *Reporter) changes(ctx context.Context) error {
	var flushed time.Time // last report of a change
	spoke, beat := time.Now(), r.beat()
	resync := spoke.Add(r.cfg.Resync + time.Duration(r.cfg.Rand()*float64(r.cfg.Resync)))
	for time.Now().Before(resync) {
		if now, ok := r.take(); ok {
			d := compare(r.reported, now)
			if d.empty() {
				// What went to and fro need not be looked into again.
				r.reported.deployments = now.deployments
			}
			if size, interval := r.pace(); !d.empty() && (d.edge || len(d.instances) >= size || time.Since(flushed) >= interval) {
				// Until all of it is answered, what the control plane holds is between the
				// two pictures: only an inventory would tell it of what vanishes meanwhile.
				r.complete = false
				for req := range d.reports(size) {
					if err := r.send(ctx, req); err != nil {
						return err
					}
				}
				r.reported, r.complete = now, true
				flushed = time.Now()
				spoke, beat = flushed, r.beat()
				continue
			}
		}
		// Due at a fixed time: a source that always has something to look at, and
		// never anything to say, must not put off the sign of life.
		wait := min(time.Until(spoke.Add(beat)), time.Until(resync))
		if _, interval := r.pace(); time.Since(flushed) < interval {
			wait = min(wait, interval-time.Since(flushed))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.cfg.Source.Changed():
		case <-time.After(wait):
		}
		if time.Since(spoke) >= beat {
			if err := r.send(ctx, &agentv1.ReportRequest{}); err != nil {
				return err
			}
			spoke, beat = time.Now(), r.beat()
		}
	}
	return nil
}

func (r *Reporter) take() (picture, bool) {
	now, ok := take(r.cfg.Source, r.latest)
	if ok {
		r.latest = now
	}
	return now, ok
}

// beat is the time to the next sign of life: a third of the lease at most, with
// some jitter.
func (r *Reporter) beat() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(time.Duration(float64(r.ttl)/3*(0.8+0.2*r.cfg.Rand())), 100*time.Millisecond)
}

// pace returns how many instances a report may hold, and the coalescing interval.
func (r *Reporter) pace() (size int, interval time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	size = int(r.limits.GetMaxInstances())
	if size <= 0 {
		size = 1000
	}
	return size, r.limits.GetMinInterval().AsDuration()
}

func (r *Reporter) adopt(limits *agentv1.ReportLimits, ttl time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if limits != nil {
		r.limits = limits
	}
	if ttl > 0 {
		r.ttl = ttl
	}
	if r.ttl == 0 {
		r.ttl = 15 * time.Second
	}
}

// Reported is the sequence of the last answered report that said anything, 0
// when the next thing said is an inventory. Call it while Run does not run.
func (r *Reporter) Reported() int64 {
	if !r.complete {
		return 0
	}
	return r.previous
}

// says tells a report from a mere sign of life. Notices alone do not count: a control
// plane of an earlier release, which does not know them, has not lost anything then.
func says(req *agentv1.ReportRequest) bool {
	return len(req.Applied)+len(req.Instances)+len(req.Rollups) > 0 || req.Capacity != nil || req.InventoryEnd || req.QuarantineComplete
}

// send makes the report, until it is answered, refused, or ctx ends.
func (r *Reporter) send(ctx context.Context, req *agentv1.ReportRequest) error {
	r.sequence++
	req.SessionId, req.Epoch, req.Fence, req.Sequence = r.session.ID, r.session.Epoch, r.session.Fence, r.sequence
	req.ReceivedRevision, req.PreviousSequence = r.cfg.Received(), r.previous
	start := time.Now()
	for attempt := 0; ; attempt++ {
		bounded, cancel := context.WithTimeout(ctx, r.cfg.SendTimeout)
		resp, err := r.cfg.Send(bounded, req)
		cancel()
		if err == nil {
			r.latency.Observe(time.Since(start).Seconds())
			if says(req) {
				r.previous = req.Sequence
			}
			r.adopt(resp.Limits, resp.LeaseTtl.AsDuration())
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch connect.CodeOf(err) {
		case connect.CodeFailedPrecondition, connect.CodeUnauthenticated, connect.CodeNotFound, connect.CodePermissionDenied:
			return errors.Join(ErrSessionOver, err)
		case connect.CodeInvalidArgument:
			// It will be as invalid the next time. The next stream tells everything anew.
			r.complete = false
			return errors.Join(ErrSessionOver, fmt.Errorf("report %d is invalid: %w", req.Sequence, err))
		}
		wait := r.cfg.Retry.Delay(attempt, r.cfg.Rand)
		r.cfg.Log.WarnContext(ctx, "cannot report; will try again", "error", err, "retry_in", wait)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}
