package preview

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func poolSpec() *windlassv1.DeploymentSpec {
	return &windlassv1.DeploymentSpec{
		Layout: windlassv1.Layout_LAYOUT_POOLED,
		Roles: []*windlassv1.RoleSpec{
			{Name: "prefill", Instances: 8, Resources: &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 1}}},
			{Name: "decode", Instances: 2, Resources: &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 4}}},
		},
	}
}

func TestPool_SetCapacityIsSaid(t *testing.T) {
	p := &Preview{target: &model.Deployment{ID: "v2", Spec: poolSpec()}}
	whole, step := map[string]int32{"v1": 100}, map[string]int32{"v1": 75, "v2": 25}
	require.EqualValues(t, 100, p.leastOf(whole, map[string]int32{"v1": 100, "v2": 25}, false, nil))
	require.EqualValues(t, 75, p.leastOf(map[string]int32{"v1": 100, "v2": 0}, step, false, nil), "without surge")
	require.EqualValues(t, 0, p.leastOf(whole, map[string]int32{"v2": 100}, false, nil), "recreate")

	e := extent{now: amount{replicas: 100}, lowest: 100, moves: 8}
	require.Equal(t, "100 % at worst, in 8 steps", p.setCapacityText(e, "us"))
	e.lowest, e.moves = 0, 1
	require.Equal(t, "0 % at worst, in 1 step; strategy rolling with maxSurge 1% and maxUnavailable 0 keeps 100 % and takes 5 GPUs more meanwhile", p.setCapacityText(e, "us"))
	p.target.Spec.Roles[0].Resources, p.target.Spec.Roles[1].Resources = nil, nil
	require.Contains(t, p.setCapacityText(e, "us"), "takes 2 instances more")
	e.now.replicas = 0
	require.Empty(t, p.setCapacityText(e, "us"), "a first version")
}

func TestPool_GPUsAreThoseOfShares(t *testing.T) {
	kinds := kindsOf(poolSpec())
	require.Len(t, kinds, 1)
	require.EqualValues(t, 16, kinds[0].count(100))
	require.EqualValues(t, 6, kinds[0].count(25), "2 prefill and 1 decode")
	require.EqualValues(t, 5, kinds[0].count(1))
	require.Zero(t, kinds[0].count(0))
}

func TestPool_CountsOfRowsAreShown(t *testing.T) {
	s := poolSpec()
	setCounts(s, []model.Topology{{Roles: "decode=6,prefill=4"}, {Roles: "decode=6,prefill=5"}})
	require.EqualValues(t, 8, s.Roles[0].Instances, "regions differ")
	require.EqualValues(t, 6, s.Roles[1].Instances)
}
