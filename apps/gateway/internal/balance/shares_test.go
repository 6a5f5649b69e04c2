package balance

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func sessions(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint("session-", i)
	}
	return keys
}

func TestShares_HoldTheStepsOfACanaryWithinOnePercent(t *testing.T) {
	keys, shares := sessions(10_000), NewShares([]string{"dep_old", "dep_new"})
	before, moved := make([]int, len(keys)), 0
	for _, percent := range []int{0, 1, 5, 10, 25, 50, 75, 100} {
		got := 0
		for i, key := range keys {
			now := shares.Of(key, []int64{int64(100 - percent), int64(percent)})
			require.GreaterOrEqual(t, now, before[i], "%s went back to the old version at %d percent", key, percent)
			moved += now - before[i]
			before[i] = now
			got += now
		}
		require.InDelta(t, len(keys)*percent/100, got, float64(len(keys)/100), "%d percent", percent)
	}
	require.Equal(t, len(keys), moved, "each key moves once")
}

// The shares hold for any ids and any number of deployments.
func TestShares_HoldWeightsOverKeys(t *testing.T) {
	// For this many keys, one percent is at least six standard deviations.
	keys := sessions(100_000)
	rapid.Check(t, func(t *rapid.T) {
		shares, weights := drawShares(t)
		var total int64
		for _, w := range weights {
			total += w
		}
		got := make([]int64, len(weights))
		for _, key := range keys {
			i := shares.Of(key, weights)
			if total == 0 {
				require.Equal(t, -1, i)
				return
			}
			got[i]++
		}
		for i, w := range weights {
			if w == 0 {
				require.Zero(t, got[i])
			}
			require.InDelta(t, float64(len(keys))*float64(w)/float64(total), float64(got[i]), float64(len(keys))/100, "%v of %v", got, weights)
		}
	})
}

func TestShares_AWeightThatGrowsOnlyGainsKeys(t *testing.T) {
	keys := sessions(10_000)
	rapid.Check(t, func(t *rapid.T) {
		shares, weights := drawShares(t)
		grows := rapid.IntRange(0, len(weights)-1).Draw(t, "grows")
		more := append([]int64{}, weights...)
		more[grows] += rapid.Int64Range(0, 1000).Draw(t, "by")
		var total, totalMore int64
		for i := range weights {
			total, totalMore = total+weights[i], totalMore+more[i]
		}
		moved := 0
		for _, key := range keys {
			before, after := shares.Of(key, weights), shares.Of(key, more)
			if before != after {
				require.Equal(t, grows, after, key)
				moved++
			}
		}
		if total > 0 {
			gained := float64(more[grows])/float64(totalMore) - float64(weights[grows])/float64(total)
			require.InDelta(t, gained*float64(len(keys)), moved, float64(len(keys))*3/100)
		}
	})
}

// drawShares draws deployments and their weights.
func drawShares(t *rapid.T) (Shares, []int64) {
	weights := rapid.SliceOfN(rapid.Int64Range(0, 1000), 1, 6).Draw(t, "weights")
	name := rapid.StringMatching("[a-z]{1,8}").Draw(t, "name")
	ids := make([]string, len(weights))
	for i := range ids {
		ids[i] = fmt.Sprint(name, i)
	}
	return NewShares(ids), weights
}

func BenchmarkSharesOf(b *testing.B) {
	shares := NewShares([]string{"dep_01990f6e-1c7a-7b1e-9d5c-3f2a6b8c9d0e", "dep_01990f6e-1c7a-7b1e-9d5c-3f2a6b8c9d0f"})
	b.ReportAllocs()
	for b.Loop() {
		shares.Of("session-1234567890", []int64{90, 10})
	}
}
