package cli

import (
	"bytes"
	"testing"
	"text/tabwriter"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestTop_ShowsNewestSamplesAndUnknownIsNotZero(t *testing.T) {
	state := topState{}
	state.update(&windlassv1.WatchSeriesResponse{Reset_: true, Regions: []*windlassv1.RegionSeries{
		{Region: "eu", Samples: []*windlassv1.SeriesSample{
			{At: 0, SpanMs: 30_000, Requests: new(uint64(9000)), Errors: new(uint64(9000))},
			{At: 30_000, SpanMs: 30_000, Requests: new(uint64(60)), Errors: new(uint64(3)), LatencyP95: new(0.25)},
			{At: 60_000, SpanMs: 5_000, Requests: new(uint64(1)), Errors: new(uint64(0)), Queued: new(4.0), Wanted: new(int32(3)), Ready: new(int32(2))},
		}},
		{Region: "us", Problem: "region us does not answer: it is asked again and again", Samples: []*windlassv1.SeriesSample{
			{At: 30_000, SpanMs: 30_000, Wanted: new(int32(3)), Ready: new(int32(0))},
		}},
		{Region: "zz"},
	}})
	// The newest sample is sent again until its step has ended.
	state.update(&windlassv1.WatchSeriesResponse{RemovedRegions: []string{"zz"}, Regions: []*windlassv1.RegionSeries{{Region: "eu", Samples: []*windlassv1.SeriesSample{
		{At: 60_000, SpanMs: 10_000, Requests: new(uint64(20)), Errors: new(uint64(1)), Queued: new(4.0), Wanted: new(int32(3)), Ready: new(int32(2))},
	}}}})
	text := func(now int64) string {
		var out bytes.Buffer
		w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
		state.writeTable(w, now)
		require.NoError(t, w.Flush())
		return out.String()
	}
	require.Equal(t, ""+
		"REGION    REQUESTS/S  ERRORS  P95    FIRST TOKEN  QUEUE  READY  WANTED\n"+
		"eu        2.0         5.0%    250ms  -            4      2      3\n"+
		"us        -           -       -      -            -      0      3\n"+
		"Missing:  region us does not answer: it is asked again and again\n", text(70_000))
	require.Contains(t, text(600_000), "eu        -  ", "an old sample is not the present load")
}
