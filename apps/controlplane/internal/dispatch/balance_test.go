package dispatch_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/dispatch"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/agent/v1/agentv1connect"
)

// from is the context key for the region of the calling agent.
type from struct{ region string }

func (f from) RoundTrip(req *http.Request) (*http.Response, error) {
	req.Header.Set("Region", f.region)
	return http.DefaultTransport.RoundTrip(req)
}

// serve runs the dispatcher behind a server like the program's.
func (h *harness) serve() (url string, stop func()) {
	h.t.Helper()
	listener, err := new(net.ListenConfig).Listen(h.t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(h.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- rpc.Serve(ctx, rpc.NewServer(rpc.ServerConfig{Handler: h.handler}), listener, patience)
	}()
	h.t.Cleanup(func() {
		cancel()
		require.NoError(h.t, <-served)
	})
	return "http://" + listener.Addr().String(), cancel
}

func TestBalance_StoppingServerMovesItsStreams(t *testing.T) {
	// Drain is not called, because the streams' contexts may end before Drain runs.
	h := setup(t, time.Minute)
	url, stop := h.serve()
	h.client = agentv1connect.NewAgentServiceClient(http.DefaultClient, url)
	w := newWatcher(t, "session-1")
	cancel := w.connect(h)
	defer cancel()
	w.step()
	stop()
	w.untilSentAway()
}

func TestBalance_MovesStreamsBeyondAShare(t *testing.T) {
	h := setup(t, time.Minute, func(c *dispatch.Config) {
		c.Peer, c.Even, c.EvenAfter = "cp_1", 10*time.Millisecond, 50*time.Millisecond
	})
	url, _ := h.serve()
	h.update(func(tx store.Tx) error { return tx.PutPeer(model.Peer{ID: "cp_1", Address: "a:1"}) })
	const regions = 9
	sent := make(chan *agentv1.GoAway, regions)
	for n := range regions {
		id := fmt.Sprintf("reg_%d", 100+n)
		h.update(func(tx store.Tx) error {
			return tx.InsertRegion(model.Region{ID: id, WorkspaceID: "ws_1", Name: id, ResourceVersion: 1})
		})
		client := agentv1connect.NewAgentServiceClient(&http.Client{Transport: from{id}}, url)
		stream, err := client.Watch(t.Context(), &agentv1.WatchRequest{SessionId: "session-" + id})
		require.NoError(t, err)
		t.Cleanup(func() { _ = stream.Close() })
		require.True(t, stream.Receive(), stream.Err())
		require.NotNil(t, stream.Msg().GetHello())
		go func() {
			for stream.Receive() {
				if away := stream.Msg().GetGoAway(); away != nil {
					sent <- away
				}
			}
		}()
	}
	require.Never(t, func() bool { return len(sent) > 0 }, 200*time.Millisecond, 10*time.Millisecond, "there is no other process")

	// Two processes join, so a third of the nine streams stays here.
	for _, id := range []string{"cp_2", "cp_3"} {
		h.update(func(tx store.Tx) error { return tx.PutPeer(model.Peer{ID: id, Address: "a:1"}) })
	}
	for range 6 {
		select {
		case away := <-sent:
			require.Positive(t, away.RetryAfter.AsDuration())
			require.LessOrEqual(t, away.RetryAfter.AsDuration(), time.Second, "a few agents return soon")
		case <-time.After(patience):
			require.FailNow(t, "too many streams stay")
		}
	}
	require.Never(t, func() bool { return len(sent) > 0 }, 200*time.Millisecond, 10*time.Millisecond, "the remaining streams are this process's share")
}
