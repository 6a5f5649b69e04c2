package ingest

import (
	"math"
	"time"
)

// These keep the delay of an edge within a second, however much is reported. An edge
// waits for the report of its region before it, which waits maxDelay at most and then
// for its batch, and then for a batch of its own.
const (
	// calm is the wait below which ingest is not behind: the time of two batches.
	calm = 50 * time.Millisecond
	// maxDelay is the wait above which reports with many instances are refused.
	maxDelay = 200 * time.Millisecond
	// batchTime is about how long a batch of instances may take, while other batches
	// run.
	batchTime = 100 * time.Millisecond
	// pauseFactor: were the wait alone what slows agents, all of them would wait at
	// once. With a pause of five times the wait, one in six does.
	pauseFactor = 5
	// maxInterval is how far counts and states that are no edge are coalesced: below a
	// third of the lease's time to live.
	maxInterval = 4 * time.Second
	// maxPause bounds how long instances are held back: they are for people, who would
	// rather see them late than not know how late.
	maxPause = 5 * time.Second
	// smallest is the share of MaxInstances that is always asked for: smaller reports
	// would cost more each than what is in them.
	smallest = 10
)

// load is how far the store is behind what agents report, at a moment.
type load struct {
	// delay is about how long a report with instances would wait if it came now.
	// steady is the same over the last second or so, and sets the limits of agents: with
	// the delay of the moment, they would all pause at once, and come back at once.
	delay, steady time.Duration
	// commit is about how long recent batches took.
	commit time.Duration
}

// limits are what agents are asked to keep to under a load.
type limits struct {
	interval, pause time.Duration
	instances       int
}

// limits returns the limits of reports, which grow with the delay. So states that are not
// stored yet stay with the agents, which keep one state of each instance. Here they would be a
// row for each change. shortest and most are the limits without a delay.
func (l load) limits(shortest time.Duration, most int) limits {
	out := limits{interval: min(max(shortest, 4*(l.commit+l.steady)), max(shortest, maxInterval)), instances: most}
	if l.steady > calm {
		out.pause = min(pauseFactor*l.steady, maxPause)
		out.instances = max(int(float64(most)*float64(2*calm)/float64(max(l.steady, 2*calm))), most/smallest, 1)
	}
	return out
}

// refuses reports whether a report with instances is refused while that number of rows waits,
// and after which time it may come again: when those rows are stored, and later if the queue
// has been long for a while. Less than one batch is never refused, however long it takes.
func (l load) refuses(waiting int) (retryAfter time.Duration, refused bool) {
	if l.delay <= maxDelay || waiting < minBatchRows {
		return 0, false
	}
	return min(max(l.delay, pauseFactor*l.steady), maxPause), true
}

// Rates in rows a second.
const (
	// firstRate is assumed until batches were measured: that of a small machine.
	firstRate = 10_000
	// measured is the least that a batch has to hold to say something of the rate:
	// what a small one takes is the time of its commit.
	measured = 500
)

// meter measures how many rows a second are stored while batches are under way.
type meter struct {
	rate   float64 // rows a second; 0: firstRate
	commit time.Duration

	active int       // batches under way that are large enough
	since  time.Time // up to when busy counts
	busy   time.Duration
	rows   int
}

func (m *meter) perSecond() float64 {
	if m.rate == 0 {
		return firstRate
	}
	return m.rate
}

// batch returns how many rows a batch may have to take about batchTime while bulkBatches are
// stored at once, which share the rate. A larger batch would leave nothing to the others, and
// all its reports would wait for its last row.
func (m *meter) batch() int {
	return min(max(int(m.perSecond()*batchTime.Seconds())/bulkBatches, minBatchRows), maxBatchRows)
}

// begin records the beginning of a batch.
func (m *meter) begin(now time.Time, rows int) {
	if rows < measured {
		return
	}
	if m.active == 0 {
		m.since = now
	}
	m.active++
}

// end records the end of a batch. Two batches at once share the database, so that
// the rate is what both of them stored in the time that either took.
func (m *meter) end(now time.Time, rows int, took time.Duration) {
	m.commit = (3*m.commit + took) / 4
	if rows < measured {
		return
	}
	m.active--
	m.rows += rows
	m.busy += now.Sub(m.since)
	m.since = now
	// While the rate is not known, a short measurement is enough.
	if m.busy >= batchTime || m.rate == 0 && m.busy >= batchTime/10 {
		m.rate = (m.perSecond() + float64(m.rows)/m.busy.Seconds()) / 2
		m.busy, m.rows = 0, 0
	}
}

// smooth follows a value over about a second.
type smooth struct {
	value float64
	at    time.Time
}

func (s *smooth) follow(value float64, now time.Time) float64 {
	passed := now.Sub(s.at).Seconds()
	if s.at.IsZero() || passed > 0 {
		share := 1.0
		if !s.at.IsZero() {
			share = 1 - math.Exp(-passed)
		}
		s.value, s.at = s.value+share*(value-s.value), now
	}
	return s.value
}
