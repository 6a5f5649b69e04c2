package protection

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

var app = model.App{ID: "app_1", WorkspaceID: "ws_1", ProjectID: "prj_1", EnvironmentID: "env_1"}

func TestProtections_OfAnAppAreThoseOfItsScopes(t *testing.T) {
	all := []model.Protection{
		{WorkspaceID: "ws_1"},
		{WorkspaceID: "ws_1", ByOperator: true},
		{WorkspaceID: "ws_1", ScopeID: "prj_1"},
		{WorkspaceID: "ws_1", ScopeID: "env_1"},
		{WorkspaceID: "ws_1", ScopeID: "env_2"},
		{WorkspaceID: "ws_2"},
	}
	var scopes []string
	for _, p := range For(all, app) {
		scopes = append(scopes, Scope(p, app))
	}
	require.Equal(t, []string{"workspace", "workspace, by an operator", "project", "environment"}, scopes)
}

func TestTighten_ReturnsTheStricterOfPolicyAndProtections(t *testing.T) {
	const deployer, owner = windlassv1.Role_ROLE_DEPLOYER, windlassv1.Role_ROLE_OWNER
	gate := func(role windlassv1.Role, count int32, notDeployer bool) *windlassv1.Approval {
		return &windlassv1.Approval{Role: role, Count: count, NotDeployer: notDeployer}
	}
	start := func(a *windlassv1.Approval) *windlassv1.RolloutPolicy {
		return &windlassv1.RolloutPolicy{StartApproval: a}
	}
	asks := func(role windlassv1.Role, n int32, notDeployer bool) model.Protection {
		return model.Protection{Approvals: n, ApprovalRole: role, NotDeployer: notDeployer, Reason: "r"}
	}
	bakes := func(d ...time.Duration) *windlassv1.RolloutPolicy {
		p := &windlassv1.RolloutPolicy{}
		for _, d := range d {
			p.Waves = append(p.Waves, &windlassv1.Wave{MaxParallel: 1, BakeTime: durationpb.New(d)})
		}
		return p
	}
	hour := model.Protection{BakeTime: time.Hour.Milliseconds(), Reason: "r"}
	back := model.Protection{AutoRollback: true, Reason: "r"}
	off := func(onFailure windlassv1.Wave_OnFailure) *windlassv1.RolloutPolicy {
		return &windlassv1.RolloutPolicy{
			AutoRollback: &windlassv1.AutoRollback{Enabled: new(false)},
			Waves:        []*windlassv1.Wave{{OnFailure: onFailure}},
		}
	}
	for name, c := range map[string]struct {
		policy *windlassv1.RolloutPolicy
		of     []model.Protection
		want   *windlassv1.RolloutPolicy
		why    int
	}{
		"no protection":            {start(gate(owner, 1, false)), nil, start(gate(owner, 1, false)), 0},
		"no policy":                {nil, []model.Protection{asks(owner, 2, true)}, start(gate(owner, 2, true)), 1},
		"a missing gate":           {start(nil), []model.Protection{asks(deployer, 1, false)}, start(gate(deployer, 1, false)), 1},
		"the higher role":          {start(gate(deployer, 3, false)), []model.Protection{asks(owner, 1, false)}, start(gate(owner, 3, false)), 1},
		"the higher count":         {start(gate(owner, 1, true)), []model.Protection{asks(deployer, 2, false)}, start(gate(owner, 2, true)), 1},
		"not the deployer":         {start(gate(owner, 2, false)), []model.Protection{asks(owner, 1, true)}, start(gate(owner, 2, true)), 1},
		"a stricter file":          {start(gate(owner, 3, true)), []model.Protection{asks(owner, 2, true)}, start(gate(owner, 3, true)), 0},
		"several":                  {nil, []model.Protection{asks(deployer, 3, false), asks(owner, 1, true)}, start(gate(owner, 3, true)), 2},
		"a bake without waves":     {nil, []model.Protection{hour}, bakes(time.Hour), 1},
		"a bake that is too short": {bakes(time.Minute, 2*time.Hour), []model.Protection{hour}, bakes(time.Hour, 2*time.Hour), 1},
		"a bake that is longer":    {bakes(2 * time.Hour), []model.Protection{hour}, bakes(2 * time.Hour), 0},
		"rollback is off": {off(windlassv1.Wave_ON_FAILURE_PAUSE), []model.Protection{back}, &windlassv1.RolloutPolicy{
			AutoRollback: &windlassv1.AutoRollback{}, Waves: []*windlassv1.Wave{{OnFailure: windlassv1.Wave_ON_FAILURE_ROLLBACK_ALL}},
		}, 1},
		"rollback for some failures": {
			&windlassv1.RolloutPolicy{AutoRollback: &windlassv1.AutoRollback{Conditions: []windlassv1.AutoRollback_Condition{1}}},
			[]model.Protection{back},
			&windlassv1.RolloutPolicy{AutoRollback: &windlassv1.AutoRollback{}}, 1,
		},
		"rollback of a region alone": {
			&windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{OnFailure: windlassv1.Wave_ON_FAILURE_ROLLBACK_REGION}}},
			[]model.Protection{back},
			&windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{OnFailure: windlassv1.Wave_ON_FAILURE_ROLLBACK_REGION}}}, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := proto.CloneOf(c.policy)
			got, why := Tighten(c.policy, c.of, app)
			require.True(t, proto.Equal(c.want, got), "%v", got)
			require.Len(t, why, c.why)
			require.True(t, proto.Equal(before, c.policy), "the policy is not changed")
			again, why := Tighten(got, c.of, app)
			require.True(t, proto.Equal(got, again))
			require.Empty(t, why, "a policy that is strict enough does not change")
		})
	}
}
