package traffic_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/traffic"
	"github.com/windlass-run/windlass/pkg/histogram"
)

func TestTraffic_ChangesAreReportedWhole(t *testing.T) {
	t.Parallel()
	var all traffic.Traffic
	changed, told := all.Changed(nil)
	require.Empty(t, changed)
	require.Empty(t, told)

	all.Ended(traffic.Request{DeploymentID: "dep_1", Took: 20 * time.Millisecond})
	all.Ended(traffic.Request{DeploymentID: "dep_1", Took: 3 * time.Second, FirstToken: 40 * time.Millisecond, Failed: true})
	all.Ended(traffic.Request{DeploymentID: "dep_2", Took: time.Hour})
	changed, told = all.Changed(nil)
	require.Equal(t, map[string]uint64{"dep_1": 2, "dep_2": 1}, told)
	require.Len(t, changed, 2)
	for _, c := range changed {
		latency, first := histogram.Unpack(c.Latency), histogram.Unpack(c.FirstToken)
		require.Equal(t, c.Requests, latency.Total())
		if c.DeploymentId == "dep_1" {
			require.EqualValues(t, 1, c.Errors)
			require.EqualValues(t, 1, first[histogram.Bucket(40*time.Millisecond)])
		}
	}

	changed, told = all.Changed(told)
	require.Empty(t, changed, "nothing is new")
	all.Ended(traffic.Request{DeploymentID: "dep_2", Took: time.Second})
	changed, told = all.Changed(told)
	require.Len(t, changed, 1)
	require.EqualValues(t, 2, changed[0].Requests, "counts are totals")

	all.Forget("dep_2")
	all.Ended(traffic.Request{DeploymentID: "dep_2", Took: time.Second})
	changed, _ = all.Changed(told)
	require.Len(t, changed, 1)
	require.EqualValues(t, 1, changed[0].Requests, "after Forget the count begins at 0")
}
