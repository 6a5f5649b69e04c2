package model

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/pool"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestPercentOfSet_LetsOneInstanceOfEachRoleGo(t *testing.T) {
	spec := func(instances ...int32) (s *windlassv1.DeploymentSpec) {
		s = &windlassv1.DeploymentSpec{}
		for _, n := range instances {
			s.Roles = append(s.Roles, &windlassv1.RoleSpec{Instances: n})
		}
		return s
	}
	for n := 1; n <= 256; n++ {
		floor := pool.Whole - int(PercentOfSet(spec(int32(n))))
		for old := 1; old <= n; old++ {
			// The new version has the other instances. The old version gives up one of its own.
			share := pool.Ready([]pool.Role{{Have: old - 1, Pool: n}})
			require.LessOrEqual(t, pool.Units(share, n), old-1)
			require.GreaterOrEqual(t, share+pool.Ready([]pool.Role{{Have: n - old, Pool: n}}), floor, "%d of %d", old, n)
		}
	}
	require.EqualValues(t, 50, PercentOfSet(spec(8, 2)))
	require.EqualValues(t, 18, PercentOfSet(spec(6, 6)))
	require.EqualValues(t, 100, PercentOfSet(spec(8, 1)))
	require.EqualValues(t, 100, PercentOfSet(spec(0)), "0 means 1")
}
