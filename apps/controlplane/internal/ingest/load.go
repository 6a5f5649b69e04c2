package ingest

import (
	"math"
	"time"
)

// These limits keep the delay of an edge at about a second at any load. An edge waits for the region's previous
// report, which waits at most maxDelay and then for its batch. Then the edge waits for its own batch.
const (
	// calm is the wait below which ingest counts as not behind. It is about the time of two batches.
	calm = 50 * time.Millisecond
	// maxDelay is the wait above which reports with many instances are refused.
	maxDelay = 200 * time.Millisecond
	// batchTime is the target duration of a batch of instances while other batches run.
	batchTime = 100 * time.Millisecond
	// pauseFactor times the wait is the pause of agents. With a pause as long as the wait, half of the agents would
	// wait at any time. With five times the wait, one in six agents waits.
	pauseFactor = 5
	// maxInterval is the maximum time for which agents coalesce counts and states that are not edges. It is below a
	// third of the lease.
	maxInterval = 4 * time.Second
	// maxPause is the maximum time for which agents hold back states of instances.
	maxPause = 5 * time.Second
	// smallest divides MaxInstances: the result is the lower limit for instances in a report. The fixed cost of
	// smaller reports would be too high.
	smallest = 10
)

// load says how far the store is behind the reports at one moment.
type load struct {
	// delay is the estimated wait of a report with instances that arrives now. steady is its average over about a
	// second, from which the limits of agents are computed. If they were computed from delay, all agents would pause
	// and return at the same time.
	delay, steady time.Duration
	// commit is the average duration of recent batches.
	commit time.Duration
}

// limits are the limits on reports of agents under a load.
type limits struct {
	interval, pause time.Duration
	instances       int
}

// limitsOf returns the limits on reports, which become stricter with the delay. So states that are not stored yet wait
// in the agents, which keep only one state of each instance. In the queue, each change would take a row. shortest and
// most are the limits without a delay.
func (l load) limitsOf(shortest time.Duration, most int) limits {
	out := limits{interval: min(max(shortest, 4*(l.commit+l.steady)), max(shortest, maxInterval)), instances: most}
	if l.steady > calm {
		out.pause = min(pauseFactor*l.steady, maxPause)
		out.instances = max(int(float64(most)*float64(2*calm)/float64(max(l.steady, 2*calm))), most/smallest, 1)
	}
	return out
}

// refusesAt reports whether a report with instances is refused while the given number of rows waits. retryAfter is the
// time after which the report may be sent again: when these rows are stored, or later if the queue has been long for
// some time. It never refuses while less than one batch waits.
func (l load) refusesAt(waiting int) (retryAfter time.Duration, refused bool) {
	if l.delay <= maxDelay || waiting < minBatchRows {
		return 0, false
	}
	return min(max(l.delay, pauseFactor*l.steady), maxPause), true
}

// Rates and counts of rows.
const (
	// firstRate is the assumed rate, in rows per second, until batches were measured. It is the rate of a small
	// machine.
	firstRate = 10_000
	// measured is the minimum number of rows of a batch whose rate is measured. The duration of a smaller batch is
	// mainly its commit.
	measured = 500
)

// meter measures the rate at which rows are stored while batches are running.
type meter struct {
	rate   float64 // rows a second; 0: firstRate
	commit time.Duration

	active int       // running batches that are measured
	since  time.Time // time of the last addition to busy
	busy   time.Duration
	rows   int
}

func (m *meter) perSecond() float64 {
	if m.rate == 0 {
		return firstRate
	}
	return m.rate
}

// batchSize returns the number of rows of a batch that takes about batchTime while bulkBatches batches run at the same
// time. In a larger batch, all reports would wait longer for the last row.
func (m *meter) batchSize() int {
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

// endBatch records the end of a batch. Concurrent batches share the database, so the rate is the number of rows of all
// batches divided by the time in which at least one batch ran.
func (m *meter) endBatch(now time.Time, rows int, took time.Duration) {
	m.commit = (3*m.commit + took) / 4
	if rows < measured {
		return
	}
	m.active--
	m.rows += rows
	m.busy += now.Sub(m.since)
	m.since = now
	// For the first rate, a short measurement is enough.
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

func (s *smooth) followValue(value float64, now time.Time) float64 {
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
