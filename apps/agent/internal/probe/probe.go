// Package probe makes the health checks that a kubelet cannot make: those with a method other than
// GET, or with their own list of status codes that pass. It runs in the app's pod, in a separate
// container.
//
//	kubelet --gRPC--> probe --HEAD /health--> app
//
// The kubelet calls the probe over gRPC, because the kubelet shows the message of a gRPC error to
// people. Of an HTTP response, it shows only the status code. A gRPC request also has a deadline,
// so a check does not run for longer than the kubelet waits.
package probe

import (
	"context"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/windlass-run/windlass/pkg/healthcheck"
)

// Config configures Run.
type Config struct {
	// Check is the health check, made at Address ("host:port"). Its Timeout applies to requests
	// without a deadline.
	Check   healthcheck.Check
	Address string
	// Margin is how long before the request's deadline the check ends, so that its error reaches
	// the kubelet.
	Margin time.Duration
}

// Run serves checks on the listener until ctx ends. Checks that are in flight then are cut off,
// because their results are not needed.
func Run(ctx context.Context, l net.Listener, cfg Config) error {
	g := grpc.NewServer()
	// Each check opens a new connection, because it must find out whether the app accepts
	// connections.
	healthv1.RegisterHealthServer(g, &server{cfg: cfg, transport: &http.Transport{DisableKeepAlives: true}})
	cancelStop := context.AfterFunc(ctx, g.Stop)
	defer cancelStop()
	if err := g.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}

type server struct {
	healthv1.UnimplementedHealthServer
	cfg       Config
	transport http.RoundTripper
}

// Check implements healthv1.HealthServer: it makes one check.
func (s *server) Check(ctx context.Context, _ *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	c := s.cfg.Check
	if deadline, ok := ctx.Deadline(); ok {
		// The time is rounded to whole seconds, the kubelet's unit, because a part of a second has
		// passed on the way.
		c.Timeout = max((time.Until(deadline) - s.cfg.Margin).Round(time.Second), time.Second)
	}
	if err := c.Do(ctx, s.transport, s.cfg.Address); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}, nil
}
