package controlplane

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/windlass-run/windlass/proto/gen/externalscaler"
	"github.com/windlass-run/windlass/proto/gen/externalscaler/externalscalerconnect"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// reportLoad reports one ready replica of the deployment, with the requests in flight.
func (a *agent) reportLoad(app, deployment string, inFlight float64) {
	a.t.Helper()
	a.sequence++
	_, err := a.calls.Report(a.t.Context(), &agentv1.ReportRequest{
		SessionId: a.session, Epoch: a.hello.Epoch, Fence: a.hello.Fence, Sequence: a.sequence,
		Loads: []*agentv1.LoadReport{{AppId: app, At: time.Now().UnixMilli(), Deployments: []*agentv1.DeploymentLoad{{DeploymentId: deployment, Ready: 1, InFlight: &inFlight}}}},
	})
	require.NoError(a.t, err)
}

func TestExternalScaler_AnyProcessReturnsTheLoad(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "us")
	a, b := w.start(planeConfig{}), w.start(planeConfig{})
	agent := w.join(b, "us")
	agent.watch(b)
	acquainted(a, b)
	d, err := w.user(a).apps.Deploy(t.Context(), &windlassv1.DeployRequest{
		App: "chat", Spec: &windlassv1.DeploymentSpec{Command: []string{"serve"}, Regions: []string{"us"}},
		Scaling: &windlassv1.ScalingPolicy{Max: 8, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: "8"}}},
	})
	require.NoError(t, err)
	deployment, routes := agent.items(d.DeploymentId, d.AppId, 0)
	agent.applied("", 1, deployment, routes)
	user := w.user(a)
	require.Eventually(t, func() bool {
		got, err := user.apps.GetApp(t.Context(), &windlassv1.GetAppRequest{App: "chat"})
		return err == nil && got.GetApp().GetStatus() == windlassv1.AppStatus_APP_STATUS_READY
	}, patience, 20*time.Millisecond, "the app is never ready")

	conns := map[*plane]*grpc.ClientConn{}
	for _, p := range []*plane{a, b} {
		conn, err := grpc.NewClient(strings.TrimPrefix(p.url, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, conn.Close()) })
		conns[p] = conn
	}
	ref := &externalscaler.ScaledObjectRef{Name: "router", ScalerMetadata: map[string]string{
		"apiKeyFromEnv": w.boot.APIKey, "app": "chat", "region": "us", "metric": "inFlight",
	}}
	value := func(p *plane) (float64, error) {
		req, res := &externalscaler.GetMetricsRequest{ScaledObjectRef: ref, MetricName: "windlass-inflight"}, &externalscaler.GetMetricsResponse{}
		if err := conns[p].Invoke(t.Context(), externalscalerconnect.ExternalScalerGetMetricsProcedure, req, res); err != nil {
			return 0, err
		}
		return res.MetricValues[0].MetricValueFloat, nil
	}
	for _, p := range []*plane{a, b} {
		_, err := value(p)
		require.Equal(t, codes.Unavailable, status.Code(err), "no load was reported yet: %v", err)
	}
	tells := func(want float64) {
		t.Helper()
		for _, p := range []*plane{a, b} {
			require.Eventually(t, func() bool {
				got, err := value(p)
				return err == nil && got == want
			}, patience, 20*time.Millisecond, "%s", p.address)
		}
	}
	agent.reportLoad(d.AppId, d.DeploymentId, 5)
	tells(5)

	// The agent's stream moves to process a, so decisions of process b are too old to use.
	agent.watch(a)
	for _, p := range []*plane{a, b} {
		require.Eventually(t, func() bool {
			_, err := value(p)
			return status.Code(err) == codes.Unavailable
		}, patience, 20*time.Millisecond)
	}
	agent.reportLoad(d.AppId, d.DeploymentId, 9)
	tells(9)

	// A load balancer sends a report to process b, which passes the report on to a.
	agent.calls = agent.dial(b)
	agent.reportLoad(d.AppId, d.DeploymentId, 7)
	tells(7)
	require.Positive(t, b.metric("windlass_peer_loads_total", "outcome=ok"))
	for _, p := range []*plane{a, b} {
		now, err := w.user(p).scaling.GetScaling(t.Context(), &windlassv1.GetScalingRequest{App: "chat"})
		require.NoError(t, err)
		require.Len(t, now.Regions, 1)
		require.InDelta(t, 7, now.Regions[0].Wants[0].GetValue(), 1e-9, "%s", p.address)
	}
	agent.calls = agent.dial(a)

	stream, err := conns[b].NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, externalscalerconnect.ExternalScalerStreamIsActiveProcedure)
	require.NoError(t, err)
	require.NoError(t, stream.SendMsg(ref))
	require.NoError(t, stream.CloseSend())
	active := &externalscaler.IsActiveResponse{}
	require.NoError(t, stream.RecvMsg(active))
	require.True(t, active.Result)

	// The size of a message is limited before its key is checked.
	ref.ScalerMetadata["more"] = strings.Repeat("x", maxScalerBytes)
	_, err = value(a)
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "8192 bytes")
}
