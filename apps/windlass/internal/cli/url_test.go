package cli

import (
	"context"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// urlServer is a control plane whose app has these URLs.
type urlServer struct {
	quotaServer
	urls []string
}

func (f *urlServer) WatchApp(_ context.Context, _ *windlassv1.WatchAppRequest, stream *connect.ServerStream[windlassv1.WatchAppResponse]) error {
	return stream.Send(&windlassv1.WatchAppResponse{App: &windlassv1.App{Urls: f.urls}})
}

func TestURL(t *testing.T) {
	f := &urlServer{urls: []string{"http://a:1", "http://a:2"}}
	out, err := runAgainst(t, f, "url", "a")
	require.NoError(t, err)
	require.Equal(t, "http://a:1\n", out)
	out, err = runAgainst(t, f, "url", "a", "--all")
	require.NoError(t, err)
	require.Equal(t, "http://a:1\nhttp://a:2\n", out)
}
