package api_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const seriesStep = int64(30_000)

// keepSeries makes the agents of all regions answer requests for series with samples. asked counts the requests. The
// region in silent does not answer.
func (h *harness) keepSeries(asked *atomic.Int64, silent *atomic.Value, samples func() []*windlassv1.SeriesSample) {
	h.update(func(tx store.Tx) error {
		for _, id := range h.regions {
			if _, _, err := tx.StartSession(id, "session-"+id, 60_000, model.Region{AgentFeatures: []string{agentv1.Feature_FEATURE_SERIES.String()}}); err != nil {
				return err
			}
		}
		return nil
	})
	h.agents.answer = func(region string, req *agentv1.Request) ([]byte, error) {
		asked.Add(1)
		if silent.Load() == region {
			return nil, model.ErrAgentUnreachable
		}
		res := &agentv1.SeriesResponse{KeptSince: 5}
		for _, s := range samples() {
			if s.GetAt() >= req.GetSeries().GetSince() {
				res.Samples = append(res.Samples, s)
			}
		}
		return proto.Marshal(res)
	}
}

func (h *harness) watchSeries(key string, req *windlassv1.WatchSeriesRequest) (receive func() *windlassv1.WatchSeriesResponse, end func() error) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 30*time.Second)
	h.t.Cleanup(cancel)
	stream, err := h.series(key).WatchSeries(ctx, req)
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = stream.Close() })
	return func() *windlassv1.WatchSeriesResponse {
			h.t.Helper()
			require.True(h.t, stream.Receive(), "%v", stream.Err())
			return proto.CloneOf(stream.Msg())
		}, func() error {
			require.False(h.t, stream.Receive())
			return stream.Err()
		}
}

func TestWatchSeries_SendsTheLastHourFirstAndThenChanges(t *testing.T) {
	w := setup(t)
	w.deploy("chat")
	w.settle("chat")

	// For agents of an earlier release, the answer has a problem.
	receive, end := w.watchSeries(w.viewer, &windlassv1.WatchSeriesRequest{App: "chat", Once: true})
	res := receive()
	require.NoError(t, end())
	require.Len(t, res.GetRegions(), 2)
	require.Contains(t, res.GetRegions()[0].GetProblem(), "update it")

	var asked, newest atomic.Int64
	var silent atomic.Value
	first := time.Now().UnixMilli() / seriesStep * seriesStep
	newest.Store(7)
	w.keepSeries(&asked, &silent, func() []*windlassv1.SeriesSample {
		n := uint64(newest.Load())
		padded := &windlassv1.SeriesSample{At: first - seriesStep, SpanMs: seriesStep}
		padded.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, 512<<10)))
		return []*windlassv1.SeriesSample{
			{At: first - 2*3_600_000, SpanMs: seriesStep, Requests: new(uint64(1))},
			padded,
			{At: first, SpanMs: seriesStep, Requests: new(uint64(3)), Errors: new(uint64(1)), LatencyP95: new(0.25), Wanted: new(int32(2)), Ready: new(int32(2))},
			{At: first + seriesStep, SpanMs: 1000, Requests: &n},
			{At: first + seriesStep + 1, Requests: new(uint64(99))},                               // not at the beginning of a step
			{At: first + 2*seriesStep, SpanMs: 10, LatencyP95: new(-1.0), Wanted: new(int32(-3))}, // impossible values
			{At: first + 2*3_600_000, SpanMs: seriesStep},                                         // from a clock that is ahead
		}
	})
	receive, _ = w.watchSeries(w.viewer, &windlassv1.WatchSeriesRequest{App: "chat"})
	res = receive()
	require.True(t, res.GetReset_())
	require.Equal(t, seriesStep, res.GetStepMs())
	require.Len(t, res.GetRegions(), 2)
	require.Equal(t, "eu-west-1", res.GetRegions()[0].GetRegion())
	require.EqualValues(t, 5, res.GetRegions()[0].GetKeptSince())
	samples := res.GetRegions()[0].GetSamples()
	require.Len(t, samples, 3, "only valid samples of the last hour")
	require.Less(t, proto.Size(res), 4096, "unknown fields are not kept")
	require.EqualValues(t, 3, samples[1].GetRequests())
	require.EqualValues(t, 7, samples[2].GetRequests())
	require.Nil(t, samples[2].Errors, "unknown is not 0")

	// A second watcher causes no further requests, and gets all known samples at once.
	before := asked.Load()
	second, _ := w.watchSeries(w.deployer, &windlassv1.WatchSeriesRequest{App: "chat"})
	require.Len(t, second().GetRegions()[1].GetSamples(), 3)
	for range 20 {
		one, end := w.watchSeries(w.deployer, &windlassv1.WatchSeriesRequest{App: "chat", Once: true})
		require.Len(t, one().GetRegions()[1].GetSamples(), 3)
		require.NoError(t, end())
	}
	require.LessOrEqual(t, asked.Load()-before, int64(2), "at most one more picture")

	// Only changes are sent. A silent region keeps its samples and has a problem.
	newest.Store(8)
	silent.Store(w.regions["us-east-1"])
	res = receive()
	require.False(t, res.GetReset_())
	require.Len(t, res.GetRegions(), 2)
	require.Len(t, res.GetRegions()[0].GetSamples(), 1)
	require.EqualValues(t, 8, res.GetRegions()[0].GetSamples()[0].GetRequests())
	require.Empty(t, res.GetRegions()[1].GetSamples())
	require.Contains(t, res.GetRegions()[1].GetProblem(), "does not answer")
}

func TestWatchSeries_OtherWorkspacesSeeNothing(t *testing.T) {
	w := setup(t)
	app := w.deploy("chat").GetAppId()
	for _, once := range []bool{false, true} {
		_, end := w.watchSeries(w.rival, &windlassv1.WatchSeriesRequest{App: app, Once: once})
		refused(t, end(), connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "app")
	}
	_, end := w.watchSeries(w.operator, &windlassv1.WatchSeriesRequest{App: app})
	require.Equal(t, connect.CodePermissionDenied, connect.CodeOf(end()))
}
