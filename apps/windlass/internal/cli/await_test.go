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

// watchLimitServer is a control plane whose limit of watchers is reached.
type watchLimitServer struct {
	quotaServer
	polls atomic.Int32
}

func (f *watchLimitServer) WatchApp(_ context.Context, req *windlassv1.WatchAppRequest, out *connect.ServerStream[windlassv1.WatchAppResponse]) error {
	if !req.GetOnce() {
		return rpc.Error(connect.CodeResourceExhausted, windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "", "your key has as many watchers as it may have on this server")
	}
	f.polls.Add(1)
	return out.Send(&windlassv1.WatchAppResponse{App: &windlassv1.App{Name: "chat"}, Deleted: true})
}

func TestFollow_PollsIfTheLimitOfWatchersIsReached(t *testing.T) {
	f := &watchLimitServer{}
	for _, args := range [][]string{{"status", "chat"}, {"status", "chat", "--watch"}} {
		out, err := runAgainst(t, f, args...)
		require.NoError(t, err)
		require.Contains(t, out, "deleted")
		require.NotContains(t, out, "watchers")
	}
	require.Equal(t, int32(2), f.polls.Load())
}
