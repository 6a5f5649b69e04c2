package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestExcess_IgnoresRandomDifferences(t *testing.T) {
	for _, c := range []struct{ own, all, peers, want int }{
		{0, 0, 1, 0},
		{1000, 1000, 1, 0}, // the only process
		{1000, 1000, 0, 0}, // the list does not have even this process
		{0, 300, 3, 0},
		{100, 300, 3, 0},
		{127, 300, 3, 0},
		{128, 300, 3, 28},
		{150, 300, 3, 50},
		{300, 300, 3, 200},
		{3, 3, 3, 0}, // a few streams are not worth moving
		{5, 2, 2, 0}, // the sum was counted before the newest streams came
		{9, 2, 2, 4},
	} {
		require.Equal(t, c.want, excessStreams(c.own, c.all, c.peers), "%+v", c)
	}
}

func TestExcess_DelayGrowsWithTheNumberOfAgents(t *testing.T) {
	require.Equal(t, 100*time.Millisecond, spreadOf(0))
	require.Equal(t, 2*time.Second, spreadOf(1000))
	require.Equal(t, 10*time.Second, spreadOf(1_000_000))
}
