// Package probe makes the health checks that a kubelet cannot: by another method than GET,
// or with codes of their own. It runs in the pod, in a container beside the app's.
//
//	kubelet --gRPC--> probe --HEAD /health--> app
//
// The kubelet asks over gRPC because it passes on what it is told that way: of an answer over
// HTTP people get to see the code, and no text. It also says how long it waits, so that no
// check outlives who asked for it.
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

// Config of what Run serves.
type Config struct {
	// Check to make, of Address. Its Timeout is for those who do not say how long they wait.
	Check   healthcheck.Check
	Address string
	// Margin is how much sooner than who asks the check gives up, so that its words arrive.
	Margin time.Duration
}

// Run answers on the listener until ctx ends, and then no more: what it was asked until then
// is of no use to anybody.
func Run(ctx context.Context, l net.Listener, cfg Config) error {
	g := grpc.NewServer()
	// Each check connects anew: what is asked is whether the app takes connections.
	healthv1.RegisterHealthServer(g, &server{cfg: cfg, transport: &http.Transport{DisableKeepAlives: true}})
	stay := context.AfterFunc(ctx, g.Stop)
	defer stay()
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

// Check implements healthv1.HealthServer: it makes the check once.
func (s *server) Check(ctx context.Context, _ *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	c := s.cfg.Check
	if deadline, ok := ctx.Deadline(); ok {
		// In whole seconds, as the kubelet has it: some of the last is spent on the way.
		c.Timeout = max((time.Until(deadline) - s.cfg.Margin).Round(time.Second), time.Second)
	}
	if err := c.Do(ctx, s.transport, s.cfg.Address); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}, nil
}
