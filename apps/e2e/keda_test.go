package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	grpctls "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/windlass-run/windlass/proto/gen/externalscaler"
	"github.com/windlass-run/windlass/proto/gen/externalscaler/externalscalerconnect"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// kedaConn returns a connection like KEDA's: gRPC, without headers.
func (s *stack) kedaConn(t *testing.T) *grpc.ClientConn {
	t.Helper()
	at, err := url.Parse(s.url)
	require.NoError(t, err)
	creds := insecure.NewCredentials()
	if s.secure {
		creds = grpctls.NewTLS(clientTLS.Clone())
	}
	conn, err := grpc.NewClient(at.Host, grpc.WithTransportCredentials(creds))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

// tellsKEDA asserts that KEDA learns of requests that instances answer.
func (s *stack) tellsKEDA(t *testing.T) {
	t.Helper()
	must(t, s.owner.apps.Deploy, &windlassv1.DeployRequest{
		Mutation: mutation(), App: named("measured"), Spec: spec(regions(us), args("--token-rate", "1"), func(d *windlassv1.DeploymentSpec) { d.Replicas = nil }),
		Scaling: &windlassv1.ScalingPolicy{Max: 1, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: "8"}}},
	})
	s.waitLive(t, "measured", 1)
	conn := s.kedaConn(t)
	key := must(t, s.owner.access.CreateApiKey, &windlassv1.CreateApiKeyRequest{Name: "keda", Role: windlassv1.Role_ROLE_VIEWER})
	ref := &externalscaler.ScaledObjectRef{Name: "router", Namespace: "default", ScalerMetadata: map[string]string{
		"scalerAddress": conn.Target(), "apiKeyFromEnv": key.Value, "app": "measured", "region": us, "metric": "inFlight",
	}}
	spec := &externalscaler.GetMetricSpecResponse{}
	require.NoError(t, conn.Invoke(t.Context(), externalscalerconnect.ExternalScalerGetMetricSpecProcedure, ref, spec))
	require.InDelta(t, 8, spec.MetricSpecs[0].TargetSizeFloat, 1e-9)
	told := func(ctx context.Context, isWanted func(float64) bool) error {
		req, res, active := &externalscaler.GetMetricsRequest{ScaledObjectRef: ref, MetricName: spec.MetricSpecs[0].MetricName}, &externalscaler.GetMetricsResponse{}, &externalscaler.IsActiveResponse{}
		if err := conn.Invoke(ctx, externalscalerconnect.ExternalScalerGetMetricsProcedure, req, res); err != nil {
			return err
		}
		if v := res.MetricValues[0].MetricValueFloat; !isWanted(v) {
			return fmt.Errorf("it is %v", v)
		}
		if err := conn.Invoke(ctx, externalscalerconnect.ExternalScalerIsActiveProcedure, ref, active); err != nil {
			return err
		}
		if !active.Result && isWanted(1) {
			return errors.New("it is not active")
		}
		return nil
	}
	s.eventually(t, "KEDA learns that there is no load", func(ctx context.Context) error {
		return told(ctx, func(v float64) bool { return v == 0 })
	})
	host := s.host(t, "measured", windlassv1.Route_KIND_STABLE, 0)
	ctx, stop := context.WithCancel(t.Context())
	var requests sync.WaitGroup
	for range 4 {
		requests.Go(func() {
			for ctx.Err() == nil {
				_ = completeText(ctx, caller, s.gateways[us], host, strings.Repeat("word ", 20))
			}
		})
	}
	s.eventually(t, "KEDA learns of the requests", func(ctx context.Context) error {
		return told(ctx, func(v float64) bool { return v > 0.5 })
	})
	stop()
	requests.Wait()
}
