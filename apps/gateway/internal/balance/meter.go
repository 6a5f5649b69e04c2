package balance

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/orca"
)

const (
	// What was seen fades to 1/e in memoryAnswers times the mean time of an answer, because a few
	// answers say little. That is leastMemory at least, because one bad second says little, too. It
	// is mostMemory at most, so that the gateway notices a throttled GPU before people do.
	memoryAnswers           = 4
	leastMemory, mostMemory = 20 * time.Second, 2 * time.Minute
	// prior is how many answers of the mean time each instance is believed to have given, besides
	// those that were seen. So a new instance begins as an average one, and none is judged by a
	// single long prompt.
	prior = 4
	// penalty of a failure in answers of the mean's time, in which nothing was done; in ORCA's
	// measure, of the share that failed in utilization. It is the default of gRFC A58.
	penalty = 1

	// Of gRFC A58: how long an instance has to have reported before it is believed, so that its
	// warming up does not count, and how long a report is.
	blackout = 10 * time.Second
	expiry   = 3 * time.Minute

	// What an instance says can be as wrong as it likes; sums of these are finite, and not 0.
	leastSaid, mostSaid = 1e-9, 1e15
)

// meter is what is known of the work that an instance does. What is seen is requests answered in
// the time that requests spent there, those under way included: the inverse of the mean time in
// service, which falls at once when the instance hangs, and not only when it answers again. It is
// the same at any load that the instance takes in its stride, and where its requests wait for each
// other, shares by it settle where each instance has as many under way.
//
// It has a lock of its own, which is held for nanoseconds; its weight is read without.
type meter struct {
	weight atomic.Uint64 // bits of a float; 0: none

	mu sync.Mutex
	// inFlight since at; busy is the seconds that requests spent up to then. It counts for itself
	// what it was told the beginning of.
	inFlight           int
	at                 time.Time
	busy, done, failed float64
	faded              time.Time
	// load was reported last at reported, and has been since first.
	load            orca.Load
	first, reported time.Time
}

// metered is the endpoint's meter. Only those have one that are asked for it.
func (e *Endpoint) metered() *meter {
	if m := e.meter.Load(); m != nil {
		return m
	}
	e.meter.CompareAndSwap(nil, &meter{})
	return e.meter.Load()
}

func (e *Endpoint) weight() float64 {
	m := e.meter.Load()
	if m == nil {
		return 0
	}
	return math.Float64frombits(m.weight.Load())
}

// Forget what was seen of it: another process has its place.
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

// advance to now. Who asks for the time before he has the lock may come late with it.
func (m *meter) advance(now time.Time) {
	if m.at.IsZero() {
		m.at, m.faded = now, now
	}
	if passed := now.Sub(m.at); passed > 0 {
		m.busy += float64(m.inFlight) * passed.Seconds()
		m.at = now
	}
}

func (m *meter) begin(now time.Time) {
	m.mu.Lock()
	m.advance(now)
	m.inFlight++
	m.mu.Unlock()
}

func (m *meter) end(now time.Time, how Outcome) {
	m.mu.Lock()
	m.advance(now)
	m.inFlight--
	switch how {
	case Served:
		m.done++
	case Failed:
		m.failed++
	case Nothing:
	}
	m.mu.Unlock()
}

// report takes what an instance said. An answer that is a failure cost it little, so that what it
// says then is taken only where it makes it lighter.
func (m *meter) report(now time.Time, load orca.Load, failed bool) {
	said := saidBy(load, 0)
	if said == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	stale := m.reported.IsZero() || now.Sub(m.reported) >= expiry
	if failed && (stale || said >= saidBy(m.load, 0)) {
		return
	}
	if stale {
		m.first = now
	}
	m.load, m.reported = load, now
}

// saidBy is the weight by a report, where so large a share of the requests were seen to fail.
func saidBy(load orca.Load, failing float64) float64 {
	utilization, errors, ok := load.Utilization()
	if !ok {
		return 0
	}
	return min(max(load.Requests/(utilization+max(errors, failing)*penalty), leastSaid), mostSaid)
}

// estimate is what is known of an instance at a time.
type estimate struct {
	// done and failed are requests, busy the seconds that they and others spent.
	done, failed, busy float64
	// said is the weight by what it says; 0: nothing that counts.
	said float64
}

// estimate at a time, of which what was seen fades with memory.
func (m *meter) estimate(now time.Time, memory time.Duration) estimate {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance(now)
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
		e.said = saidBy(m.load, failing)
	}
	return e
}
