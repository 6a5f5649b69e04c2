package gateways

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestCaller(t *testing.T) {
	t.Run("a gateway cannot report for a gateway with another certificate", func(t *testing.T) {
		r := startHarness(t, disk.NewMemory(), 0)
		r.receiveSnapshot(t)
		r.as.Store(&Caller{Name: "edge-1", Verified: true})
		w := r.watch(t, &gatewayv1.WatchRequest{GatewayId: first})
		table, apps := w.table()
		require.Equal(t, "waits for gateway "+first+"@edge-1 to serve it", r.Routed("app_1", 0, 4))

		r.as.Store(&Caller{Name: "edge-2", Verified: true})
		_, err := r.client.Report(t.Context(), &gatewayv1.ReportRequest{GatewayId: first, TableId: table, Leaving: true})
		require.Equal(t, connect.CodeFailedPrecondition, connect.CodeOf(err), "%v", err)
		other := r.watch(t, &gatewayv1.WatchRequest{GatewayId: first})
		other.table()
		require.Equal(t, "waits for gateway "+first+"@edge-1, "+first+"@edge-2 to serve it", r.Routed("app_1", 0, 4), "each gateway has its own stream")
		_, err = r.client.Report(t.Context(), &gatewayv1.ReportRequest{GatewayId: first + "@edge-1", TableId: table})
		require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), "%v", err)

		r.report(t, first, table, apps[0])
		r.as.Store(&Caller{Name: "edge-1", Verified: true})
		r.report(t, first, table, apps[0])
		require.Empty(t, r.Routed("app_1", 0, 4))
	})
	t.Run("reports of an unverified gateway have no effect on rollouts", func(t *testing.T) {
		r := startHarness(t, disk.NewMemory(), 0)
		route := r.receiveSnapshot(t)
		r.as.Store(&Caller{Name: "unverified"})
		w := r.watch(t, &gatewayv1.WatchRequest{GatewayId: first})
		table, apps := w.table()
		require.Len(t, apps, 1, "an unverified gateway receives the routes")
		require.Empty(t, r.Routed("app_1", 0, 4), "no route waits for it")
		_, err := r.client.Report(t.Context(), &gatewayv1.ReportRequest{
			GatewayId: first, TableId: table,
			Served:    []*gatewayv1.Served{{AppId: "app_1", Generation: 4, InstancesChange: apps[0].Change}},
			Instances: []*gatewayv1.InstanceHealth{{InstanceId: "ins_1", Ejected: true, Unproven: true, Reason: "ConnectError", InFlight: 1}},
			Traffic:   []*gatewayv1.Traffic{{DeploymentId: "dep_2", Requests: 1000, Errors: 1000}},
		})
		require.NoError(t, err)
		ran := running(windlassv1.InstanceStatus_INSTANCE_STATUS_READY)
		require.Equal(t, ran, r.Countable(ran), "its reports change no instance")
		told := r.Traffic(&agentv1.TrafficRequest{Queries: []*agentv1.TrafficQuery{{DeploymentId: "dep_2", Window: durationpb.New(time.Minute)}}})
		require.Zero(t, told.Gateways)
		require.Zero(t, told.Traffic[0].Requests)
		require.Contains(t, r.Annotate(&agentv1.Capacity{}).Notes[0], "1 gateways are not authenticated")

		require.False(t, r.Released("ins_1"), "a removal waits for requests of the gateway")
		r.Route(route, 0, 5)
		require.Empty(t, r.Routed("app_1", 0, 5))
		require.NoError(t, r.keepIDs())
		_, err = r.files.Read("gateways.json")
		require.Error(t, err, "the next agent does not wait for the gateway")
	})
	t.Run("only verified gateways count as expected gateways", func(t *testing.T) {
		r := startHarness(t, disk.NewMemory(), 1)
		r.receiveSnapshot(t)
		r.as.Store(&Caller{Name: "unverified"})
		w := r.watch(t, &gatewayv1.WatchRequest{GatewayId: first})
		table, apps := w.table()
		r.report(t, first, table, apps[0])
		require.Equal(t, "0 of 1 expected gateways serve it", r.Routed("app_1", 0, 4))
	})
}
