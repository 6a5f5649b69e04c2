package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// untilStopped sends a message, and returns when the context ends.
func untilStopped(ctx context.Context, send func() error) error {
	if err := send(); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func TestStop_SignalsStreamsAndFinishesUnaryCalls(t *testing.T) {
	f := setup(t, settings{grace: time.Minute})
	f.watch = untilStopped
	stream, err := f.apps().WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "echo"})
	require.NoError(t, err)
	require.True(t, stream.Receive())

	inside, finish := make(chan struct{}), make(chan struct{})
	f.get = func(ctx context.Context, _ string) (*windlassv1.GetProjectResponse, error) {
		close(inside)
		<-finish
		return &windlassv1.GetProjectResponse{}, ctx.Err()
	}
	answered := make(chan error, 1)
	go func() {
		_, err := f.projects().GetProject(t.Context(), echo)
		answered <- err
	}()
	<-inside

	stopped := make(chan error, 1)
	go func() { stopped <- f.stop() }()
	require.False(t, stream.Receive())
	requireError(t, stream.Err(), connect.CodeUnavailable, unavailable, "")
	close(finish) // not before the stop has ended the stream
	require.NoError(t, <-answered)
	require.NoError(t, <-stopped)
}

func TestStop_CutsCallsAfterTheGrace(t *testing.T) {
	f := setup(t, settings{grace: 50 * time.Millisecond})
	inside, cut := make(chan struct{}), make(chan error, 1)
	f.get = func(ctx context.Context, _ string) (*windlassv1.GetProjectResponse, error) {
		close(inside)
		<-ctx.Done()
		cut <- context.Cause(ctx)
		return nil, ctx.Err()
	}
	go func() { _, _ = f.projects().GetProject(t.Context(), echo) }()
	<-inside
	err := f.stop()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "calls were cut after 50ms")
	require.ErrorIs(t, <-cut, errStopping)
}

func TestStreams_ShareOneConnectionWithoutTLS(t *testing.T) {
	f := setup(t, settings{})
	var mu sync.Mutex
	peers := map[string]int{}
	f.watch = func(ctx context.Context, send func() error) error {
		info, _ := connect.CallInfoForHandlerContext(ctx)
		mu.Lock()
		peers[info.Peer().Addr]++
		mu.Unlock()
		return untilStopped(ctx, send)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 300 {
		stream, err := f.apps().WatchApp(ctx, &windlassv1.WatchAppRequest{App: "echo"})
		require.NoError(t, err)
		require.True(t, stream.Receive())
	}
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, peers, 1)
}

func TestTLS_NegotiatesHTTP2(t *testing.T) {
	// httptest has a certificate for 127.0.0.1.
	donor := httptest.NewTLSServer(nil)
	defer donor.Close()
	roots := x509.NewCertPool()
	roots.AddCert(donor.Certificate())
	f := setup(t, settings{ServerConfig: ServerConfig{TLS: &tls.Config{Certificates: donor.TLS.Certificates}}})
	f.http = NewHTTPClient(HTTPClientConfig{TLS: &tls.Config{RootCAs: roots}})
	defer f.http.CloseIdleConnections()

	f.watch = untilStopped
	stream, err := f.apps().WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "echo"})
	require.NoError(t, err)
	require.True(t, stream.Receive())

	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+"/", nil)
	require.NoError(t, err)
	res, err := f.http.Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, 2, res.ProtoMajor)

	_, err = windlassv1connect.NewProjectServiceClient(NewHTTPClient(HTTPClientConfig{}), f.url).GetProject(t.Context(), echo)
	require.ErrorContains(t, err, "certificate")
}

// slowBody sends a byte and then nothing until it is closed.
type slowBody struct {
	once   sync.Once
	closed chan struct{}
	sent   bool
}

func (b *slowBody) Read(p []byte) (int, error) {
	if !b.sent {
		b.sent = true
		return copy(p, "{"), nil
	}
	<-b.closed
	return 0, io.EOF
}

func (b *slowBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

func TestBody_StalledIsGivenUp(t *testing.T) {
	f := setup(t, settings{ServerConfig: ServerConfig{BodyTimeout: 20 * time.Millisecond}})
	for _, http1 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http1=%v", http1), func(t *testing.T) {
			client := NewHTTPClient(HTTPClientConfig{HTTP1: http1})
			defer client.CloseIdleConnections()
			body := &slowBody{closed: make(chan struct{})}
			defer body.Close()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
				f.url+"/windlass.v1.ProjectService/GetProject", body)
			require.NoError(t, err)
			req.Header.Set("Content-Type", "application/json")
			res, err := client.Do(req)
			if err == nil {
				require.NotEqual(t, http.StatusOK, res.StatusCode)
				require.NoError(t, res.Body.Close())
			}
		})
	}
}

func TestBody_BeyondTheLimitIsCut(t *testing.T) {
	f := setup(t, settings{ServerConfig: ServerConfig{Limits: func(string) Limits { return Limits{WireBytes: 1000} }}})
	_, err := f.projects().GetProject(t.Context(), &windlassv1.GetProjectRequest{Project: strings.Repeat("x", 2000)})
	require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))
}

func TestStream_OutlivesTheBodysDeadline(t *testing.T) {
	t.Parallel()
	const timeout = 200 * time.Millisecond
	f := setup(t, settings{ServerConfig: ServerConfig{BodyTimeout: timeout}})
	f.watch = func(ctx context.Context, send func() error) error {
		for range 3 {
			if err := send(); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(timeout): // the test is about time
			}
		}
		return nil
	}
	for _, http1 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http1=%v", http1), func(t *testing.T) {
			t.Parallel()
			client := NewHTTPClient(HTTPClientConfig{HTTP1: http1})
			defer client.CloseIdleConnections()
			stream, err := windlassv1connect.NewAppServiceClient(client, f.url).WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "echo"})
			require.NoError(t, err)
			for range 3 {
				require.True(t, stream.Receive(), "%v", stream.Err())
			}
			require.False(t, stream.Receive())
			require.NoError(t, stream.Err())
		})
	}
}

func TestListener_ClosedIsAnError(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	err = Serve(t.Context(), NewServer(ServerConfig{Handler: http.NotFoundHandler()}), listener, time.Second)
	require.ErrorIs(t, err, net.ErrClosed)
}
