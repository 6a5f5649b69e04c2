package ingest

import (
	"math"
	"time"
)

// These bound the delay of an edge to about a second, however much is reported. An edge waits for the
// region's report before it, which waits for at most maxDelay and then for its batch. Then the edge waits for
// its own batch.
const (
	// calm is the wait below which ingest is not behind: the time of two batches.
	calm = 50 * time.Millisecond
	// maxDelay is the wait above which reports with many instances are refused.
	maxDelay = 200 * time.Millisecond
	// batchTime is about how long a batch of instances may take while other batches run.
	batchTime = 100 * time.Millisecond
	// pauseFactor makes agents pause for longer than the wait. If they paused only for the wait, all would wait
	// at once. With a pause of five times the wait, one in six does.
	pauseFactor = 5
	// maxInterval bounds how long counts and states that are not edges are coalesced. It is below a third of the
	// lease's time to live.
	maxInterval = 4 * time.Second
	// maxPause bounds how long instances are held back. People read them, and prefer a known delay to an unknown
	// one.
	maxPause = 5 * time.Second
	// smallest is the divisor of MaxInstances that gives the least number of instances of a report. Smaller
	// reports would cost more than their content.
	smallest = 10
)

// load is how far the store is behind the reports, at one moment.
type load struct {
	// delay is about how long a report with instances would wait if it came now. steady is its average over
	// about a second, and sets the limits of agents. With limits by delay, agents would all pause and return at
	// once.
	delay, steady time.Duration
	// commit is about how long recent batches took.
	commit time.Duration
}

// limits are what agents should keep to under a load.
type limits struct {
	interval, pause time.Duration
	instances       int
}

// limits returns the limits of reports, which grow with the delay. So states that are not stored yet stay
// with the agents, which keep one state of each instance. In the queue they would take a row for each change.
// shortest and most are the limits without a delay.
func (l load) limits(shortest time.Duration, most int) limits {
	out := limits{interval: min(max(shortest, 4*(l.commit+l.steady)), max(shortest, maxInterval)), instances: most}
	if l.steady > calm {
		out.pause = min(pauseFactor*l.steady, maxPause)
		out.instances = max(int(float64(most)*float64(2*calm)/float64(max(l.steady, 2*calm))), most/smallest, 1)
	}
	return out
}

// refuses reports whether a report with instances is refused while waiting rows wait. retryAfter is when it
// may come again: when those rows are stored, and later if the queue has been long for a while. It never
// refuses while less than one batch waits.
func (l load) refuses(waiting int) (retryAfter time.Duration, refused bool) {
	if l.delay <= maxDelay || waiting < minBatchRows {
		return 0, false
	}
	return min(max(l.delay, pauseFactor*l.steady), maxPause), true
}

// These are rates and counts of rows.
const (
	// firstRate is assumed until batches were measured. It is that of a small machine.
	firstRate = 10_000
	// measured is the least number of rows in a batch that says something about the rate. A smaller batch takes
	// the time of its commit.
	measured = 500
)

// meter measures how many rows are stored in a second while batches are under way.
type meter struct {
	rate   float64 // rows a second; 0: firstRate
	commit time.Duration

	active int       // measured batches under way
	since  time.Time // when busy was last added to
	busy   time.Duration
	rows   int
}

func (m *meter) perSecond() float64 {
	if m.rate == 0 {
		return firstRate
	}
	return m.rate
}

// batch returns how many rows a batch may have to take about batchTime while bulkBatches share the rate. A
// larger batch would leave nothing to the others, and all its reports would wait for its last row.
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

// end records the end of a batch. Concurrent batches share the database, so the rate is the rows of all of
// them in the time in which any ran.
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

// smooth averages a value over about a second.
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
