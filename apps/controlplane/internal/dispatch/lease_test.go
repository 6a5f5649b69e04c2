package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLease_GrowsWithTheFleet(t *testing.T) {
	const shortest = 15 * time.Second
	for agents, want := range map[int]time.Duration{
		0: shortest, 1: shortest, 270: shortest,
		540: 30 * time.Second, 1080: time.Minute,
		100_000: time.Minute,
	} {
		require.InDelta(t, want, leaseOf(shortest, agents), float64(time.Second), "%d agents", agents)
	}
	require.Equal(t, 5*time.Minute, leaseOf(5*time.Minute, 1000), "a longer configured lease is not shortened")
}

func TestLease_IsShortenedOnlyAfterTheLongerOneHasExpired(t *testing.T) {
	begin, l := time.Unix(0, 0), NewLease(0)
	at := func(agents int, after time.Duration) time.Duration {
		l.setAgents(agents)
		return l.leftAt(begin.Add(after))
	}
	require.Equal(t, 40*time.Second, at(720, 0))
	require.Equal(t, 40*time.Second, at(270, longestLease), "an agent may still use the longer lease")
	require.Equal(t, 15*time.Second, at(270, longestLease+1))
	require.Equal(t, 20*time.Second, at(360, longestLease+2), "a longer lease applies at once")
}
