// Package report tells the control plane what the region runs: coalesced,
// batched, and at once when a rollout may wait for it.
//
// One report is in flight at a time, which is the flow control. A report that
// was not answered is sent again as it was, under the same sequence, since the
// control plane may have stored it: what is new meanwhile goes into the next.
// Only an answered report moves the picture of what the control plane knows, so
// a lost one is never a lost change.
//
// A session begins with a complete inventory, in as many reports as the limits
// ask for. What changes while it runs is told after it. There is another inventory:
//
//   - when a stream ended before a report was answered, because what it named may
//     be stored, and may be gone by now
//   - when the control plane wants a deployment that ran while it did not know it,
//     as after a restored backup
//   - from time to time, in case anything else was missed
//
// An agent that holds nothing of what its region should run gives signs of life only,
// until it does or longestHeld has passed. An earlier inventory would compete with the
// snapshot for both sides' processors, and would be out of date at the snapshot's end:
// each key would be told once as unknown, and once more as applied.
//
// # When the control plane is behind
//
// What is told of a region is of two kinds. Facts are what decisions read: applied
// states, counts, capacity, notices. Instances are for people, and there are many of
// them: they are told in passes, from one picture to another, in parts. Facts go with
// the first part, and those that a rollout may wait for (edges) with each part, as they
// are at that time. While the control plane asks for a pause between instances, or has
// refused some and said for how long, edges go alone. What is held back is a picture
// and not a queue: however long it lasts and however often things change, it is one
// state of each instance, the last one.
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
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Source is what there is to report.
type Source interface {
	// Observation returns what runs. A list of instances must not change once it was
	// returned. A list that is returned again means that nothing of its deployment
	// changed, and its instances are not compared. Those of a new list are. An instance
	// is of one deployment at a time.
	Observation() (runtime.Observation, bool)
	Applied() []*agentv1.AppliedState
	// Quarantined is everything quarantined; ok is false while that is not known.
	Quarantined() (keys []*agentv1.QuarantinedKey, ok bool)
	// HeldSince returns a number for the time since which the control plane wants something of
	// the deployment, without a break. ok is false while it wants nothing.
	HeldSince(deploymentID string) (number int64, ok bool)
	// Changed is signalled when any of them would tell something new.
	Changed() <-chan struct{}
}

// Loads are reports of the load of scaled apps. They are sent in reports of their own. No inventory has them,
// because the next load replaces one that is lost.
type Loads interface {
	// Due returns the loads that must be sent now. Answered records that the control plane has answered a report with
	// these loads.
	Due() []*agentv1.LoadReport
	Answered([]*agentv1.LoadReport)
	// Reset begins a session, in which the control plane has received no loads yet.
	Reset()
	// Changed is signalled when Due may return something new.
	Changed() <-chan struct{}
}

// Config of a Reporter.
type Config struct {
	Source Source
	// Loads is nil where no app is scaled.
	Loads Loads
	// Send makes the call. An error of code FailedPrecondition or Unauthenticated
	// ends the session; one of reason RATE_LIMITED says that nothing was stored; any
	// other is tried again.
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
	// previous is the sequence of the last answered report that said anything, since
	// the inventory began. A control plane that has not stored it has lost reports.
	previous int64
	session  Session
	// heard is signalled by Heard; a buffer of one.
	heard   chan struct{}
	latency prometheus.Histogram

	mu     sync.Mutex
	limits *agentv1.ReportLimits
	ttl    time.Duration

	// latest is the picture that was taken last; reported is what the control plane
	// has stored of it, as far as we know.
	latest   picture
	reported picture
	complete bool // the session's inventory was stored
	// owed: the control plane wants a deployment again that was perhaps told while it did not
	// know it. It ignored those reports, and only an inventory repeats them.
	owed  bool
	holds holds
}

// Session is what a Hello gave.
type Session struct {
	ID           string
	Epoch, Fence int64
	Resumed      bool
	LeaseTTL     time.Duration
	Limits       *agentv1.ReportLimits
	// Held is closed once the agent holds what its region should run; nil: it does already.
	Held <-chan struct{}
}

// longestHeld is how long a session waits for its region's desired state at most: a region
// must not stay unknown because other regions get theirs first.
const longestHeld = 2 * time.Second

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
	r := &Reporter{cfg: cfg, latest: emptyPicture(), reported: emptyPicture(), heard: make(chan struct{}, 1), latency: registerLatency(cfg.Registerer)}
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
	if r.cfg.Loads != nil {
		r.cfg.Loads.Reset()
	}
	r.adoptLimits(s.Limits, s.LeaseTTL)
	r.holds = holds{}
	if pause := r.currentPace().pause; pause > 0 {
		// All agents come back at once to a control plane that is behind already.
		r.holds.parts = time.Now().Add(time.Duration(r.cfg.Rand() * float64(pause)))
	}
	return cleanEnd(ctx, r.runTalk(ctx))
}

// cleanEnd returns nil for an error that comes from the end of ctx.
func cleanEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // err is the result of the end of ctx
	}
	return err
}

func (r *Reporter) currentPicture() (picture, bool) {
	now, ok := takePicture(r.cfg.Source, r.latest)
	if ok {
		r.owed = r.owed || now.wantsAgain(r.latest)
		r.latest = now
	}
	return now, ok
}

// nextBeat returns the time to the next sign of life: a third of the lease at most, with some jitter.
func (r *Reporter) nextBeat() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(time.Duration(float64(r.ttl)/3*(0.8+0.2*r.cfg.Rand())), 100*time.Millisecond)
}

// pace is what the control plane asks for.
type pace struct {
	size            int // instances in a report
	interval, pause time.Duration
}

func (r *Reporter) currentPace() pace {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := pace{size: int(r.limits.GetMaxInstances()), interval: r.limits.GetMinInterval().AsDuration(), pause: r.limits.GetPause().AsDuration()}
	if p.size <= 0 {
		p.size = 1000
	}
	return p
}

func (r *Reporter) adoptLimits(limits *agentv1.ReportLimits, ttl time.Duration) {
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

// Heard says that the control plane gave a sign of life, which it gives to many sessions at
// once. If ours is due soon, it is given in answer. So those of many agents come together,
// and an idle control plane wakes up once for all of them. Heard never blocks.
func (r *Reporter) Heard() {
	select {
	case r.heard <- struct{}{}:
	default:
	}
}

// saysMore reports whether a report is more than a sign of life. Notices alone do not count,
// because a control plane of an earlier release does not store them, and has lost nothing.
func saysMore(req *agentv1.ReportRequest) bool {
	return len(req.Applied)+len(req.Instances)+len(req.Rollups) > 0 || req.Capacity != nil || req.InventoryEnd || req.QuarantineComplete
}

// refusal is an answer that says that nothing of a report was stored.
type refusal struct {
	cause error
	after time.Duration
}

func (r *refusal) Error() string { return fmt.Sprintf("refused for %s: %v", r.after, r.cause) }
func (r *refusal) Unwrap() error { return r.cause }

func asRefusal(err error) (*refusal, bool) {
	if rpc.ReasonOf(err) != windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED {
		return nil, false
	}
	after := time.Duration(rpc.DetailOf(err).GetLimit().GetRetryAfterMs()) * time.Millisecond
	return &refusal{cause: err, after: max(after, shortestRefusal)}, true
}

// sendReport sends the report, again and again until it is answered, refused (a *refusal), or ctx ends.
func (r *Reporter) sendReport(ctx context.Context, req *agentv1.ReportRequest) error {
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
			if saysMore(req) {
				r.previous = req.Sequence
			}
			if len(req.Loads) > 0 {
				r.cfg.Loads.Answered(req.Loads)
			}
			r.adoptLimits(resp.Limits, resp.LeaseTtl.AsDuration())
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if no, ok := asRefusal(err); ok {
			return no
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
