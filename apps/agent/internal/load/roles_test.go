package load_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/agent/internal/load"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/scrape"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// pool returns a region with a pool: 2 ready prefill servers, a ready and a starting decode server,
// and decode servers that count as neither.
func pool() *region {
	d := scaled()
	d.Scaling = &windlassv1.ScalingPolicy{Roles: []*windlassv1.RoleScaling{
		{Role: "prefill", Max: 4, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_CPU, Target: "70"}}},
		{Role: "decode", Max: 4, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_KV_CACHE, Target: "0.7"}}},
	}}
	d.Replicas = 100
	d.Spec.Layout = windlassv1.Layout_LAYOUT_POOLED
	d.Spec.Roles = []*windlassv1.RoleSpec{{Name: "prefill", Instances: 2, Resources: &windlassv1.Resources{CpuMillicores: 500}}, {Name: "decode", Instances: 2, Entry: true}}
	d.Spec.Generated = &windlassv1.Generated{Metrics: []*windlassv1.EngineMetric{{Signal: scrape.Cache, Metric: "cache"}}}
	in := func(role string, n int, status windlassv1.InstanceStatus) runtime.Instance {
		i := instance(n, status)
		i.Role, i.Group = role, 0
		return i
	}
	doomed := in("decode", 6, failed)
	doomed.Doomed = true
	return &region{
		deployments: []*agentv1.Deployment{d}, known: true, asked: load.Asked{InFlight: map[string]float64{"dep_1": 12}},
		instances: []runtime.Instance{
			in("prefill", 1, ready), in("prefill", 2, ready), in("decode", 3, ready), in("decode", 4, running), in("decode", 5, draining), doomed,
		},
		used: map[string]runtime.Usage{
			"ins_1": {CPUMillicores: 100, HasCPU: true}, "ins_2": {CPUMillicores: 200, HasCPU: true}, "ins_3": {CPUMillicores: 1000, HasCPU: true},
		},
		signals: map[string]scrape.Signals{"ins_1": {scrape.Cache: 0.1}, "ins_2": {scrape.Cache: 0.3}, "ins_3": {scrape.Cache: 0.9}},
	}
}

func TestCollector_ReportsEachRoleOfAPool(t *testing.T) {
	t.Parallel()
	collect(t, pool(), func(t *testing.T, c *load.Collector) {
		got := c.Due()[0].Deployments[0]
		require.Len(t, got.Roles, 2)
		require.Empty(t, got.Levels)
		require.InDelta(t, 12, got.GetInFlight(), 1e-9, "gateways measure the whole pool")
		prefill, decode := got.Roles[0], got.Roles[1]
		require.Equal(t, []any{"prefill", int32(2), int32(0)}, []any{prefill.Role, prefill.Ready, prefill.Starting})
		require.Equal(t, []any{"decode", int32(1), int32(1)}, []any{decode.Role, decode.Ready, decode.Starting})
		require.InDelta(t, 30, prefill.Levels["cpu"], 1e-9, "percent of the role's CPU")
		require.InDelta(t, 50, decode.Levels["cpu"], 1e-9, "percent of the app's CPU")
		require.InDelta(t, 0.2, prefill.Levels["kvCache"], 1e-9)
		require.InDelta(t, 0.9, decode.Levels["kvCache"], 1e-9)
	})
}

func TestDue_RolesThatChange(t *testing.T) {
	t.Parallel()
	report := func(edit func(r *agentv1.RoleLoad)) map[string]*agentv1.LoadReport {
		role := &agentv1.RoleLoad{Role: "decode", Ready: 2, Levels: map[string]float64{"cpu": 50}}
		if edit != nil {
			edit(role)
		}
		return map[string]*agentv1.LoadReport{"app_1": {AppId: "app_1", Deployments: []*agentv1.DeploymentLoad{{DeploymentId: "dep_1", Roles: []*agentv1.RoleLoad{role}}}}}
	}
	require.Empty(t, load.Due(report(nil), report(func(r *agentv1.RoleLoad) { r.Levels["cpu"] = 51 })))
	for name, edit := range map[string]func(r *agentv1.RoleLoad){
		"ready":    func(r *agentv1.RoleLoad) { r.Ready++ },
		"starting": func(r *agentv1.RoleLoad) { r.Starting++ },
		"level":    func(r *agentv1.RoleLoad) { r.Levels["cpu"] = 60 },
		"missing":  func(r *agentv1.RoleLoad) { proto.Reset(r) },
	} {
		require.Len(t, load.Due(report(nil), report(edit)), 1, name)
	}
}
