package gateways

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestDemand(t *testing.T) {
	// startScaled starts a region with a scaled app and a gateway.
	startScaled := func(t *testing.T) (*harness, *gatewayv1.AppRoutes) {
		t.Helper()
		r := startHarness(t, disk.NewMemory(), 0)
		stream := r.watch(t, &gatewayv1.WatchRequest{GatewayId: first})
		r.Route(r.receiveSnapshot(t), 0, 4)
		_, apps := stream.table()
		require.False(t, apps[0].CountLoad)
		item := &agentv1.Item{Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Key: "dep_2", Generation: 2, Content: &agentv1.Item_Deployment{Deployment: &agentv1.DeploymentState{
			Action: agentv1.DeploymentState_ACTION_APPLY, WorkloadKey: "dep_1",
			Deployment: &agentv1.Deployment{Id: "dep_2", AppId: "app_1", AppName: "chat", Scaling: &windlassv1.ScalingPolicy{Max: 4}},
		}}}
		keys, err := r.inbox.Delta(&agentv1.Delta{After: 1, Upto: 2, Items: []*agentv1.Item{item}})
		require.NoError(t, err)
		r.Received(keys...)
		return r, stream.next().GetApps().Apps[0]
	}
	report := func(t *testing.T, r *harness, loads ...*gatewayv1.AppLoad) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		_, err := r.client.Report(ctx, &gatewayv1.ReportRequest{GatewayId: first, TableId: r.cfg.TableID, Loads: loads})
		require.NoError(t, err)
	}
	load := func(app string) *gatewayv1.AppLoad {
		return &gatewayv1.AppLoad{AppId: app, Queued: 1, Deployments: []*gatewayv1.DeploymentLoad{{DeploymentId: "dep_2", InFlight: 7}}}
	}
	t.Run("gateways count the load of scaled apps and report it", func(t *testing.T) {
		r, app := startScaled(t)
		require.True(t, app.CountLoad)
		_, ok := r.Demand("app_1", time.Now())
		require.False(t, ok)
		report(t, r, load("app_1"), load("app_2"))
		got, ok := r.Demand("app_1", time.Now())
		require.True(t, ok)
		require.InDelta(t, 7, got.InFlight["dep_2"], 0)
		_, ok = r.Demand("app_2", time.Now())
		require.False(t, ok, "the app is not scaled in this region")
	})
	t.Run("the agent learns which deployments requests wait for, and which got requests", func(t *testing.T) {
		r, _ := startScaled(t)
		var requested []string
		used := map[string]uint64{}
		r.OnRequests(func(ids []string) { requested = ids }, func(id string, n uint64) { used[id] += n })
		began := func(n uint64) *gatewayv1.AppLoad {
			return &gatewayv1.AppLoad{AppId: "app_1", Deployments: []*gatewayv1.DeploymentLoad{{DeploymentId: "dep_2", InFlight: 1, Began: n}}}
		}
		report(t, r, began(3))
		report(t, r, began(3))
		report(t, r, began(5))
		require.Equal(t, map[string]uint64{"dep_2": 5}, used)
		require.True(t, r.IsBusy("dep_2"))
		require.False(t, r.IsBusy("dep_other"))
		_, err := r.client.Wake(t.Context(), &gatewayv1.WakeRequest{GatewayId: first, AppId: "app_1"})
		require.NoError(t, err)
		require.Equal(t, []string{"dep_2"}, requested)
	})
	t.Run("reports of an unverified gateway do not count", func(t *testing.T) {
		r, _ := startScaled(t)
		r.as.Store(&Caller{})
		r.watch(t, &gatewayv1.WatchRequest{GatewayId: first}).table()
		report(t, r, load("app_1"))
		_, ok := r.Demand("app_1", time.Now())
		require.False(t, ok)
	})
}
