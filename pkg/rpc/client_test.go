package rpc

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

func TestCredential_IsReadForEachCall(t *testing.T) {
	f := setup(t, settings{})
	var token, seen atomic.Value
	recordHeader := func(ctx context.Context) {
		info, _ := connect.CallInfoForHandlerContext(ctx)
		seen.Store(info.RequestHeader().Get("Authorization") + "|" + info.RequestHeader().Get("User-Agent"))
	}
	f.get = func(ctx context.Context, _ string) (*windlassv1.GetProjectResponse, error) {
		recordHeader(ctx)
		return &windlassv1.GetProjectResponse{}, nil
	}
	f.watch = func(ctx context.Context, send func() error) error {
		recordHeader(ctx)
		return send()
	}
	options := ClientOptions(ClientConfig{UserAgent: "windlass/1.2.3", Token: func() string { return token.Load().(string) }})

	for _, value := range []string{"first", "second"} {
		token.Store(value)
		_, err := f.projects(options...).GetProject(t.Context(), echo)
		require.NoError(t, err)
		require.Equal(t, "Bearer "+value+"|windlass/1.2.3", seen.Load())

		seen.Store("")
		stream, err := f.apps(options...).WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "echo"})
		require.NoError(t, err)
		require.True(t, stream.Receive())
		require.Equal(t, "Bearer "+value+"|windlass/1.2.3", seen.Load())
	}
	token.Store("")
	_, err := f.projects(options...).GetProject(t.Context(), echo)
	require.NoError(t, err)
	require.Equal(t, "|windlass/1.2.3", seen.Load())
}

func TestClient_BoundsUnaryCallsAndNotStreams(t *testing.T) {
	f := setup(t, settings{})
	f.get = func(ctx context.Context, _ string) (*windlassv1.GetProjectResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	options := ClientOptions(ClientConfig{Timeout: 20 * time.Millisecond})
	_, err := f.projects(options...).GetProject(t.Context(), echo)
	require.Equal(t, connect.CodeDeadlineExceeded, connect.CodeOf(err))

	f.watch = func(ctx context.Context, send func() error) error {
		if _, ok := ctx.Deadline(); ok {
			return Error(connect.CodeInvalidArgument, validation, "", "a stream has a deadline")
		}
		return send()
	}
	stream, err := f.apps(options...).WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "echo"})
	require.NoError(t, err)
	require.True(t, stream.Receive(), "%v", stream.Err())
}

func TestClient_SilentServerIsGivenUp(t *testing.T) {
	// mute accepts connections and sends nothing.
	mute, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer mute.Close()

	for _, http1 := range []bool{false, true} {
		client := NewHTTPClient(HTTPClientConfig{HeaderTimeout: 20 * time.Millisecond, HTTP1: http1})
		apps := windlassv1connect.NewAppServiceClient(client, "http://"+mute.Addr().String())
		stream, err := apps.WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "echo"})
		if err == nil {
			require.False(t, stream.Receive())
			err = stream.Err()
		}
		require.Error(t, err)
	}
}

func TestStream_OutlivesTheHeaderTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 300 * time.Millisecond
	f := setup(t, settings{})
	f.http = NewHTTPClient(HTTPClientConfig{HeaderTimeout: timeout})
	defer f.http.CloseIdleConnections()
	f.watch = func(ctx context.Context, send func() error) error {
		if err := send(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(timeout + timeout/2): // the test is about time
		}
		return send()
	}
	stream, err := f.apps().WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "echo"})
	require.NoError(t, err)
	require.True(t, stream.Receive())
	require.True(t, stream.Receive(), "%v", stream.Err())
}

func TestClient_UnreachableServerIsUnavailable(t *testing.T) {
	gone, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	_, err = windlassv1connect.NewProjectServiceClient(NewHTTPClient(HTTPClientConfig{}), "http://"+gone.Addr().String()).
		GetProject(t.Context(), echo)
	require.Equal(t, connect.CodeUnavailable, connect.CodeOf(err))
	require.Equal(t, unavailable, ReasonOf(err))
}

func TestClient_ServerThatDiesIsUnavailable(t *testing.T) {
	dying, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer dying.Close()
	go func() {
		for {
			conn, err := dying.Accept()
			if err != nil {
				return
			}
			// The kernel resets connections in this way if a process is killed before it has read all received bytes.
			_, _ = conn.Read(make([]byte, 1))
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	}()
	options := ClientOptions(ClientConfig{})
	for _, http1 := range []bool{false, true} {
		client := NewHTTPClient(HTTPClientConfig{HTTP1: http1})
		_, err := windlassv1connect.NewProjectServiceClient(client, "http://"+dying.Addr().String(), options...).GetProject(t.Context(), echo)
		require.Equal(t, connect.CodeUnavailable, connect.CodeOf(err), "%v", err)

		stream, err := windlassv1connect.NewAppServiceClient(client, "http://"+dying.Addr().String(), options...).
			WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "echo"})
		if err == nil {
			require.False(t, stream.Receive())
			err = stream.Err()
		}
		require.Equal(t, connect.CodeUnavailable, connect.CodeOf(err), "%v", err)
	}
}

func TestCall_CancelledHasItsCode(t *testing.T) {
	f := setup(t, settings{})
	ctx, cancel := context.WithCancel(t.Context())
	f.get = func(ctx context.Context, _ string) (*windlassv1.GetProjectResponse, error) {
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	_, err := f.projects(ClientOptions(ClientConfig{})...).GetProject(ctx, echo)
	require.Equal(t, connect.CodeCanceled, connect.CodeOf(err), "%v", err)
}

func TestCredential_FollowsNoRedirect(t *testing.T) {
	var followed atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Store(true) }))
	defer elsewhere.Close()
	here := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer here.Close()

	client := NewHTTPClient(HTTPClientConfig{HTTP1: true})
	defer client.CloseIdleConnections()
	_, err := windlassv1connect.NewProjectServiceClient(client, here.URL).GetProject(t.Context(), echo)
	require.Error(t, err)
	require.False(t, followed.Load())
}

func TestDialer_KeepsOtherSettingsOfAClient(t *testing.T) {
	f := setup(t, settings{})
	var opened atomic.Int64
	client := NewHTTPClient(HTTPClientConfig{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		opened.Add(1)
		_, bounded := ctx.Deadline()
		require.True(t, bounded)
		return new(net.Dialer).DialContext(ctx, network, address)
	}})
	defer client.CloseIdleConnections()
	_, err := windlassv1connect.NewProjectServiceClient(client, f.url, ClientOptions(ClientConfig{})...).GetProject(t.Context(), echo)
	require.NoError(t, err)
	require.EqualValues(t, 1, opened.Load())
	own, shipped := client.Transport.(byScheme).plain, NewHTTPClient(HTTPClientConfig{}).Transport.(byScheme).plain
	require.Equal(t, shipped.HTTP2, own.HTTP2)
	require.Equal(t, shipped.IdleConnTimeout, own.IdleConnTimeout)
}
