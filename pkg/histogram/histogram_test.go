package histogram_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/pkg/histogram"
)

func TestQuantile_IsNearTheExactQuantile(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(rapid.Int64Range(int64(1001*time.Microsecond), int64(900*time.Second)), 1, 200).Draw(t, "durations")
		q := rapid.Float64Range(0.01, 1).Draw(t, "q")
		var c histogram.Counts
		for _, d := range all {
			c[histogram.Bucket(time.Duration(d))]++
		}
		slices.Sort(all)
		want := float64(all[int(math.Ceil(q*float64(len(all))))-1])
		got, ok := c.Quantile(q)
		require.True(t, ok)
		require.InEpsilon(t, want, float64(got), 0.6, "within one bucket")
		require.Equal(t, c, histogram.Unpack(c.Pack()))
		require.EqualValues(t, len(all), c.Total())
	})
}

func TestQuantile_AtTheEndsOfTheBuckets(t *testing.T) {
	t.Parallel()
	var c histogram.Counts
	_, ok := c.Quantile(0.95)
	require.False(t, ok)
	require.Empty(t, c.Pack())
	c[histogram.Bucket(0)]++
	got, ok := c.Quantile(1)
	require.True(t, ok)
	require.Equal(t, time.Millisecond, got)
	c[histogram.Bucket(24*time.Hour)] += 9
	got, _ = c.Quantile(0.95)
	require.Equal(t, 1000*time.Second, got)
	more := make([]uint64, histogram.Buckets+5)
	more[histogram.Buckets+4] = 3
	c = histogram.Unpack(more)
	require.EqualValues(t, 3, c[histogram.Buckets-1])
}
