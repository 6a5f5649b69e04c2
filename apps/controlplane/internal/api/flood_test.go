package api_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

const rateLimited = windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED

// countingViews counts read transactions of the store.
type countingViews struct {
	api.Store
	views *atomic.Int64
}

func (c countingViews) View(ctx context.Context, fn func(api.Tx) error) error {
	c.views.Add(1)
	return c.Store.View(ctx, fn)
}

func TestFailedLogins_AreRefusedBeforeTheDatabase(t *testing.T) {
	var views atomic.Int64
	w := setup(t, func(c *api.Config) {
		c.Store = countingViews{c.Store, &views}
		c.FailedLogins = admission.NewBuckets(admission.PerMinute(5))
		c.KeyCacheTTL = time.Nanosecond // each call looks its key up
	})
	madeUp := "wl_" + strings.Repeat("x", 43)
	who := func(key string) error {
		_, err := w.access(key).WhoAmI(t.Context(), &windlassv1.WhoAmIRequest{})
		return err
	}
	require.NoError(t, who(w.viewer))
	for range 5 {
		refused(t, who(madeUp), connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "")
	}
	before := views.Load()
	err := who(madeUp)
	refused(t, err, connect.CodeResourceExhausted, rateLimited, "")
	require.Equal(t, before, views.Load(), "the database is not read")
	require.Positive(t, rpc.DetailOf(err).GetLimit().GetRetryAfterMs())
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/windlass.v1.AccessService/WhoAmI", strings.NewReader("{}"))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+madeUp)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
	require.Regexp(t, `^([1-9]|1[0-2])$`, res.Header.Get("Retry-After"), "a token comes back every 12 s")

	require.NoError(t, who(w.viewer), "a key that was valid before is not refused because of failures from its address")
}

func TestReads_AreLimitedPerKey(t *testing.T) {
	w := setup(t, func(c *api.Config) { c.Reads = admission.NewBuckets(admission.PerMinute(3)) })
	list := func(key string) error {
		_, err := w.apps(key).ListApps(t.Context(), &windlassv1.ListAppsRequest{})
		return err
	}
	for range 3 {
		require.NoError(t, list(w.viewer))
	}
	refused(t, list(w.viewer), connect.CodeResourceExhausted, rateLimited, "")
	require.NoError(t, list(w.owner), "another key")
	_, err := w.access(w.owner).CreateApiKey(t.Context(), &windlassv1.CreateApiKeyRequest{Name: "another", Role: windlassv1.Role_ROLE_VIEWER})
	require.NoError(t, err, "a mutation does not count as a read")
}

func TestWatchApp_KeyOrWorkspaceCannotTakeAllWatchers(t *testing.T) {
	w := setup(t, func(c *api.Config) { c.MaxWatchers, c.KeyWatchers, c.WorkspaceWatchers = 10, 2, 3 })
	w.deploy("chat")
	limit := windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED
	openOf := func(key, app string) error {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		stream, err := w.apps(key).WatchApp(ctx, &windlassv1.WatchAppRequest{App: app})
		require.NoError(t, err)
		stream.Receive()
		return stream.Err()
	}
	open := func(key string) error { return openOf(key, "chat") }
	require.NoError(t, open(w.viewer))
	require.NoError(t, open(w.viewer))
	refused(t, openOf(w.viewer, "none"), connect.CodeResourceExhausted, limit, "") // the limit is checked before the app is read
	err := open(w.viewer)
	refused(t, err, connect.CodeResourceExhausted, limit, "")
	require.ErrorContains(t, err, "your key has reached its limit of watchers")
	require.NoError(t, open(w.deployer))
	err = open(w.owner)
	refused(t, err, connect.CodeResourceExhausted, limit, "")
	require.ErrorContains(t, err, "your workspace has reached its limit of watchers")

	stream, err := w.apps(w.viewer).WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "chat", Once: true})
	require.NoError(t, err)
	require.True(t, stream.Receive(), "a request for one picture does not count as a watcher")
	require.Equal(t, "chat", stream.Msg().GetApp().GetName())
	require.False(t, stream.Receive())
	require.NoError(t, stream.Err())
	require.NoError(t, stream.Close())
}

// At the limit, even a request for one picture is refused, because Admit does not see the body.
func TestStream_AboveTheLimitIsRefusedBeforeItsBody(t *testing.T) {
	w := setup(t, func(c *api.Config) { c.KeyWatchers = 1 })
	w.deploy("chat")
	admit := func(key, procedure string, inLoop bool) error {
		header := http.Header{"Authorization": {"Bearer " + key}}
		admission, err := w.api.Admit(t.Context(), rpc.Call{Procedure: procedure, Header: header, InLoop: inLoop})
		require.NotEmpty(t, admission.Caller, "a refused caller is also set")
		return err
	}
	const watch, list = "/windlass.v1.AppService/WatchApp", "/windlass.v1.AppService/ListApps"
	require.NoError(t, admit(w.viewer, watch, true), "below the limit")
	stream, err := w.apps(w.viewer).WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "chat"})
	require.NoError(t, err)
	require.True(t, stream.Receive())
	refused(t, admit(w.viewer, watch, true), connect.CodeResourceExhausted, windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "")
	require.NoError(t, admit(w.viewer, watch, false))
	require.NoError(t, admit(w.viewer, list, true), "not a stream")
	require.NoError(t, admit(w.deployer, watch, true), "another key")
	require.NoError(t, stream.Close())
}

func TestStream_RefusalHasARetryTimeInEachProtocol(t *testing.T) {
	w := setup(t, func(c *api.Config) { c.KeyWatchers = 1 })
	w.deploy("chat")
	stream, err := w.apps(w.viewer).WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "chat"})
	require.NoError(t, err)
	require.True(t, stream.Receive())
	for name, option := range map[string]connect.ClientOption{"Connect": connect.WithProtoJSON(), "gRPC": connect.WithGRPC(), "gRPC-Web": connect.WithGRPCWeb()} {
		client := windlassv1connect.NewAppServiceClient(rpc.NewHTTPClient(rpc.HTTPClientConfig{}), w.url,
			append(rpc.ClientOptions(rpc.ClientConfig{Token: func() string { return w.viewer }}), option)...)
		another, err := client.WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "chat"})
		require.NoError(t, err, name)
		require.False(t, another.Receive(), name)
		refused(t, another.Err(), connect.CodeResourceExhausted, windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "")
		var coded *connect.Error
		require.ErrorAs(t, another.Err(), &coded)
		require.Regexp(t, `^([5-9]|10)$`, coded.Meta().Get("Retry-After"), name)
	}
	require.NoError(t, stream.Close())
}
