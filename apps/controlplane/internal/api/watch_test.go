package api_test

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

type watching struct {
	t      *testing.T
	stream *connect.ServerStreamForClient[windlassv1.WatchAppResponse]
	cancel context.CancelFunc
}

func (h *harness) watch(key, app string) *watching {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 20*time.Second)
	stream, err := h.apps(key).WatchApp(ctx, &windlassv1.WatchAppRequest{App: app})
	require.NoError(h.t, err)
	x := &watching{t: h.t, stream: stream, cancel: cancel}
	h.t.Cleanup(func() { cancel(); _ = stream.Close() })
	return x
}

// until receives pictures until wanted returns true, and returns that picture.
func (x *watching) until(wanted func(*windlassv1.WatchAppResponse) bool) *windlassv1.WatchAppResponse {
	x.t.Helper()
	for x.stream.Receive() {
		if wanted(x.stream.Msg()) {
			return x.stream.Msg()
		}
	}
	require.NoError(x.t, x.stream.Err(), "the stream ended")
	return nil
}

func TestWatchApp_SendsTheWholePictureAndEachChange(t *testing.T) {
	w := setup(t)
	w.deploy("chat", args("a"))
	x := w.watch(w.viewer, "chat")
	first := x.until(func(*windlassv1.WatchAppResponse) bool { return true })
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_PROGRESSING, first.GetApp().GetStatus())
	require.Len(t, first.GetDeployments(), 1)
	require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING, first.GetRollout().GetStatus())
	seen := map[string]int{}
	for _, h := range first.GetHistory() {
		seen[h.GetId()]++
	}
	require.Len(t, seen, 2, "created, deployed")

	w.settle("chat")
	live := x.until(func(r *windlassv1.WatchAppResponse) bool {
		for _, h := range r.GetHistory() {
			seen[h.GetId()]++
		}
		return r.GetApp().GetStatus() == windlassv1.AppStatus_APP_STATUS_READY
	})
	require.Equal(t, int32(1), live.GetApp().GetLiveVersion())
	require.Equal(t, int32(2), live.GetDeployments()[0].GetRegions()[0].GetReady())
	require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED, live.GetRollout().GetStatus())
	all, err := w.history(w.viewer).ListHistory(t.Context(), &windlassv1.ListHistoryRequest{App: "chat"})
	require.NoError(t, err)
	for _, h := range all.GetEntries() {
		require.Equal(t, 1, seen[h.GetId()], "%s once", h.GetWhat())
	}

	w.deploy("chat", args("b"))
	both := x.until(func(r *windlassv1.WatchAppResponse) bool { return len(r.GetDeployments()) == 2 })
	require.Equal(t, []int32{1, 2}, []int32{both.GetDeployments()[0].GetVersion(), both.GetDeployments()[1].GetVersion()})
}

func TestWatchApp_EndsWithItsApp(t *testing.T) {
	w := setup(t)
	made := w.deploy("chat")
	w.settle("chat")
	x := w.watch(w.viewer, "chat")
	_, err := w.apps(w.owner).DeleteApp(t.Context(), &windlassv1.DeleteAppRequest{App: "chat"})
	require.NoError(t, err)
	w.settle(made.GetAppId())
	last := x.until((*windlassv1.WatchAppResponse).GetDeleted)
	require.Equal(t, made.GetAppId(), last.GetApp().GetId())
	require.False(t, x.stream.Receive())
	require.NoError(t, x.stream.Err())

	// A second watch by id has the same answer.
	again := w.watch(w.viewer, made.GetAppId())
	require.True(t, again.until(func(*windlassv1.WatchAppResponse) bool { return true }).GetDeleted())
}

func TestWatchApp_NeedsAKeyOfTheWorkspace(t *testing.T) {
	w := setup(t)
	made := w.deploy("chat")
	for _, key := range []string{"", w.rival, w.operator} {
		stream, err := w.apps(key).WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: made.GetAppId()})
		require.NoError(t, err)
		require.False(t, stream.Receive())
		require.Equal(t, map[string]connect.Code{
			"": connect.CodeUnauthenticated, w.rival: connect.CodeNotFound, w.operator: connect.CodePermissionDenied,
		}[key], connect.CodeOf(stream.Err()))
		require.NoError(t, stream.Close())
	}
}

func TestWatchApp_EndsSoonAfterItsKeyWasRevoked(t *testing.T) {
	w := setup(t, func(c *api.Config) { c.KeyCacheTTL = 20 * time.Millisecond })
	w.deploy("chat")
	made, err := w.access(w.owner).CreateApiKey(t.Context(), &windlassv1.CreateApiKeyRequest{Name: "ci", Role: windlassv1.Role_ROLE_VIEWER})
	require.NoError(t, err)
	x := w.watch(made.GetValue(), "chat")
	x.until(func(*windlassv1.WatchAppResponse) bool { return true })
	w.update(func(tx store.Tx) error {
		return tx.RevokeAPIKey(w.workspace, made.GetKey().GetId(), time.Now().UnixMilli())
	})
	for x.stream.Receive() {
	}
	require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(x.stream.Err()))
}

func TestWatch_EndsWhenTheServerStops(t *testing.T) {
	w := setup(t)
	w.deploy("chat")
	x := w.watch(w.viewer, "chat")
	x.until(func(*windlassv1.WatchAppResponse) bool { return true })
	ctx, stop := context.WithCancel(t.Context())
	stop()
	require.NoError(t, w.api.Run(ctx))
	for x.stream.Receive() {
	}
	refused(t, x.stream.Err(), connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE, "")
}

func TestWatch_AboveTheLimitIsRefused(t *testing.T) {
	w := setup(t, func(c *api.Config) { c.MaxWatchers = 1 })
	w.deploy("chat")
	x := w.watch(w.viewer, "chat")
	x.until(func(*windlassv1.WatchAppResponse) bool { return true })
	y := w.watch(w.viewer, "chat")
	require.False(t, y.stream.Receive())
	refused(t, y.stream.Err(), connect.CodeResourceExhausted, windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "")
	x.cancel()
	require.Eventually(t, func() bool {
		z := w.watch(w.viewer, "chat")
		return z.stream.Receive()
	}, time.Minute, 10*time.Millisecond, "a watcher that left makes room for another")
}
