package ingest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

var start = time.Unix(1_900_000_000, 0)

// waits returns a report of a region with that number of instances.
func waits(region string, instances int) *pending {
	return &pending{ctx: context.Background(), region: region, req: &agentv1.ReportRequest{Instances: make([]*agentv1.InstanceState, instances)}}
}

// regionsOf a batch, in order.
func regionsOf(batch []*pending) (out []string) {
	for _, p := range batch {
		out = append(out, p.region)
	}
	return out
}

func TestLimitsFollowHowFarTheStoreIsBehind(t *testing.T) {
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
		require.Equal(t, c.want, c.load.limits(shortest, most), "%+v", c.load)
	}
	// Whatever the operator asks for holds, and more load never asks for more.
	require.Equal(t, 5*time.Second, load{}.limits(5*time.Second, 3).interval)
	require.Equal(t, 1, load{steady: time.Minute}.limits(shortest, 3).instances)
	last := load{}.limits(shortest, most)
	for d := time.Duration(0); d < 2*time.Second; d += 7 * time.Millisecond {
		l := load{steady: d}.limits(shortest, most)
		require.GreaterOrEqual(t, l.interval, last.interval)
		require.GreaterOrEqual(t, l.pause, last.pause)
		require.LessOrEqual(t, l.instances, last.instances)
		last = l
	}
}

func TestInstancesAreRefusedOnceTheyWouldWaitTooLongAndEdgesAreNot(t *testing.T) {
	q := newQueue()
	accepted := 0
	var v verdict
	for n := range 100 {
		if v = q.push(waits(fmt.Sprint("reg_", n), 1000), start); !v.ok {
			break
		}
		accepted++
	}
	// At the rate that is believed at first, 10,000 rows a second.
	require.Equal(t, 2, accepted)
	require.False(t, v.full || v.crowded)
	require.InDelta(t, maxDelay, v.retryAfter, float64(10*time.Millisecond), "when what waits is stored")
	for steady, want := range map[time.Duration]time.Duration{
		maxDelay / 10: 2 * maxDelay, 2 * maxDelay: pauseFactor * 2 * maxDelay, time.Minute: maxPause,
	} {
		after, no := load{delay: 2 * maxDelay, steady: steady}.refuses(minBatchRows)
		require.True(t, no)
		require.Equal(t, want, after, "it was like that for a while, or not: %s", steady)
	}
	require.True(t, q.push(waits("reg_small", expressInstances), start).ok)

	// A store that does more takes more, and one that stands still takes a batch.
	q.meter.rate = 100_000
	require.True(t, q.push(waits("reg_a", 1000), start).ok)
	require.False(t, q.push(waits("reg_b", 1000), start.Add(time.Minute)).ok)
	require.True(t, newQueue().push(waits("reg_a", 20_000), start).ok, "nothing waits: it is never too large")
}

func TestWhateverItIsNoMoreWaitsThanThereIsMemoryFor(t *testing.T) {
	q := newQueue()
	q.meter.rate = 1e9
	n := 0
	for ; n < 100_000; n++ {
		if v := q.push(waits(fmt.Sprint("reg_", n), 1000), start); !v.ok {
			require.True(t, v.full)
			require.Positive(t, v.retryAfter)
			break
		}
	}
	require.LessOrEqual(t, n*1000, maxQueuedRows+1000)
	require.False(t, q.push(waits("reg_small", 1), start).ok)

	q = newQueue()
	for n := range queueLength {
		require.True(t, q.push(waits(fmt.Sprint("reg_", n), 1), start).ok)
	}
	require.True(t, q.push(waits("reg_more", 1), start).full)
}

func TestARegionThatIsLoudWaitsForItselfAlone(t *testing.T) {
	q := newQueue()
	for range maxWaiting {
		require.True(t, q.push(waits("reg_loud", 300), start).ok)
	}
	require.True(t, q.push(waits("reg_loud", 300), start).crowded)
	v := q.push(waits("reg_loud", 1), start.Add(time.Hour))
	require.True(t, v.crowded)
	require.LessOrEqual(t, v.retryAfter, maxPause, "however long they have waited, or a clock says so")
	for _, region := range []string{"reg_a", "reg_b"} {
		require.True(t, q.push(waits(region, 100), start).ok)
	}
	batch := q.take(bulk, start)
	require.Equal(t, []string{"reg_loud", "reg_a", "reg_b"}, regionsOf(batch), "one of each")
	require.Empty(t, q.take(bulk, start), "one of its reports is being stored")
	require.True(t, q.push(waits("reg_a", 1), start).ok)
	require.Empty(t, q.take(express, start), "reports of a region are stored one after the other")
	q.done(batch)
	require.Equal(t, []string{"reg_loud"}, regionsOf(q.take(bulk, start)))
	require.Equal(t, []string{"reg_a"}, regionsOf(q.take(express, start)))
}

func TestSmallReportsAreOneBatchAtATimeUnlessThatTakesLong(t *testing.T) {
	q := newQueue()
	push := func(regions ...string) {
		for _, r := range regions {
			require.True(t, q.push(waits(r, 1), start).ok)
		}
	}
	push("reg_a")
	first := q.take(express, start)
	require.Equal(t, []string{"reg_a"}, regionsOf(first))
	push("reg_b", "reg_c")
	require.Empty(t, q.take(express, start.Add(patience-1)))
	require.True(t, q.push(waits("reg_large", 300), start).ok)
	large := q.take(bulk, start)
	require.Len(t, large, 1, "what is large does not wait for it")
	q.done(large)
	require.Empty(t, q.take(express, start), "nor does that end the wait")

	second := q.take(express, start.Add(patience))
	require.Equal(t, []string{"reg_b", "reg_c"}, regionsOf(second), "those that came meanwhile, together")
	push("reg_d")
	q.done(first)
	require.Empty(t, q.take(express, start.Add(2*patience-1)), "the second is not late yet")
	q.done(second)
	require.Equal(t, []string{"reg_d"}, regionsOf(q.take(express, start.Add(2*patience-1))))
}

func TestBatchesTakeTheirShareOfWhatIsStoredInTheirTime(t *testing.T) {
	q := newQueue()
	q.meter.rate = 1e9
	for n := range 30 {
		require.True(t, q.push(waits(fmt.Sprint("reg_", n), 1000), start).ok)
	}
	for _, c := range []struct {
		rate float64
		want int
	}{{15_000 * bulkWorkers, 2}, {100, 1}, {1e9, 10}} {
		q.meter.rate = c.rate
		batch := q.take(bulk, start)
		require.Len(t, batch, c.want, "at %v rows a second", c.rate)
		q.done(batch)
	}
}

func TestAReportWhoseCallerHasGoneIsNotStored(t *testing.T) {
	q := newQueue()
	gone, cancel := context.WithCancel(context.Background())
	left, late, stays := waits("reg_a", 100), waits("reg_b", 100), waits("reg_c", 100)
	late.ctx = gone
	for _, p := range []*pending{left, late, stays} {
		require.True(t, q.push(p, start).ok)
	}
	q.leave(left)
	q.leave(left)
	cancel()
	batch := q.take(bulk, start)
	require.Equal(t, []string{"reg_c"}, regionsOf(batch))
	q.done(batch)
	q.leave(stays)
	require.Zero(t, q.rows)
	require.Empty(t, q.waiting)
	require.Empty(t, q.busy)
}

func TestTheRateIsThatOfLargeBatchesTogether(t *testing.T) {
	var m meter
	require.EqualValues(t, firstRate, m.perSecond())
	for range 100 { // commits of a quiet day say nothing of it
		m.begin(start, 3)
		m.end(start.Add(10*time.Millisecond), 3, 10*time.Millisecond)
	}
	require.EqualValues(t, firstRate, m.perSecond())
	now := start
	for range 20 {
		m.begin(now, 4000)
		m.begin(now, 4000)
		now = now.Add(100 * time.Millisecond)
		m.end(now, 4000, 100*time.Millisecond)
		now = now.Add(100 * time.Millisecond)
		m.end(now, 4000, 200*time.Millisecond)
		now = now.Add(time.Minute) // in which no work is due
	}
	require.InDelta(t, 40_000, m.perSecond(), 100)
}
