package rpc

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/conns"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// api answers with the functions that a test sets.
type api struct {
	windlassv1connect.UnimplementedProjectServiceHandler
	windlassv1connect.UnimplementedAppServiceHandler
	get   func(ctx context.Context, project string) (*windlassv1.GetProjectResponse, error)
	watch func(ctx context.Context, send func() error) error
}

func (a *api) GetProject(ctx context.Context, req *windlassv1.GetProjectRequest) (*windlassv1.GetProjectResponse, error) {
	if a.get == nil {
		return &windlassv1.GetProjectResponse{}, nil
	}
	return a.get(ctx, req.GetProject())
}

func (a *api) ListProjects(context.Context, *windlassv1.ListProjectsRequest) (*windlassv1.ListProjectsResponse, error) {
	return &windlassv1.ListProjectsResponse{}, nil
}

func (a *api) WatchApp(ctx context.Context, _ *windlassv1.WatchAppRequest, stream *connect.ServerStream[windlassv1.WatchAppResponse]) error {
	return a.watch(ctx, func() error { return stream.Send(&windlassv1.WatchAppResponse{}) })
}

// harness is a server on a loopback socket, and a client of it.
type harness struct {
	*api
	url  string
	http *http.Client
	log  *buffer
	// stop ends the server's context and returns what Serve returned.
	stop func() error
}

type settings struct {
	Config
	ServerConfig
	// table limits the connections of a listener with the name "api". Nil means no limit.
	table *conns.Table
	// grace is the grace period of a stop. By default, the end of the test cancels calls at once.
	grace time.Duration
}

func setup(t *testing.T, s settings) *harness {
	t.Helper()
	f := &harness{api: &api{}, log: &buffer{}}
	s.Config.Log = slog.New(slog.NewTextHandler(f.log, nil))
	mux := http.NewServeMux()
	mux.Handle(windlassv1connect.NewProjectServiceHandler(f.api, HandlerOptions(s.Config)...))
	mux.Handle(windlassv1connect.NewAppServiceHandler(f.api, HandlerOptions(s.Config)...))
	s.Handler = mux
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	if s.table != nil {
		listener = s.table.ListenAs("api", listener)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, NewServer(s.ServerConfig), listener, s.grace) }()
	f.stop = sync.OnceValue(func() error {
		cancel()
		return <-served
	})
	scheme := "http://"
	if s.TLS != nil {
		scheme = "https://"
	}
	f.url = scheme + listener.Addr().String()
	f.http = NewHTTPClient(HTTPClientConfig{})
	t.Cleanup(func() {
		f.http.CloseIdleConnections()
		_ = f.stop()
	})
	return f
}

func (h *harness) projects(options ...connect.ClientOption) windlassv1connect.ProjectServiceClient {
	return windlassv1connect.NewProjectServiceClient(h.http, h.url, options...)
}

func (h *harness) apps(options ...connect.ClientOption) windlassv1connect.AppServiceClient {
	return windlassv1connect.NewAppServiceClient(h.http, h.url, options...)
}

var echo = &windlassv1.GetProjectRequest{Project: "echo"}

func requireError(t *testing.T, err error, code connect.Code, reason windlassv1.ErrorReason, field string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, code, connect.CodeOf(err), err.Error())
	detail := DetailOf(err)
	require.NotNil(t, detail, err.Error())
	require.Equal(t, reason, detail.GetReason())
	require.Equal(t, reason, ReasonOf(err))
	require.Equal(t, field, detail.GetField())
}

// buffer is a log that a server writes while the test reads it.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
