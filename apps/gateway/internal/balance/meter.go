package balance

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/orca"
)

const (
	// Measurements fade to 1/e in memoryAnswers times the mean time of an answer, because fewer
	// answers say little. That time is at least minMemory, because one bad second says little, too.
	// It is at most maxMemory, so that the gateway soon notices a throttled GPU.
	memoryAnswers        = 4
	minMemory, maxMemory = 20 * time.Second, 2 * time.Minute
	// prior is the number of imaginary answers, each of the mean time, that are added to the measurements of each
	// instance. So a new instance begins with the mean weight, and a single long prompt does not decide a weight.
	prior = 4
	// penalty is the cost of a failure. A measured failure costs as much time as one mean answer. For
	// ORCA reports, the share of failed requests is added to the utilization. gRFC A58's default.
	penalty = 1

	// blackout and expiry are the defaults of gRFC A58. Reports count only after an instance has
	// reported for blackout, so that its warm-up is ignored. A report is valid for expiry.
	blackout = 10 * time.Second
	expiry   = 3 * time.Minute

	// Reported weights are clamped to this range, because reports can be wrong. Sums of weights then
	// stay finite, and above 0.
	minReported, maxReported = 1e-9, 1e15
)

// meter measures the work that an instance does, and keeps its load reports. The measured weight is the number of
// answers divided by the time that requests spent at the instance, which includes requests in flight. So the weight
// of an instance that hangs falls at once, and not only when it answers. The weight does not depend on the load, as
// long as requests do not queue. If they queue, the shares settle when all instances have the same number of requests
// in flight.
//
// mu is held only briefly. weight is read without it.
type meter struct {
	weight atomic.Uint64 // bits of a float; 0: unknown

	mu sync.Mutex
	// inFlight counts the requests since begin. It can differ from Endpoint.InFlight, because the
	// meter can be younger than the requests.
	inFlight int
	// busy is the time, in seconds, that all requests together spent at the instance until advanced.
	busy     float64
	advanced time.Time
	// done and failed count requests. Both fade, as busy does. faded is when all three last faded.
	done, failed float64
	faded        time.Time
	// load is the last report, and reported is when it came. first is when the first report of its series
	// came. A series ends when a report expires.
	load            orca.Load
	first, reported time.Time
}

// ensureMeter returns the endpoint's meter, and creates it the first time.
func (e *Endpoint) ensureMeter() *meter {
	if m := e.meter.Load(); m != nil {
		return m
	}
	e.meter.CompareAndSwap(nil, &meter{})
	return e.meter.Load()
}

func (e *Endpoint) currentWeight() float64 {
	m := e.meter.Load()
	if m == nil {
		return 0
	}
	return math.Float64frombits(m.weight.Load())
}

// Forget drops measurements and reports, because another process runs in the instance's place.
func (e *Endpoint) Forget() {
	m := e.meter.Load()
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy, m.done, m.failed = 0, 0, 0
	m.load, m.first, m.reported = orca.Load{}, time.Time{}, time.Time{}
	m.weight.Store(0)
}

// advanceTo adds the time since the last call to busy. now can be earlier than in that call, because
// callers read the clock before they take the lock.
func (m *meter) advanceTo(now time.Time) {
	if m.advanced.IsZero() {
		m.advanced, m.faded = now, now
	}
	if passed := now.Sub(m.advanced); passed > 0 {
		m.busy += float64(m.inFlight) * passed.Seconds()
		m.advanced = now
	}
}

func (m *meter) begin(now time.Time) {
	m.mu.Lock()
	m.advanceTo(now)
	m.inFlight++
	m.mu.Unlock()
}

func (m *meter) endRequest(now time.Time, how Outcome) {
	m.mu.Lock()
	m.advanceTo(now)
	m.inFlight--
	switch how {
	case Served:
		m.done++
	case Failed:
		m.failed++
	case Ignored:
	}
	m.mu.Unlock()
}

// keepReport keeps a load report. A report that comes with a failed answer counts only if it lowers the
// weight, because a failure costs the instance little work.
func (m *meter) keepReport(now time.Time, load orca.Load, failed bool) {
	weight := reportedWeight(load, 0)
	if weight == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	stale := m.reported.IsZero() || now.Sub(m.reported) >= expiry
	if failed && (stale || weight >= reportedWeight(m.load, 0)) {
		return
	}
	if stale {
		m.first = now
	}
	m.load, m.reported = load, now
}

// reportedWeight returns the weight of a load report; 0: the report has none. failing is the measured
// share of requests that failed.
func reportedWeight(load orca.Load, failing float64) float64 {
	utilization, errors, ok := load.Utilization()
	if !ok {
		return 0
	}
	return min(max(load.Requests/(utilization+max(errors, failing)*penalty), minReported), maxReported)
}

// estimate holds the measurements of an instance as of one time.
type estimate struct {
	// done, failed and busy are the meter's, faded until that time.
	done, failed, busy float64
	// reported is the weight of the valid load report; 0: there is none.
	reported float64
}

// estimateAt fades the measurements, with memory as the time constant, and returns the estimate at now.
func (m *meter) estimateAt(now time.Time, memory time.Duration) estimate {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advanceTo(now)
	if passed := now.Sub(m.faded); passed > 0 {
		left := math.Exp(-float64(passed) / float64(memory))
		m.busy, m.done, m.failed, m.faded = m.busy*left, m.done*left, m.failed*left, now
	}
	e := estimate{done: m.done, failed: m.failed, busy: m.busy}
	if now.Sub(m.first) >= blackout && now.Sub(m.reported) < expiry {
		failing := 0.0
		if m.failed > 0 {
			failing = m.failed / (m.done + m.failed)
		}
		e.reported = reportedWeight(m.load, failing)
	}
	return e
}
