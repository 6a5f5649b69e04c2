package scenario

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPairsOutcome_OnlyRequestsInFlightOnAKilledServerMayFail(t *testing.T) {
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	o := pairsOutcome{failures: []pairsFailure{
		{begun: at(1), ended: at(2), text: "before"}, {begun: at(3), ended: at(5), text: "in flight"}, {begun: at(5), ended: at(6), text: "after"},
	}}
	failed, inFlight := o.splitFailures([]time.Time{at(4)})
	require.Equal(t, 1, inFlight)
	require.Len(t, failed, 2)
	require.Equal(t, "after 1s: before", failed[0].String())
	failed, inFlight = o.splitFailures(nil)
	require.Zero(t, inFlight)
	require.Len(t, failed, 3)
}

func TestPairs_NamesEventsThatDoNotExist(t *testing.T) {
	_, err := (&Pairs{Only: []string{"update-both", "earthquake"}}).events()
	require.ErrorContains(t, err, "--only=earthquake: has to be one of update-decode,")
	events, err := (&Pairs{Only: []string{"kill-agent", "update-both"}}).events()
	require.NoError(t, err)
	require.Equal(t, []string{"update-both", "kill-agent"}, events)
}
