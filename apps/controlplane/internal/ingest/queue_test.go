package ingest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/batch"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

var start = time.Unix(1_900_000_000, 0)

// report returns a report of the region with the number of instances.
func report(region string, instances int) *pending {
	return &pending{region: region, req: &agentv1.ReportRequest{Instances: make([]*agentv1.InstanceState, instances)}}
}

// yard is a queue that stores nothing, with its waiting reports.
type yard struct {
	*queue
	lanes    map[lane]batch.Queue
	ofRegion map[string]int
}

func newYard() *yard {
	return &yard{queue: newQueue(func(context.Context, []*pending) ([]error, error) { return nil, nil }, nil), lanes: map[lane]batch.Queue{}, ofRegion: map[string]int{}}
}

func (y *yard) Lane(l lane) batch.Queue { return y.lanes[l] }

func (y *yard) Key(region string) int { return y.ofRegion[region] }

// push returns the refusal, or nil if the report waits from now on.
func (y *yard) push(p *pending, now time.Time) *refusal {
	refused, _ := errors.AsType[*refusal](y.admitReport(p, y, now))
	if refused == nil {
		q := y.lanes[laneOf(p)]
		if q.Requests == 0 {
			q.Since = now
		}
		q.Requests++
		q.Weight += p.rowCount()
		y.lanes[laneOf(p)] = q
		y.ofRegion[p.region]++
	}
	return refused
}

// line is a queue whose batches end when the test decides.
type line struct {
	*queue
	gate chan struct{}

	mu      sync.Mutex
	batches [][]string // regions of each batch that began
}

func newLine() *line {
	l := &line{gate: make(chan struct{})}
	l.queue = newQueue(func(ctx context.Context, reports []*pending) ([]error, error) {
		var regions []string
		for _, p := range reports {
			regions = append(regions, p.region)
		}
		l.mu.Lock()
		l.batches = append(l.batches, regions)
		l.mu.Unlock()
		select {
		case <-l.gate:
			return make([]error, len(reports)), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, nil)
	return l
}

// push adds reports to the queue, one after the other.
func (l *line) push(ctx context.Context, reports ...*pending) {
	for _, p := range reports {
		go func() { _, _ = l.Do(ctx, p) }()
		synctest.Wait()
	}
}

// began returns the batches that began since the last call.
func (l *line) began() [][]string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	batches := l.batches
	l.batches = nil
	return batches
}

func TestQueue_LimitsFollowHowFarTheStoreIsBehind(t *testing.T) {
	const shortest, most = 200 * time.Millisecond, 1000
	for _, c := range []struct {
		load load
		want limits
	}{
		{load{}, limits{interval: shortest, instances: most}},
		{load{commit: 20 * time.Millisecond, steady: 30 * time.Millisecond}, limits{interval: shortest, instances: most}},
		{load{commit: 100 * time.Millisecond}, limits{interval: 400 * time.Millisecond, instances: most}},
		{load{steady: 60 * time.Millisecond}, limits{interval: 240 * time.Millisecond, pause: 300 * time.Millisecond, instances: most}},
		{load{steady: 200 * time.Millisecond}, limits{interval: 800 * time.Millisecond, pause: time.Second, instances: 500}},
		{load{steady: 400 * time.Millisecond, commit: 100 * time.Millisecond}, limits{interval: 2 * time.Second, pause: 2 * time.Second, instances: 250}},
		{load{steady: time.Minute, commit: time.Minute}, limits{interval: 4 * time.Second, pause: 5 * time.Second, instances: 100}},
	} {
		require.Equal(t, c.want, c.load.limitsOf(shortest, most), "%+v", c.load)
	}
	// The configured limits always apply, and a higher load never loosens limits.
	require.Equal(t, 5*time.Second, load{}.limitsOf(5*time.Second, 3).interval)
	require.Equal(t, 1, load{steady: time.Minute}.limitsOf(shortest, 3).instances)
	last := load{}.limitsOf(shortest, most)
	for d := time.Duration(0); d < 2*time.Second; d += 7 * time.Millisecond {
		l := load{steady: d}.limitsOf(shortest, most)
		require.GreaterOrEqual(t, l.interval, last.interval)
		require.GreaterOrEqual(t, l.pause, last.pause)
		require.LessOrEqual(t, l.instances, last.instances)
		last = l
	}
}

func TestQueue_RefusesInstancesButNoEdgesAboveTheLimit(t *testing.T) {
	q := newYard()
	accepted := 0
	var r *refusal
	for n := range 100 {
		if r = q.push(report(fmt.Sprint("reg_", n), 1000), start); r != nil {
			break
		}
		accepted++
	}
	// At the assumed first rate of 10,000 rows a second.
	require.Equal(t, 2, accepted)
	require.False(t, r.full || r.crowded)
	require.InDelta(t, maxDelay, r.retryAfter, float64(10*time.Millisecond), "the time until the waiting rows are stored")
	for steady, want := range map[time.Duration]time.Duration{
		maxDelay / 10: 2 * maxDelay, 2 * maxDelay: pauseFactor * 2 * maxDelay, time.Minute: maxPause,
	} {
		after, no := load{delay: 2 * maxDelay, steady: steady}.refusesAt(minBatchRows)
		require.True(t, no)
		require.Equal(t, want, after, "with a steady delay of %s", steady)
	}
	require.Nil(t, q.push(report("reg_small", expressInstances), start))

	// A faster store accepts more, and a very slow store still accepts one batch.
	q.meter.rate = 100_000
	require.Nil(t, q.push(report("reg_a", 1000), start))
	require.NotNil(t, q.push(report("reg_b", 1000), start.Add(time.Minute)))
	require.Nil(t, newYard().push(report("reg_a", 20_000), start), "an empty queue accepts a report of any size")
}

func TestQueue_MemoryIsBounded(t *testing.T) {
	q := newYard()
	q.meter.rate = 1e9
	n := 0
	for ; n < 100_000; n++ {
		if r := q.push(report(fmt.Sprint("reg_", n), 1000), start); r != nil {
			require.True(t, r.full)
			require.Positive(t, r.retryAfter)
			break
		}
	}
	require.LessOrEqual(t, n*1000, maxQueuedRows+1000)
	require.True(t, q.push(report("reg_small", 1), start).full)

	q = newYard()
	for n := range queueLength {
		require.Nil(t, q.push(report(fmt.Sprint("reg_", n), 1), start))
	}
	require.True(t, q.push(report("reg_more", 1), start).full)
}

func TestQueue_RegionWithManyReportsDelaysOnlyItself(t *testing.T) {
	q := newYard()
	for range maxWaiting {
		require.Nil(t, q.push(report("reg_loud", 300), start))
	}
	require.True(t, q.push(report("reg_loud", 300), start).crowded)
	r := q.push(report("reg_loud", 1), start.Add(time.Hour))
	require.True(t, r.crowded)
	require.LessOrEqual(t, r.retryAfter, maxPause, "the retry time has an upper limit")
	require.Nil(t, q.push(report("reg_a", 100), start))

	synctest.Test(t, func(t *testing.T) {
		l := newLine()
		for n := range bulkBatches {
			l.push(t.Context(), report(fmt.Sprint("reg_", n), 300))
		}
		require.Len(t, l.began(), bulkBatches)
		l.push(t.Context(), report("reg_loud", 300), report("reg_loud", 300), report("reg_a", 100), report("reg_b", 100))
		require.Empty(t, l.began())
		l.gate <- struct{}{}
		require.Equal(t, [][]string{{"reg_loud", "reg_a", "reg_b"}}, l.began(), "one report of each region")
		l.push(t.Context(), report("reg_a", 1))
		require.Empty(t, l.began(), "reports of a region are stored one after the other")
		close(l.gate)
		require.ElementsMatch(t, [][]string{{"reg_loud"}, {"reg_a"}}, l.began())
	})
}

func TestQueue_SmallReportsFormOneBatchUnlessItTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine()
		l.push(t.Context(), report("reg_a", 1))
		require.Equal(t, [][]string{{"reg_a"}}, l.began())
		l.push(t.Context(), report("reg_b", 1), report("reg_c", 1))
		time.Sleep(patience - 1)
		require.Empty(t, l.began())
		l.push(t.Context(), report("reg_large", 300))
		require.Equal(t, [][]string{{"reg_large"}}, l.began(), "a large report does not wait for small ones")
		time.Sleep(time.Nanosecond)
		require.Equal(t, [][]string{{"reg_b", "reg_c"}}, l.began(), "reports that arrived meanwhile form one batch")
		l.push(t.Context(), report("reg_d", 1))
		time.Sleep(patience - 1)
		require.Empty(t, l.began(), "the second batch has not run for patience yet")
		close(l.gate)
		require.Equal(t, [][]string{{"reg_d"}}, l.began())
	})
}

func TestQueue_LargeReportsLeaveRoomForASmallOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine()
		for n := range bulkBatches + 2 {
			l.push(t.Context(), report(fmt.Sprint("reg_", n), 300))
		}
		require.Len(t, l.began(), bulkBatches)
		l.push(t.Context(), report("reg_small", 1))
		require.Equal(t, [][]string{{"reg_small"}}, l.began())
		l.push(t.Context(), report("reg_more", 1))
		time.Sleep(2 * patience)
		require.Empty(t, l.began(), "no further concurrent batches")
		close(l.gate)
		require.ElementsMatch(t, [][]string{{"reg_more"}, {"reg_4", "reg_5"}}, l.began())
	})
}

func TestQueue_BatchSizeFollowsTheRate(t *testing.T) {
	for _, c := range []struct {
		rate float64
		want int
	}{{15_000 * bulkBatches, 2}, {100, 1}, {1e9, 10}} {
		synctest.Test(t, func(t *testing.T) {
			l := newLine()
			for n := range bulkBatches {
				l.push(t.Context(), report(fmt.Sprint("reg_", n), 300))
			}
			l.meter.rate = 1e9
			for n := range 20 {
				l.push(t.Context(), report(fmt.Sprint("reg_more_", n), 1000))
			}
			require.Len(t, l.began(), bulkBatches)
			l.meter.rate = c.rate
			l.gate <- struct{}{}
			require.Len(t, l.began()[0], c.want, "at %v rows a second", c.rate)
			close(l.gate)
		})
	}
}

func TestQueue_DropsAReportWithoutItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine()
		l.push(t.Context(), report("reg_first", 1))
		gone, cancel := context.WithCancel(t.Context())
		l.push(gone, report("reg_a", 1))
		l.push(t.Context(), report("reg_b", 1))
		cancel()
		close(l.gate)
		require.Equal(t, [][]string{{"reg_first"}, {"reg_b"}}, l.began())
		require.Zero(t, l.loadAt(time.Now()).delay, "nothing waits")
	})
}

func TestQueue_RateIsMeasuredByLargeBatches(t *testing.T) {
	var m meter
	require.EqualValues(t, firstRate, m.perSecond())
	for range 100 { // small batches do not change the rate
		m.begin(start, 3)
		m.endBatch(start.Add(10*time.Millisecond), 3, 10*time.Millisecond)
	}
	require.EqualValues(t, firstRate, m.perSecond())
	now := start
	for range 20 {
		m.begin(now, 4000)
		m.begin(now, 4000)
		now = now.Add(100 * time.Millisecond)
		m.endBatch(now, 4000, 100*time.Millisecond)
		now = now.Add(100 * time.Millisecond)
		m.endBatch(now, 4000, 200*time.Millisecond)
		now = now.Add(time.Minute) // a minute without work
	}
	require.InDelta(t, 40_000, m.perSecond(), 100)
}
