package balance

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/gateway/internal/orca"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// scheduled has instances with these weights, as a look at them left them.
func scheduled(weights []float64, random uint64) (*weighted, []*Endpoint) {
	s, all := &weighted{}, endpoints(len(weights))
	s.Pick(all, Request{Now: noon, Random: random})
	for i, w := range weights {
		all[i].metered().weight.Store(math.Float64bits(w))
	}
	s.compare(weights)
	return s, all
}

func TestInstancesGetTheirShareWithinOnePercentAndWithoutBursts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Float64Range(1, spread), 2, 12).Draw(t, "weights")
		unit := rapid.SampledFrom([]float64{1e-6, 1, 1e6}).Draw(t, "unit")
		total := 0.0
		for i := range weights {
			weights[i] *= unit
			total += weights[i]
		}
		s, all := scheduled(weights, rapid.Uint64().Draw(t, "random"))
		const requests = 10_000
		got, off := make([]int, len(weights)), 0.0
		for k := range requests {
			got[s.Pick(all, Request{Now: noon})]++
			for i, w := range weights {
				off = max(off, math.Abs(float64(k+1)*w/total-float64(got[i])))
			}
		}
		require.LessOrEqual(t, off, float64(len(weights)), "after any number of requests, so that no instance has a burst of more")
		for i, w := range weights {
			require.InDelta(t, requests*w/total, got[i], requests/100)
		}
	})
}

func TestPartsAreWhatInstancesGet(t *testing.T) {
	for _, weights := range [][]float64{{6, 2, 1}, {100, 1, 0}, {1, 1, 1}, {0, 0, 0}, {0, 5, 0}} {
		all := endpoints(3)
		s := &weighted{}
		s.Pick(all, Request{Now: noon})
		for i, w := range weights {
			all[i].metered().weight.Store(math.Float64bits(w))
		}
		s.compare(weights)
		got := make([]int, 3)
		for range 9000 {
			got[s.Pick(all, Request{Now: noon})]++
		}
		for i, part := range Parts(all) {
			require.InDelta(t, 3000*part, got[i], 3, "%v of %v", got, weights)
		}
	}
	require.Empty(t, Parts(nil))
}

func TestEqualWeightsAreRoundRobin(t *testing.T) {
	s, all := scheduled([]float64{7, 7, 7}, 0)
	last := s.Pick(all, Request{Now: noon})
	for range 100 {
		next := s.Pick(all, Request{Now: noon})
		require.Equal(t, (last+1)%3, next)
		last = next
	}
}

func TestTheOthersKeepTheirSharesWhenAnInstanceIsLeftOut(t *testing.T) {
	s, all := scheduled([]float64{4, 2, 1, 1}, 0)
	got := make([]int, 3)
	for range 7000 {
		got[s.Pick(all[:3], Request{Now: noon})]++
	}
	for i, want := range []float64{4000, 2000, 1000} {
		require.InDelta(t, want, got[i], 4)
	}
	alone := make([]int, 2) // with no one left of the largest weight
	for range 3000 {
		alone[s.Pick(all[1:3], Request{Now: noon})]++
	}
	require.InDelta(t, 2000, alone[0], 4)
}

func TestSharesHoldWhateverChoosesAtOnce(t *testing.T) {
	s, all := scheduled([]float64{3, 1}, 0)
	var mu sync.Mutex
	var got [2]int
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var mine [2]int
			for range 2500 {
				mine[s.Pick(all, Request{Now: noon})]++
			}
			mu.Lock()
			defer mu.Unlock()
			got[0] += mine[0]
			got[1] += mine[1]
		})
	}
	wg.Wait()
	require.InDelta(t, 5000, got[1], 20)
}

func TestNoInstanceGetsLessThanATenthOfAnother(t *testing.T) {
	s, all := scheduled([]float64{1e15, 1, 1e-9}, 0)
	got := make([]int, 3)
	for range 12_000 {
		got[s.Pick(all, Request{Now: noon})]++
	}
	for i, want := range []float64{10_000, 1000, 1000} {
		require.InDelta(t, want, got[i], 3)
	}
}

func TestAClockThatWasSetBackIsFollowed(t *testing.T) {
	s := &weighted{}
	all := endpoints(2)
	s.Pick(all, Request{Now: noon})
	s.Pick(all, Request{Now: noon.Add(weighEvery - 1)})
	require.Equal(t, noon.UnixNano(), s.weighed.Load(), "it is not time")
	s.Pick(all, Request{Now: noon.Add(weighEvery)})
	require.Equal(t, noon.Add(weighEvery).UnixNano(), s.weighed.Load())
	s.Pick(all, Request{Now: noon.Add(-time.Hour)})
	require.Equal(t, noon.Add(-time.Hour).UnixNano(), s.weighed.Load())
}

// served makes an instance answer n requests, one after the other, each in took.
func served(m *meter, at time.Time, n int, took time.Duration, how Outcome) time.Time {
	for range n {
		m.begin(at)
		at = at.Add(took)
		m.end(at, how)
	}
	return at
}

func ratio(now time.Time, a, b *meter) float64 {
	w := weights([]estimate{a.estimate(now, leastMemory), b.estimate(now, leastMemory)})
	return w[0] / w[1]
}

func TestWhoTakesAThirdOfTheTimeWeighsThreeTimesAsMuch(t *testing.T) {
	var fast, slow meter
	require.Equal(t, []float64{0, 0}, weights([]estimate{fast.estimate(noon, leastMemory), slow.estimate(noon, leastMemory)}), "nothing is known")
	served(&fast, noon, 3000, time.Millisecond, Served)
	now := served(&slow, noon, 1000, 3*time.Millisecond, Served)
	require.InDelta(t, 3, ratio(now, &fast, &slow), 0.05)
	for range 600 { // without a request
		now = now.Add(time.Second)
		fast.estimate(now, leastMemory)
		slow.estimate(now, leastMemory)
	}
	require.Equal(t, []float64{0, 0}, weights([]estimate{fast.estimate(now, leastMemory), slow.estimate(now, leastMemory)}), "it is forgotten")
}

func TestWhoIsNewCountsAsTheOthersDoOnAverage(t *testing.T) {
	var a, b, c meter
	served(&a, noon, 100, 10*time.Millisecond, Served)
	now := served(&b, noon, 100, 30*time.Millisecond, Served)
	w := weights([]estimate{a.estimate(now, leastMemory), b.estimate(now, leastMemory), c.estimate(now, leastMemory)})
	require.InDelta(t, 1/0.02, w[2], 1e-9)
	served(&c, now, 1, time.Second, Served) // its first is slow: something is made ready
	later := now.Add(time.Second)
	w = weights([]estimate{a.estimate(later, leastMemory), b.estimate(later, leastMemory), c.estimate(later, leastMemory)})
	require.Greater(t, w[2], w[1]/10)
}

func TestWhoHangsIsLighterBeforeItAnswers(t *testing.T) {
	var well, hangs meter
	served(&well, noon, 1000, 10*time.Millisecond, Served)
	now := served(&hangs, noon, 1000, 10*time.Millisecond, Served)
	require.InDelta(t, 1, ratio(now, &hangs, &well), 1e-9)
	for range 20 {
		hangs.begin(now)
	}
	require.Less(t, ratio(now.Add(2*time.Second), &hangs, &well), 0.25)
}

func TestWhatTheClientGaveUpIsNoAnswer(t *testing.T) {
	var a, b meter
	served(&a, noon, 100, 10*time.Millisecond, Served)
	now := served(&b, noon, 100, 10*time.Millisecond, Served)
	now = served(&a, now, 1000, 10*time.Microsecond, Nothing)
	require.LessOrEqual(t, ratio(now, &a, &b), 1.0)
}

// However an instance fails, and whatever else it did: it is not heavier for it.
func TestAFailureNeverRaisesAWeight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) estimate {
			return estimate{
				done: rapid.Float64Range(0, 1e4).Draw(t, label+" done"), failed: rapid.Float64Range(0, 1e4).Draw(t, label+" failed"),
				busy: rapid.Float64Range(0, 1e4).Draw(t, label+" busy"),
			}
		}
		a, b := draw("a"), draw("b")
		before := weights([]estimate{a, b})
		a.failed++
		after := weights([]estimate{a, b})
		require.LessOrEqual(t, after[0], before[0])
		require.Equal(t, before[1], after[1])
		if before[0] > 0 {
			require.Less(t, after[0], before[0])
		}
	})
	// As long as all that it does is fail at once, it goes on becoming lighter.
	var fails, well meter
	now := served(&fails, noon, 100, 10*time.Millisecond, Served)
	served(&well, noon, 100, 10*time.Millisecond, Served)
	last := ratio(now, &fails, &well)
	for range 60 {
		served(&fails, now, 50, time.Microsecond, Failed)
		served(&well, now, 50, 10*time.Millisecond, Served)
		now = now.Add(time.Second)
		next := ratio(now, &fails, &well)
		require.Less(t, next, max(last, 0.05))
		last = next
	}
	require.Less(t, last, 1.0/spread)
}

func said(requests, utilization float64) orca.Load {
	return orca.Load{Requests: requests, Application: utilization}
}

// reported is an instance that has said the same up to a time.
func reported(until time.Time, load orca.Load) *meter {
	m := &meter{}
	for at := until.Add(-time.Minute); !at.After(until); at = at.Add(time.Second) {
		m.report(at, load, false)
	}
	return m
}

func TestWhatInstancesSayIsWeighedAsA58Says(t *testing.T) {
	for _, c := range []struct {
		load orca.Load
		want float64
	}{
		{said(100, 0.5), 200},
		{orca.Load{Requests: 100, CPU: 0.25}, 400},
		{orca.Load{Requests: 100, Application: 0.5, CPU: 0.25, Errors: 50}, 100},
		{orca.Load{Requests: 100}, 0},
		{orca.Load{CPU: 1}, 0},
		{said(1e300, 1e-300), mostSaid},
		{said(1e-300, 1e300), leastSaid},
	} {
		require.InDelta(t, c.want, reported(noon, c.load).estimate(noon, leastMemory).said, 1e-9)
	}
}

func TestAReportCountsAfterTheBlackoutAndUntilItExpires(t *testing.T) {
	m := &meter{}
	usable := func(at time.Duration) bool { return m.estimate(noon.Add(at), leastMemory).said > 0 }
	m.report(noon, said(10, 0.5), false)
	require.False(t, usable(blackout-1))
	require.True(t, usable(blackout))
	require.True(t, usable(expiry-1))
	require.False(t, usable(expiry))
	m.report(noon.Add(expiry), said(10, 0.5), false)
	require.False(t, usable(expiry+blackout-1), "who was silent for so long begins anew")
	require.True(t, usable(expiry+blackout))
	e := NewEndpoint("ins_1", "127.0.0.1:1")
	e.metered().report(noon, said(10, 0.5), false)
	require.Positive(t, e.metered().estimate(noon.Add(blackout), leastMemory).said)
	e.Forget()
	require.Zero(t, e.metered().estimate(noon.Add(blackout), leastMemory).said, "another process")
}

func TestWithFewerThanTwoReportsWhatIsSeenCounts(t *testing.T) {
	one := reported(noon, said(100, 0.1))
	two, three := &meter{}, &meter{}
	served(two, noon.Add(-time.Minute), 100, 10*time.Millisecond, Served)
	all := func() []float64 {
		return weights([]estimate{one.estimate(noon, leastMemory), two.estimate(noon, leastMemory), three.estimate(noon, leastMemory)})
	}
	w := all()
	require.InDelta(t, w[1], w[0], w[1]/10, "a single report has nothing to compare with")
	three = reported(noon, said(50, 0.1))
	w = all()
	require.InDelta(t, 2, w[0]/w[2], 1e-9)
	require.Zero(t, w[1], "the mean, when it is chosen")
}

func TestAFailingInstanceDoesNotTalkItselfHeavier(t *testing.T) {
	m := reported(noon, said(100, 0.5))
	m.report(noon, said(1000, 0.01), true)
	require.InDelta(t, 200, m.estimate(noon, leastMemory).said, 1e-9)
	m.report(noon, said(100, 1), true)
	require.InDelta(t, 100, m.estimate(noon, leastMemory).said, 1e-9)
	silent := &meter{}
	silent.report(noon, said(1000, 0.01), true)
	require.Zero(t, silent.estimate(noon.Add(blackout), leastMemory).said)

	// What it does not say of its failures is what was seen of them.
	quick := reported(noon, said(1000, 0.1))
	served(quick, noon, 90, 0, Failed)
	served(quick, noon, 10, 0, Served)
	require.InDelta(t, 1000, quick.estimate(noon, leastMemory).said, 1e-9)
}
