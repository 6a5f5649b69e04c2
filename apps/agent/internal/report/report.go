// Package report reports the state of the region to the control plane. It coalesces and batches
// changes. It sends a change at once if a rollout may wait for it.
//
// One report is in flight at a time, which limits the rate. A report that was not answered is sent
// again unchanged, with the same sequence, because the control plane may have stored it. Later
// changes go into the next report. Only the answer to a report updates the agent's picture of the
// control plane's knowledge. So no change is lost with a report.
//
// A session begins with a complete inventory, in as many reports as the limits require.
// Changes during the inventory are reported after it. Another inventory is sent:
//
//   - when a stream ended before a report was answered, because the control plane may have stored
//     instances of that report that no longer exist
//   - when the control plane assigns a deployment that it did not know before while it ran, for
//     example after its database was restored
//   - from time to time, in case a change was missed
//
// An agent that does not hold the region's desired state yet sends only signs of life, for
// longestHeld at most. An earlier inventory would take processor time from the snapshot on both
// sides. It would also be out of date at the end of the snapshot: each key would be reported once
// as unknown, and once more as applied.
//
// # When the control plane is behind
//
// Reports have two kinds of content: facts and instances. Facts are the basis of decisions: applied
// states, counts, capacity, notices. Instances are shown to people, and there are many of them.
// They are sent in passes. A pass sends, in parts, the instances that changed between two pictures.
//
// Facts go with the first part of a pass. Facts that a rollout may wait for (edges) go with every
// part, in their state at that time. The control plane may ask for a pause between instances, or
// refuse instances for a time. During that time, edges are sent alone.
//
// A delay stores one picture and no queue. So after a delay of any length, one state of each
// instance is sent: the last one.
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

// Source supplies what a Reporter reports.
type Source interface {
	// Observation returns the observed instances. ok is false while nothing was observed. A list of
	// instances must not change after it was returned. If the same list is returned again, the
	// deployment counts as unchanged, and its instances are not compared. An instance belongs to
	// one deployment at a time.
	Observation() (_ runtime.Observation, ok bool)
	// Applied returns the applied state of each key that the agent knows.
	Applied() []*agentv1.AppliedState
	// Quarantined returns all quarantined keys. ok is false while these are not known.
	Quarantined() (keys []*agentv1.QuarantinedKey, ok bool)
	// HeldSince returns the number of the inbox frame that brought the deployment, if the inbox has
	// held it ever since. ok is false while the inbox does not hold it.
	HeldSince(deploymentID string) (number int64, ok bool)
	// Changed is signalled when another method may return something new.
	Changed() <-chan struct{}
}

// Loads supplies the loads of scaled apps, which are sent in separate reports. An inventory has no
// loads, because the next load of an app replaces a lost one.
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
	// Loads may be nil if no app is scaled.
	Loads Loads
	// Send makes the call. An error with the code FailedPrecondition, Unauthenticated, NotFound,
	// PermissionDenied or InvalidArgument ends the session. An error with the reason RATE_LIMITED
	// means that nothing was stored. After any other error, the call is repeated.
	Send func(ctx context.Context, req *agentv1.ReportRequest) (*agentv1.ReportResponse, error)
	// Received returns the revision up to which the agent has received the desired state.
	Received   func() int64
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Rand       func() float64
	// Retry is the delay between attempts. Default: 200 ms to 4 s, which is less than a third of a
	// lease.
	Retry backoff.Policy
	// SendTimeout is the time limit of one attempt. Default: 10 s.
	SendTimeout time.Duration
	// Resync is the shortest time between two inventories of a session. The longest time is twice
	// as long. Default: 15 min.
	Resync time.Duration
}

// Reporter sends the reports of one session at a time.
type Reporter struct {
	cfg      Config
	sequence int64
	// previous is the sequence of a report: the last answered report, since the inventory began,
	// that was more than a sign of life. If the control plane has not stored this report, it has
	// lost reports.
	previous int64
	session  Session
	// heard is signalled by Heard, with a buffer of one.
	heard   chan struct{}
	latency prometheus.Histogram

	mu     sync.Mutex
	limits *agentv1.ReportLimits
	ttl    time.Duration

	// latest is the last picture that was taken. reported is the state that the control plane has
	// stored, according to its answers.
	latest          picture
	reported        picture
	inventoryStored bool // the session's inventory and all reports since then were answered
	// inventoryOwed means that the control plane assigned a deployment again, and may have ignored
	// earlier reports about it. Only an inventory repeats them.
	inventoryOwed bool
	delays        delays
}

// Session has the values from the Hello that began a session.
type Session struct {
	ID           string
	Epoch, Fence int64
	Resumed      bool
	LeaseTTL     time.Duration
	Limits       *agentv1.ReportLimits
	// Held is closed once the agent holds the region's desired state. Nil: the agent holds it
	// already.
	Held <-chan struct{}
}

// longestHeld is the longest time that a session waits for the region's desired state. It is short,
// because a region must not stay unknown while other regions receive their states first.
const longestHeld = 2 * time.Second

// ErrSessionOver means that the control plane refuses this session's reports.
var ErrSessionOver = errors.New("the control plane no longer accepts this session's reports")

// New checks the config and returns a Reporter.
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

// Run reports for one session. It returns nil when ctx ends, and ErrSessionOver when the control
// plane refuses the session. Calls must not overlap.
func (r *Reporter) Run(ctx context.Context, s Session) error {
	if !s.Resumed || s.ID != r.session.ID || s.Epoch != r.session.Epoch || s.Fence != r.session.Fence {
		r.inventoryStored = false
	}
	if s.ID != r.session.ID || s.Fence != r.session.Fence {
		r.sequence, r.previous = 0, 0
	}
	r.session = s
	if r.cfg.Loads != nil {
		r.cfg.Loads.Reset()
	}
	r.adoptLimits(s.Limits, s.LeaseTTL)
	r.delays = delays{}
	if pause := r.currentPace().pause; pause > 0 {
		// All agents reconnect at the same time, to a control plane that is behind already. So the
		// first wait is random.
		r.delays.instances = time.Now().Add(time.Duration(r.cfg.Rand() * float64(pause)))
	}
	return cleanEnd(ctx, r.runSession(ctx))
}

// cleanEnd returns nil if err was caused by the end of ctx.
func cleanEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // err is the result of the end of ctx
	}
	return err
}

func (r *Reporter) currentPicture() (picture, bool) {
	now, ok := takePicture(r.cfg.Source, r.latest)
	if ok {
		r.inventoryOwed = r.inventoryOwed || now.wantsAgain(r.latest)
		r.latest = now
	}
	return now, ok
}

// nextBeat returns the time to the next sign of life: a third of the lease at most, with jitter.
func (r *Reporter) nextBeat() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(time.Duration(float64(r.ttl)/3*(0.8+0.2*r.cfg.Rand())), 100*time.Millisecond)
}

// pace is the rate of reports that the control plane asks for.
type pace struct {
	size            int           // maximum number of instances in a report
	interval, pause time.Duration // between facts, and between parts of instances
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

// Reported returns the sequence of the last answered report that was more than a sign of life. It
// returns 0 if the next report begins an inventory. It must not be called while Run runs.
func (r *Reporter) Reported() int64 {
	if !r.inventoryStored {
		return 0
	}
	return r.previous
}

// Heard must be called when the control plane sends a sign of life, which it sends to many sessions
// at the same time. If the agent's own sign of life is due soon, the agent sends it now. So the
// signs of life of many agents arrive together, and an idle control plane wakes up once for all of
// them. Heard never blocks.
func (r *Reporter) Heard() {
	select {
	case r.heard <- struct{}{}:
	default:
	}
}

// saysMoreThanAlive reports whether a report is more than a sign of life. A report with nothing but
// notices counts as a sign of life, because a control plane of an earlier release does not store
// notices, and has lost nothing.
func saysMoreThanAlive(req *agentv1.ReportRequest) bool {
	return len(req.Applied)+len(req.Instances)+len(req.Rollups) > 0 || req.Capacity != nil || req.InventoryEnd || req.QuarantineComplete
}

// refusal is the error of a report that the control plane did not store. after is the time until
// the next attempt.
type refusal struct {
	cause error
	after time.Duration
}

func (r *refusal) Error() string { return fmt.Sprintf("refused for %s: %v", r.after, r.cause) }
func (r *refusal) Unwrap() error { return r.cause }

// asRefusal converts an error with the reason RATE_LIMITED. ok is false for other errors.
func asRefusal(err error) (*refusal, bool) {
	if rpc.ReasonOf(err) != windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED {
		return nil, false
	}
	after := time.Duration(rpc.DetailOf(err).GetLimit().GetRetryAfterMs()) * time.Millisecond
	return &refusal{cause: err, after: max(after, minRefusal)}, true
}

// sendReport repeats the report until it is answered or ctx ends. The error is a *refusal if the
// control plane refused the report, and ErrSessionOver if the session has ended.
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
			if saysMoreThanAlive(req) {
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
		if refused, ok := asRefusal(err); ok {
			return refused
		}
		switch connect.CodeOf(err) {
		case connect.CodeFailedPrecondition, connect.CodeUnauthenticated, connect.CodeNotFound, connect.CodePermissionDenied:
			return errors.Join(ErrSessionOver, err)
		case connect.CodeInvalidArgument:
			// A repeated report would be invalid again. The next session begins with an inventory.
			r.inventoryStored = false
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
