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

// withWeights returns a strategy and its instances, with these weights as of the last update.
func withWeights(weights []float64, random uint64) (*weighted, []*Endpoint) {
	s, all := &weighted{}, endpoints(len(weights))
	s.Pick(all, Request{Now: noon, Random: random})
	for i, w := range weights {
		all[i].ensureMeter().weight.Store(math.Float64bits(w))
	}
	s.setScale(weights)
	return s, all
}

func TestWeighted_SharesHoldWithinOnePercentWithoutBursts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Float64Range(1, maxRatio), 2, 12).Draw(t, "weights")
		unit := rapid.SampledFrom([]float64{1e-6, 1, 1e6}).Draw(t, "unit")
		total := 0.0
		for i := range weights {
			weights[i] *= unit
			total += weights[i]
		}
		s, all := withWeights(weights, rapid.Uint64().Draw(t, "random"))
		const requests = 10_000
		got, off := make([]int, len(weights)), 0.0
		for k := range requests {
			got[s.Pick(all, Request{Now: noon})]++
			for i, w := range weights {
				off = max(off, math.Abs(float64(k+1)*w/total-float64(got[i])))
			}
		}
		require.LessOrEqual(t, off, float64(len(weights)), "it holds after any number of requests, so no instance gets a burst")
		for i, w := range weights {
			require.InDelta(t, requests*w/total, got[i], requests/100)
		}
	})
}

func TestRelativeShares_AreWhatInstancesGet(t *testing.T) {
	for _, weights := range [][]float64{{6, 2, 1}, {100, 1, 0}, {1, 1, 1}, {0, 0, 0}, {0, 5, 0}} {
		all := endpoints(3)
		s := &weighted{}
		s.Pick(all, Request{Now: noon})
		for i, w := range weights {
			all[i].ensureMeter().weight.Store(math.Float64bits(w))
		}
		s.setScale(weights)
		got := make([]int, 3)
		for range 9000 {
			got[s.Pick(all, Request{Now: noon})]++
		}
		for i, share := range RelativeShares(all) {
			require.InDelta(t, 3000*share, got[i], 3, "%v of %v", got, weights)
		}
	}
	require.Empty(t, RelativeShares(nil))
}

func TestWeighted_EqualWeightsAreRoundRobin(t *testing.T) {
	s, all := withWeights([]float64{7, 7, 7}, 0)
	last := s.Pick(all, Request{Now: noon})
	for range 100 {
		next := s.Pick(all, Request{Now: noon})
		require.Equal(t, (last+1)%3, next)
		last = next
	}
}

func TestWeighted_RatiosStayWhenAnInstanceIsMissing(t *testing.T) {
	s, all := withWeights([]float64{4, 2, 1, 1}, 0)
	got := make([]int, 3)
	for range 7000 {
		got[s.Pick(all[:3], Request{Now: noon})]++
	}
	for i, want := range []float64{4000, 2000, 1000} {
		require.InDelta(t, want, got[i], 4)
	}
	smaller := make([]int, 2) // without the instance of the largest weight
	for range 3000 {
		smaller[s.Pick(all[1:3], Request{Now: noon})]++
	}
	require.InDelta(t, 2000, smaller[0], 4)
}

func TestWeighted_SharesHoldWithConcurrentCallers(t *testing.T) {
	s, all := withWeights([]float64{3, 1}, 0)
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

func TestWeighted_NoInstanceGetsLessThanATenthOfAnother(t *testing.T) {
	s, all := withWeights([]float64{1e15, 1, 1e-9}, 0)
	got := make([]int, 3)
	for range 12_000 {
		got[s.Pick(all, Request{Now: noon})]++
	}
	for i, want := range []float64{10_000, 1000, 1000} {
		require.InDelta(t, want, got[i], 3)
	}
}

func TestWeighted_UpdatesAfterTheClockWasSetBack(t *testing.T) {
	s := &weighted{}
	all := endpoints(2)
	s.Pick(all, Request{Now: noon})
	s.Pick(all, Request{Now: noon.Add(updateInterval - 1)})
	require.Equal(t, noon.UnixNano(), s.updated.Load(), "updateInterval has not passed")
	s.Pick(all, Request{Now: noon.Add(updateInterval)})
	require.Equal(t, noon.Add(updateInterval).UnixNano(), s.updated.Load())
	s.Pick(all, Request{Now: noon.Add(-time.Hour)})
	require.Equal(t, noon.Add(-time.Hour).UnixNano(), s.updated.Load())
}

// serve makes an instance answer n requests, one after the other, each in took. It returns the end.
func serve(m *meter, at time.Time, n int, took time.Duration, how Outcome) time.Time {
	for range n {
		m.begin(at)
		at = at.Add(took)
		m.endRequest(at, how)
	}
	return at
}

// ratio returns the weight of a divided by that of b.
func ratio(now time.Time, a, b *meter) float64 {
	w := relativeWeights([]estimate{a.estimateAt(now, minMemory), b.estimateAt(now, minMemory)})
	return w[0] / w[1]
}

func TestWeights_AreInverseToTheTimeOfAnAnswer(t *testing.T) {
	var fast, slow meter
	require.Equal(t, []float64{0, 0}, relativeWeights([]estimate{fast.estimateAt(noon, minMemory), slow.estimateAt(noon, minMemory)}), "nothing was measured yet")
	serve(&fast, noon, 3000, time.Millisecond, Served)
	now := serve(&slow, noon, 1000, 3*time.Millisecond, Served)
	require.InDelta(t, 3, ratio(now, &fast, &slow), 0.05)
	for range 600 { // without a request
		now = now.Add(time.Second)
		fast.estimateAt(now, minMemory)
		slow.estimateAt(now, minMemory)
	}
	require.Equal(t, []float64{0, 0}, relativeWeights([]estimate{fast.estimateAt(now, minMemory), slow.estimateAt(now, minMemory)}), "measurements fade")
}

func TestWeights_ANewInstanceHasTheMeanWeight(t *testing.T) {
	var a, b, c meter
	serve(&a, noon, 100, 10*time.Millisecond, Served)
	now := serve(&b, noon, 100, 30*time.Millisecond, Served)
	w := relativeWeights([]estimate{a.estimateAt(now, minMemory), b.estimateAt(now, minMemory), c.estimateAt(now, minMemory)})
	require.InDelta(t, 1/0.02, w[2], 1e-9)
	serve(&c, now, 1, time.Second, Served) // the first answer is slow, because the instance warms up
	later := now.Add(time.Second)
	w = relativeWeights([]estimate{a.estimateAt(later, minMemory), b.estimateAt(later, minMemory), c.estimateAt(later, minMemory)})
	require.Greater(t, w[2], w[1]/10)
}

func TestWeights_AnInstanceThatHangsLosesWeightBeforeItAnswers(t *testing.T) {
	var healthy, hanging meter
	serve(&healthy, noon, 1000, 10*time.Millisecond, Served)
	now := serve(&hanging, noon, 1000, 10*time.Millisecond, Served)
	require.InDelta(t, 1, ratio(now, &hanging, &healthy), 1e-9)
	for range 20 {
		hanging.begin(now)
	}
	require.Less(t, ratio(now.Add(2*time.Second), &hanging, &healthy), 0.25)
}

func TestWeights_ARequestThatTheClientGaveUpIsNoAnswer(t *testing.T) {
	var a, b meter
	serve(&a, noon, 100, 10*time.Millisecond, Served)
	now := serve(&b, noon, 100, 10*time.Millisecond, Served)
	now = serve(&a, now, 1000, 10*time.Microsecond, Ignored)
	require.LessOrEqual(t, ratio(now, &a, &b), 1.0)
}

func TestWeights_AFailureNeverRaisesTheWeight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) estimate {
			return estimate{
				done: rapid.Float64Range(0, 1e4).Draw(t, label+" done"), failed: rapid.Float64Range(0, 1e4).Draw(t, label+" failed"),
				busy: rapid.Float64Range(0, 1e4).Draw(t, label+" busy"),
			}
		}
		a, b := draw("a"), draw("b")
		before := relativeWeights([]estimate{a, b})
		a.failed++
		after := relativeWeights([]estimate{a, b})
		require.LessOrEqual(t, after[0], before[0])
		require.Equal(t, before[1], after[1])
		if before[0] > 0 {
			require.Less(t, after[0], before[0])
		}
	})
	// The weight of an instance that only fails, and fails fast, keeps falling.
	var fails, healthy meter
	now := serve(&fails, noon, 100, 10*time.Millisecond, Served)
	serve(&healthy, noon, 100, 10*time.Millisecond, Served)
	last := ratio(now, &fails, &healthy)
	for range 60 {
		serve(&fails, now, 50, time.Microsecond, Failed)
		serve(&healthy, now, 50, 10*time.Millisecond, Served)
		now = now.Add(time.Second)
		next := ratio(now, &fails, &healthy)
		require.Less(t, next, max(last, 0.05))
		last = next
	}
	require.Less(t, last, 1.0/maxRatio)
}

func load(requests, utilization float64) orca.Load {
	return orca.Load{Requests: requests, Application: utilization}
}

// reporting returns the meter of an instance that sent the same report for a minute, until a time.
func reporting(until time.Time, load orca.Load) *meter {
	m := &meter{}
	for at := until.Add(-time.Minute); !at.After(until); at = at.Add(time.Second) {
		m.keepReport(at, load, false)
	}
	return m
}

func TestReports_AreWeighedByTheFormulaOfA58(t *testing.T) {
	for _, c := range []struct {
		load orca.Load
		want float64
	}{
		{load(100, 0.5), 200},
		{orca.Load{Requests: 100, CPU: 0.25}, 400},
		{orca.Load{Requests: 100, Application: 0.5, CPU: 0.25, Errors: 50}, 100},
		{orca.Load{Requests: 100}, 0},
		{orca.Load{CPU: 1}, 0},
		{load(1e300, 1e-300), maxReported},
		{load(1e-300, 1e300), minReported},
	} {
		require.InDelta(t, c.want, reporting(noon, c.load).estimateAt(noon, minMemory).reported, 1e-9)
	}
}

func TestReports_CountAfterTheBlackoutAndUntilTheyExpire(t *testing.T) {
	m := &meter{}
	usable := func(at time.Duration) bool { return m.estimateAt(noon.Add(at), minMemory).reported > 0 }
	m.keepReport(noon, load(10, 0.5), false)
	require.False(t, usable(blackout-1))
	require.True(t, usable(blackout))
	require.True(t, usable(expiry-1))
	require.False(t, usable(expiry))
	m.keepReport(noon.Add(expiry), load(10, 0.5), false)
	require.False(t, usable(expiry+blackout-1), "after an expired report a new blackout begins")
	require.True(t, usable(expiry+blackout))
	e := NewEndpoint("ins_1", "127.0.0.1:1")
	e.ensureMeter().keepReport(noon, load(10, 0.5), false)
	require.Positive(t, e.ensureMeter().estimateAt(noon.Add(blackout), minMemory).reported)
	e.Forget()
	require.Zero(t, e.ensureMeter().estimateAt(noon.Add(blackout), minMemory).reported, "Forget drops reports")
}

func TestWeights_MeasurementsCountWithFewerThanTwoReports(t *testing.T) {
	one := reporting(noon, load(100, 0.1))
	two, three := &meter{}, &meter{}
	serve(two, noon.Add(-time.Minute), 100, 10*time.Millisecond, Served)
	all := func() []float64 {
		return relativeWeights([]estimate{one.estimateAt(noon, minMemory), two.estimateAt(noon, minMemory), three.estimateAt(noon, minMemory)})
	}
	w := all()
	require.InDelta(t, w[1], w[0], w[1]/10, "a single report cannot be compared")
	three = reporting(noon, load(50, 0.1))
	w = all()
	require.InDelta(t, 2, w[0]/w[2], 1e-9)
	require.Zero(t, w[1], "unknown, for which Pick takes the mean")
}

func TestReports_WithFailuresDoNotRaiseTheWeight(t *testing.T) {
	m := reporting(noon, load(100, 0.5))
	m.keepReport(noon, load(1000, 0.01), true)
	require.InDelta(t, 200, m.estimateAt(noon, minMemory).reported, 1e-9)
	m.keepReport(noon, load(100, 1), true)
	require.InDelta(t, 100, m.estimateAt(noon, minMemory).reported, 1e-9)
	silent := &meter{}
	silent.keepReport(noon, load(1000, 0.01), true)
	require.Zero(t, silent.estimateAt(noon.Add(blackout), minMemory).reported)

	// Failures that the instance does not report are measured.
	quick := reporting(noon, load(1000, 0.1))
	serve(quick, noon, 90, 0, Failed)
	serve(quick, noon, 10, 0, Served)
	require.InDelta(t, 1000, quick.estimateAt(noon, minMemory).reported, 1e-9)
}
