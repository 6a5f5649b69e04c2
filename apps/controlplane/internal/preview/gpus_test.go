package preview

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestKinds_AreSeparateForDifferentRequests(t *testing.T) {
	// seen is a kind, with the GPUs of one replica.
	type seen struct {
		each  int32
		field string
		roles []string
	}
	for _, c := range []struct {
		name, spec string
		want       []seen
	}{
		{"none", `resources {memory_mib: 1}`, nil},
		{"of one role", `resources {gpu {count: 2}}`, []seen{{each: 2, field: "spec.resources.gpu"}}},
		{"of one role by name", `roles {name: "main" instances: 3 resources {gpu {count: 2}}}`, []seen{{each: 6, field: "spec.resources.gpu"}}},
		{"of several hosts", `roles {name: "main" instances: 3 hosts: 4 resources {gpu {count: 2}}}`, []seen{{each: 24, field: "spec.resources.gpu"}}},
		{
			"of two roles, the same", `resources {gpu {count: 1}} roles {name: "prefill" instances: 2} roles {name: "decode" resources {gpu {count: 8}}}`,
			[]seen{{each: 10, field: "spec.roles[1].resources.gpu", roles: []string{"prefill", "decode"}}},
		},
		{
			"two kinds, and a role with none", `roles {name: "router"} roles {name: "a" resources {gpu {count: 1 product: "L4"}}} roles {name: "b" resources {gpu {count: 4 product: "H100"}}}`,
			[]seen{
				{each: 1, field: "spec.roles[1].resources.gpu", roles: []string{"a"}},
				{each: 4, field: "spec.roles[2].resources.gpu", roles: []string{"b"}},
			},
		},
	} {
		s := &windlassv1.DeploymentSpec{}
		require.NoError(t, prototext.Unmarshal([]byte(c.spec), s), c.name)
		var got []seen
		for _, k := range kindsOf(s) {
			require.NotZero(t, k.gpu.GetCount(), c.name)
			got = append(got, seen{k.count(1), k.field, k.roles})
		}
		require.Equal(t, c.want, got, c.name)
		require.Equal(t, len(c.want) > 0, HasGPU(s), c.name)
	}
}

// Roles that fit the same pools compete for the GPUs of these pools.
func TestKinds_OfTheSamePoolsAreMerged(t *testing.T) {
	part := func(instances, gpus int32) []kindPart {
		return []kindPart{{&windlassv1.DeploymentSpec{}, &windlassv1.RoleSpec{Instances: instances}, gpus}}
	}
	kinds := []kind{
		{gpu: &windlassv1.Gpu{Count: 1}, parts: part(2, 1), roles: []string{"prefill"}},
		{gpu: &windlassv1.Gpu{Count: 4, Product: "H100"}, parts: part(1, 4), roles: []string{"decode"}},
	}
	one := []*windlassv1.GpuCapacity{{Product: "H100", ResourceName: "nvidia.com/gpu", Allocatable: 8}}
	merged := mergeShared(kinds, one)
	require.Len(t, merged, 1)
	require.EqualValues(t, 6, merged[0].count(1))
	require.EqualValues(t, 4, merged[0].gpu.GetCount())
	require.Len(t, mergeShared(kinds, append(one, &windlassv1.GpuCapacity{Product: "L4", ResourceName: "nvidia.com/gpu", Allocatable: 8})), 2)
	require.Len(t, mergeShared(kinds, nil), 2, "without reported pools, the kinds stay apart")
}

func TestLack_TellsAnUnknownPoolFromNoGPUs(t *testing.T) {
	pools := []*windlassv1.GpuCapacity{{Product: "H100", Pool: "train", Allocatable: 16}}
	for _, c := range []struct {
		name         string
		gpu          *windlassv1.Gpu
		pools        []*windlassv1.GpuCapacity
		message, fix string
	}{
		{"no GPUs", &windlassv1.Gpu{Count: 2, Pool: "serve"}, nil, "region eu has no GPUs at all, and each instance needs 2 GPUs of pool serve", "Ask for no GPUs there"},
		{"an unknown pool", &windlassv1.Gpu{Count: 2, Pool: "serve"}, pools, "region eu has no pool serve: it has 16 GPUs H100 of pool train", "Name a pool that it has"},
		{"another product in the pool", &windlassv1.Gpu{Count: 2, Pool: "train", Product: "L4"}, pools, "region eu has no GPUs L4 of pool train: it has 16 GPUs H100 of pool train", "Ask for GPUs that it has"},
	} {
		message, fix := lackText("eu", c.gpu, c.pools)
		require.Equal(t, c.message, message, c.name)
		require.Contains(t, fix, c.fix, c.name)
	}
}
