package rollup

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestPlace_TellsItsRoles(t *testing.T) {
	counts := model.EncodeRoleCounts(&agentv1.DeploymentRollup{Groups: 2, Roles: []*agentv1.RoleRollup{
		{Role: "prefill", Instances: 4, Ready: 4, Updated: 4},
		{Role: "decode", Instances: 2, Ready: 1, Updated: 2, Doomed: 1, Reason: "CrashLoop", Message: "exit code 3"},
	}})
	p := Place{
		Row:      model.Topology{Replicas: 2, Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED},
		Observed: model.Observed{Phase: phaseApplied, Ready: 5, Fail: 1, ReadyReplicas: 1, Reason: "CrashLoop", ReasonMessage: "exit code 3", RoleCounts: counts},
		Spec:     &windlassv1.DeploymentSpec{Roles: []*windlassv1.RoleSpec{{Name: "prefill", Instances: 2}, {Name: "decode", Instances: 1, Hosts: 4, Entry: true}}},
	}
	shown := p.Proto()
	require.EqualValues(t, 1, shown.GetReady())
	require.Equal(t, "role decode: exit code 3", shown.GetMessage())
	require.Len(t, shown.GetRoles(), 2)
	prefill, decode := shown.GetRoles()[0], shown.GetRoles()[1]
	require.Equal(t, []int32{4, 4, 4}, []int32{prefill.GetWanted(), prefill.GetReady(), prefill.GetInstances()})
	require.False(t, prefill.GetEntry())
	require.Equal(t, []int32{2, 1, 2}, []int32{decode.GetWanted(), decode.GetReady(), decode.GetInstances()})
	require.True(t, decode.GetEntry())
	require.Equal(t, []int32{1, 4}, []int32{prefill.GetHosts(), decode.GetHosts()})
	require.Equal(t, "CrashLoop", decode.GetReason())

	p.Spec, p.Observed.RoleCounts = nil, ""
	require.Empty(t, p.Proto().GetRoles(), "one role")
	require.Equal(t, "exit code 3", p.Proto().GetMessage())
}
