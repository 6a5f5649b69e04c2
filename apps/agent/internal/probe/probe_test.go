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

// margin is for a machine that is busy: what is waited for so long less comes in time.
const margin = 30 * time.Second

// started has a probe run for an app, and returns how a kubelet asks it.
func started(t *testing.T, app http.HandlerFunc) healthv1.HealthClient {
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
		require.NoError(t, <-ended, "it stops in order")
	})
	return healthv1.NewHealthClient(conn)
}

func TestAnAppPassesByTheCodesThatAreNamed(t *testing.T) {
	t.Parallel()
	answers := make(chan int, 2)
	c := started(t, func(w http.ResponseWriter, r *http.Request) {
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

func TestACheckEndsBeforeWhoAskedForItIsGone(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	c := started(t, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(gone)
	})
	ctx, cancel := context.WithTimeout(t.Context(), margin+time.Second)
	defer cancel()
	_, err := c.Check(ctx, &healthv1.HealthCheckRequest{})
	require.Equal(t, codes.Unavailable, status.Code(err), "%v: the words of the check, and not the end of the wait", err)
	require.Equal(t, "HEAD /up: no answer within 1s", status.Convert(err).Message())
	<-gone
}

func TestACheckIsGivenUpWithWhoAskedForIt(t *testing.T) {
	t.Parallel()
	asked, gone := make(chan struct{}), make(chan struct{})
	c := started(t, func(_ http.ResponseWriter, r *http.Request) {
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
