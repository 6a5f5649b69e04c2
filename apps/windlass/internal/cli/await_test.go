package cli

import (
	"context"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// crowded is a control plane that has no place for one more watcher.
type crowded struct {
	full
	asked atomic.Int32
}

func (f *crowded) WatchApp(_ context.Context, req *windlassv1.WatchAppRequest, out *connect.ServerStream[windlassv1.WatchAppResponse]) error {
	if !req.GetOnce() {
		return rpc.Error(connect.CodeResourceExhausted, windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "", "your key has as many watchers as it may have on this server")
	}
	f.asked.Add(1)
	return out.Send(&windlassv1.WatchAppResponse{App: &windlassv1.App{Name: "chat"}, Deleted: true})
}

func TestFollow_AsksFromTimeToTimeWhereThereIsNoPlaceForAWatcher(t *testing.T) {
	f := &crowded{}
	for _, args := range [][]string{{"status", "chat"}, {"status", "chat", "--watch"}} {
		out, err := runAgainst(t, f, args...)
		require.NoError(t, err)
		require.Contains(t, out, "deleted")
		require.NotContains(t, out, "watchers")
	}
	require.Equal(t, int32(2), f.asked.Load())
}
