package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestALeaseGrowsWithTheFleet(t *testing.T) {
	const shortest = 15 * time.Second
	for agents, want := range map[int]time.Duration{
		0: shortest, 1: shortest, 270: shortest,
		540: 30 * time.Second, 1080: time.Minute,
		100_000: time.Minute,
	} {
		require.InDelta(t, want, leaseOf(shortest, agents), float64(time.Second), "%d agents", agents)
	}
	require.Equal(t, 5*time.Minute, leaseOf(5*time.Minute, 1000), "what was asked for is not made shorter")
}

func TestALeaseThatWasToldHolds(t *testing.T) {
	begin := time.Unix(0, 0)
	var l lease
	require.Equal(t, 40*time.Second, l.at(begin, 40*time.Second))
	require.Equal(t, 40*time.Second, l.at(begin.Add(longestLease), 15*time.Second), "somebody may not have spoken since")
	require.Equal(t, 15*time.Second, l.at(begin.Add(longestLease+1), 15*time.Second))
	require.Equal(t, 20*time.Second, l.at(begin.Add(longestLease+2), 20*time.Second), "a longer one is told at once")
}
