package measure

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProcessorTime(t *testing.T) {
	t.Parallel()
	t.Run("stolen time is a share of the wanted time", func(t *testing.T) {
		t.Parallel()
		earlier := parseProcessorTime("100 10 50 1000 5 1 2 20 0 0")
		require.Equal(t, ProcessorTime{Used: 163, Stolen: 20}, earlier)
		require.InDelta(t, 0.25, parseProcessorTime("160 20 70 2000 9 1 2 50 0 0").StolenSince(earlier), 1e-9)
		require.Zero(t, earlier.StolenSince(earlier))
	})
	t.Run("a system that does not count it has zeros", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, ProcessorTime{Used: 6}, parseProcessorTime("1 2 3 4"))
		require.Zero(t, parseProcessorTime(""))
		require.Zero(t, parseProcessorTime("1 two"))
	})
}
