package cli

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestModelPlan(t *testing.T) {
	const (
		ready   = windlassv1.InstanceStatus_INSTANCE_STATUS_READY
		pending = windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING
	)
	onRequest := &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{}}
	modelSpec := func(replicas int32) *windlassv1.DeploymentSpec {
		return &windlassv1.DeploymentSpec{Model: &windlassv1.LoadedModel{Server: "base"}, Replicas: &replicas, Routing: onRequest}
	}
	live := map[string]*windlassv1.Deployment{
		"app_base": {AppId: "app_base", AppName: "base", Spec: &windlassv1.DeploymentSpec{Models: &windlassv1.ModelServer{Slots: 1, Eviction: &windlassv1.ModelEviction{}}}},
		"app_a":    {AppId: "app_a", AppName: "a", Spec: modelSpec(1)},
		"app_b":    {AppId: "app_b", AppName: "b", Spec: modelSpec(1)},
		"app_chat": {AppId: "app_chat", AppName: "chat", Spec: &windlassv1.DeploymentSpec{}},
	}
	instances := []*windlassv1.Instance{
		{Id: "ins_1", AppId: "app_base", AppName: "base", Group: 0, Status: ready},
		{Id: "ins_2", AppId: "app_base", AppName: "base", Group: 1, Status: ready},
		{Id: "ins_3", AppId: "app_a", Status: ready, Address: "x", RuntimeName: "ins_1", ReadyAt: 2},
		{Id: "ins_4", AppId: "app_b", Status: ready, Address: "x", RuntimeName: "ins_2", ReadyAt: 1},
		{Id: "ins_5", AppId: "app_chat", Status: ready},
	}
	plan := func(name string, spec *windlassv1.DeploymentSpec) regionModelPlan {
		return planModelIn(time.UnixMilli(10), "us", name, spec, live, instances)
	}
	t.Run("evicts the model that was loaded first", func(t *testing.T) {
		require.Equal(t, regionModelPlan{Region: "us", Replicas: 1, Evicts: []evictedModel{{"b", "base 1 (ins_2)"}}, LoadsAfter: 1, Runs: true}, plan("c", modelSpec(1)))
	})
	t.Run("says why replicas have no server", func(t *testing.T) {
		got := plan("a", modelSpec(2))
		require.Equal(t, []string{"base 0 (ins_1)"}, got.Has)
		require.Equal(t, 1, got.Missing)
		require.Equal(t, "1 server has a replica already; 1 server has no free slot", got.Why)
		require.True(t, got.Runs)
		other := modelSpec(1)
		other.Model.Requires = []string{"onnx"}
		got = plan("c", other)
		require.False(t, got.Runs)
		require.Equal(t, "2 servers lack capability onnx", got.Why)
		require.Empty(t, got.Evicts)
	})
	t.Run("a changed model needs a server without the present version", func(t *testing.T) {
		changed := modelSpec(1)
		changed.Model.Path = "org/other"
		require.Equal(t, []evictedModel{{"b", "base 1 (ins_2)"}}, plan("a", changed).Evicts)
	})
	t.Run("loads it on a free server", func(t *testing.T) {
		more := slices.Concat(instances, []*windlassv1.Instance{
			{Id: "ins_6", AppId: "app_base", AppName: "base", Group: 2, Status: ready},
			{Id: "ins_7", AppId: "app_base", AppName: "base", Group: 3, Status: pending},
		})
		require.Equal(t, []string{"base 2 (ins_6)"}, planModelIn(time.UnixMilli(10), "us", "c", modelSpec(1), live, more).Loads)
	})
	t.Run("a file without a model says so", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "app.yaml")
		require.NoError(t, os.WriteFile(file, []byte("app: a\ncommand: [x]\nregions: [us]\n"), 0o600))
		got := runCommand(t, newFakeServer(t), false, commandRun{args: []string{"model", "plan", file}})
		require.Equal(t, 1, got.code)
		require.Contains(t, got.stderr, "the file's app is not a model")
	})
}
