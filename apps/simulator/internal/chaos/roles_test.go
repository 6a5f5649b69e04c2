package chaos

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestRoles_AreDrawnInEveryKind(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	engines, orders, gangs, full, hosts := map[any]bool{}, map[any]bool{}, map[any]bool{}, map[any]bool{}, map[any]bool{}
	for range 200 {
		for _, app := range []string{groupsName, slotsName, rolesName} {
			spec := &windlassv1.DeploymentSpec{Env: map[string]string{"VERSION": "7"}, Replicas: new(int32(2))}
			policy := roleSpec(app, spec, rnd)
			engines[spec.GetPairing().GetEngine()] = true
			switch app {
			case groupsName:
				require.EqualValues(t, groupSize, spec.Roles[0].Instances+1)
				gangs[spec.GetGang().GetOf()], hosts[spec.Roles[1].GetHosts()] = true, true
				require.False(t, spec.GetGang().GetOf() == windlassv1.Gang_OF_GROUP && len(spec.Roles[1].StartsAfter) > 0)
			case slotsName:
				require.Equal(t, windlassv1.RolloutPolicy_STRATEGY_IN_PLACE, policy.GetStrategy())
			case rolesName:
				require.Nil(t, spec.Replicas)
				orders[spec.Update.Order], full[spec.Update.WhenFull] = true, true
			}
		}
	}
	require.Len(t, engines, 3)
	require.Len(t, orders, len(windlassv1.PoolUpdate_Order_name))
	require.Len(t, full, len(windlassv1.PoolUpdate_WhenFull_name))
	require.Len(t, gangs, len(windlassv1.Gang_Of_name))
	require.Len(t, hosts, 2)
}

func TestChecker_FindsStableSlotsWithAGapOrTwoInstances(t *testing.T) {
	slots := row{place: here, app: slotsName, status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED, replicas: 2}
	for _, c := range []struct {
		name   string
		groups []int
		bad    bool
	}{{"in order", []int{1, 0}, false}, {"a gap", []int{0, 2}, true}, {"two in one", []int{0, 0}, true}, {"none", nil, false}} {
		t.Run(c.name, func(t *testing.T) {
			b := books{rows: []row{slots}, groups: map[place][]int{here: c.groups}}
			require.Equal(t, c.bad, b.agreeSlots() != nil)
		})
	}
}

// An instance of a version that was taken over is ready under the next version, too.
func TestChecker_KnowsInstancesThatWereTakenOver(t *testing.T) {
	taken := func(app string) *fixture {
		s := setup(t)
		s.runs(app, here, "ins_5")
		next := place{here.region, "dep_next"}
		s.recordDeployment(app, next.deployment)
		s.checkClaims(claims{ready: []instance{{"ins_5", next}}})
		return s
	}
	require.Empty(t, taken(slotsName).foundViolations())
	require.NotEmpty(t, taken("fixed-0").foundViolations())
}
