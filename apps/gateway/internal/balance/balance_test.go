package balance

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func endpoints(n int) []*Endpoint {
	out := make([]*Endpoint, n)
	for i := range out {
		out[i] = NewEndpoint(fmt.Sprintf("ins_%d", i), fmt.Sprintf("127.0.0.1:%d", 1000+i))
	}
	return out
}

func TestTurns_HoldWeightsWithinOnePercentOverTenThousandRequests(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Int64Range(0, 1000), 1, 6).Draw(t, "weights")
		var turns Turns
		turns.Begin(rapid.Uint64().Draw(t, "begin"))
		var total int64
		for _, w := range weights {
			total += w
		}
		const requests = 10_000
		got := make([]int64, len(weights))
		for range requests {
			i := turns.Next(weights)
			if total == 0 {
				require.Equal(t, -1, i)
				continue
			}
			got[i]++
		}
		for i, w := range weights {
			if w == 0 {
				require.Zero(t, got[i])
				continue
			}
			require.InDelta(t, float64(requests)*float64(w)/float64(total), float64(got[i]), requests/100)
		}
	})
}

func TestTurns_HoldWeightsWithConcurrentCallers(t *testing.T) {
	var turns Turns
	weights := []int64{90, 10}
	var mu sync.Mutex
	var got [2]int
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var mine [2]int
			for range 2500 {
				mine[turns.Next(weights)]++
			}
			mu.Lock()
			defer mu.Unlock()
			got[0] += mine[0]
			got[1] += mine[1]
		})
	}
	wg.Wait()
	require.InDelta(t, 2000, got[1], 20)
}

func TestStrategy_ChoosesOneOfTheCandidates(t *testing.T) {
	require.Equal(t, []string{Affinity, LeastRequests, PowerOfTwo, RoundRobin, Weighted}, Names())
	_, err := New("fastest")
	require.ErrorContains(t, err, `"fastest" is not known`)
	rapid.Check(t, func(t *rapid.T) {
		s, err := New(rapid.SampledFrom(Names()).Draw(t, "strategy"))
		require.NoError(t, err)
		all := endpoints(8)
		for range 50 {
			n := rapid.IntRange(1, 8).Draw(t, "candidates")
			i := s.Pick(all[:n], Request{Affinity: rapid.StringN(0, 3, -1).Draw(t, "key"), Random: rapid.Uint64().Draw(t, "random")})
			require.GreaterOrEqual(t, i, 0)
			require.Less(t, i, n)
			all[i].Begin()
		}
	})
}

func TestStrategy_SpreadsRequestsEvenlyOverEqualInstances(t *testing.T) {
	for _, name := range []string{RoundRobin, LeastRequests, Weighted} {
		s, err := New(name)
		require.NoError(t, err)
		all := endpoints(3)
		for range 300 {
			all[s.Pick(all, Request{})].Begin()
		}
		for _, e := range all {
			require.Equal(t, int64(100), e.InFlight(), name)
		}
	}
}

func TestLeastRequests_AvoidsBusyInstances(t *testing.T) {
	s, err := New(LeastRequests)
	require.NoError(t, err)
	all := endpoints(3)
	for range 5 {
		all[0].Begin()
		all[1].Begin()
	}
	for range 5 {
		require.Equal(t, 2, s.Pick(all, Request{}))
		all[2].Begin()
	}
}

func TestPowerOfTwo_NeverChoosesTheBusierOfTwo(t *testing.T) {
	s, err := New(PowerOfTwo)
	require.NoError(t, err)
	all := endpoints(2)
	all[0].Begin()
	for range 100 {
		require.Equal(t, 1, s.Pick(all, Request{Random: rand.Uint64()}))
	}
}

func TestAffinity_MovesOnlyTheKeysOfAnInstanceThatIsRemoved(t *testing.T) {
	s, err := New(Affinity)
	require.NoError(t, err)
	all := endpoints(10)
	without := append(append([]*Endpoint{}, all[:3]...), all[4:]...)
	moved, perInstance := 0, make([]int, len(all))
	for i := range 10_000 {
		req := Request{Affinity: fmt.Sprintf("session-%d", i)}
		before := all[s.Pick(all, req)]
		perInstance[s.Pick(all, req)]++
		require.Same(t, before, all[s.Pick(all, req)], "the same key, the same instance")
		after := without[s.Pick(without, req)]
		if before == all[3] {
			moved++
			continue
		}
		require.Same(t, before, after)
	}
	for _, n := range perInstance {
		require.InDelta(t, 1000, n, 200, "%v", perInstance)
	}
	require.Equal(t, perInstance[3], moved)
}

func TestAffinity_DoesNotOverloadTheInstanceOfOneKey(t *testing.T) {
	s, err := New(Affinity)
	require.NoError(t, err)
	all := endpoints(4)
	for range 400 { // all with the same key, and none ends
		all[s.Pick(all, Request{Affinity: "hot"})].Begin()
	}
	for _, e := range all {
		require.LessOrEqual(t, e.InFlight(), int64(400*boundNumerator/(4*boundDenominator)+1+overShare))
		require.Positive(t, e.InFlight())
	}
}

func BenchmarkPick(b *testing.B) {
	all := endpoints(16)
	for _, name := range Names() {
		s, err := New(name)
		require.NoError(b, err)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			n := uint64(0)
			for b.Loop() {
				n += golden
				s.Pick(all, Request{Affinity: "session-1234567890", Random: n})
			}
		})
	}
}
