package probe_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/windlass-run/windlass/apps/agent/internal/probe"
	"github.com/windlass-run/windlass/pkg/healthcheck"
)

// margin is long, so that the check's error arrives in time on a busy machine.
const margin = 30 * time.Second

// startProbe runs a probe for an app, and returns the client that a kubelet would use.
func startProbe(t *testing.T, app http.HandlerFunc) healthv1.HealthClient {
	t.Helper()
	server := httptest.NewServer(app)
	t.Cleanup(server.Close)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- probe.Run(ctx, l, probe.Config{
			Check:   healthcheck.Check{Method: "HEAD", Path: "/up", Codes: healthcheck.Codes{{First: 404, Last: 404}}, Timeout: time.Minute},
			Address: server.Listener.Addr().String(), Margin: margin,
		})
	}()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		stop()
		require.NoError(t, <-ended, "Run returns no error when ctx ends")
	})
	return healthv1.NewHealthClient(conn)
}

func TestCheck_PassesOnlyWithTheConfiguredCodes(t *testing.T) {
	t.Parallel()
	answers := make(chan int, 2)
	c := startProbe(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodHead || r.URL.Path != "/up" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.WriteHeader(<-answers)
	})
	answers <- http.StatusNotFound
	res, err := c.Check(t.Context(), &healthv1.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, healthv1.HealthCheckResponse_SERVING, res.GetStatus())

	answers <- http.StatusOK
	_, err = c.Check(t.Context(), &healthv1.HealthCheckRequest{})
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Equal(t, "HEAD /up answered 200 OK", status.Convert(err).Message())
}

func TestCheck_EndsBeforeTheDeadlineOfTheRequest(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	c := startProbe(t, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(gone)
	})
	ctx, cancel := context.WithTimeout(t.Context(), margin+time.Second)
	defer cancel()
	_, err := c.Check(ctx, &healthv1.HealthCheckRequest{})
	require.Equal(t, codes.Unavailable, status.Code(err), "%v: this must be the error of the check, not of the deadline", err)
	require.Equal(t, "HEAD /up: no answer within 1s", status.Convert(err).Message())
	<-gone
}

func TestCheck_EndsWhenTheRequestIsCancelled(t *testing.T) {
	t.Parallel()
	asked, gone := make(chan struct{}), make(chan struct{})
	c := startProbe(t, func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
		close(gone)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	_, err := c.Check(ctx, &healthv1.HealthCheckRequest{})
	require.Equal(t, codes.Canceled, status.Code(err))
	<-gone
}
