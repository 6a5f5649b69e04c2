package report

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestReplica_BeingReplacedIsNotReady(t *testing.T) {
	const ready, failed = windlassv1.InstanceStatus_INSTANCE_STATUS_READY, windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED
	d := runtime.ObservedDeployment{DeploymentID: "v2", Generation: 1, TemplateHash: "new", Instances: []runtime.Instance{
		{Group: 0, Role: "main", TemplateHash: "new", Status: ready},
		{Group: 0, Role: "worker", TemplateHash: "old", Status: ready},
		{Group: 1, Role: "main", TemplateHash: "old", Status: failed, Doomed: true, Reason: runtime.ReasonCrashLoop, Message: "exit code 3"},
		{Group: 1, Role: "worker", TemplateHash: "old", Status: ready},
	}}
	r := Rollup(d)
	require.Zero(t, r.ReadyReplicas, "a group with an old instance is not a ready replica")
	require.Equal(t, int32(3), r.Ready)
	require.Zero(t, r.Doomed, "an instance that will be replaced does not count as doomed")
	require.Empty(t, r.Reason)

	for i := range d.Instances {
		d.Instances[i].TemplateHash = "new"
	}
	r = Rollup(d)
	require.Equal(t, int32(1), r.ReadyReplicas)
	require.Equal(t, int32(1), r.Doomed)
	require.Equal(t, runtime.ReasonCrashLoop, r.Reason)
}

func TestRollup_KeepsTheSettledGenerationWhileUnsettled(t *testing.T) {
	nextSeen := func(d *deployment, generation int64, unsettled bool) *deployment {
		return d.nextSeen(runtime.ObservedDeployment{DeploymentID: "v1", Generation: generation, Unsettled: unsettled}, true, 0)
	}
	d := nextSeen(nil, 1, true)
	require.Zero(t, d.rollup.Generation)
	d = nextSeen(d, 1, false)
	require.EqualValues(t, 1, d.rollup.Generation)
	d = nextSeen(d, 2, true)
	require.EqualValues(t, 1, d.rollup.Generation)
	d = nextSeen(nextSeen(d, 3, true), 3, false)
	require.EqualValues(t, 3, d.rollup.Generation)
	require.EqualValues(t, 3, nextSeen(d, 3, true).rollup.Generation, "a reported generation is not taken back")
	require.Zero(t, nextSeen(d, 1, true).rollup.Generation, "after a fork of history, 3 belongs to the earlier epoch")
}

func TestRollup_CountsGroupsAndRoles(t *testing.T) {
	const ready, running, draining = windlassv1.InstanceStatus_INSTANCE_STATUS_READY, windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING, windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
	d := runtime.ObservedDeployment{
		DeploymentID: "v2", Generation: 1, TemplateHash: "x",
		Roles: []runtime.RoleCount{{Name: "prefill", Instances: 2, TemplateHash: "p"}, {Name: "decode", Instances: 1, Entry: true, TemplateHash: "d2"}},
		Instances: []runtime.Instance{
			{Group: 0, Role: "prefill", Slot: 0, TemplateHash: "p", Status: ready},
			{Group: 0, Role: "prefill", Slot: 1, TemplateHash: "p", Status: ready},
			{Group: 0, Role: "decode", TemplateHash: "d2", Status: ready},
			{Group: 1, Role: "prefill", Slot: 0, TemplateHash: "p", Status: ready},
			{Group: 1, Role: "decode", TemplateHash: "d2", Status: running, Doomed: true, Reason: runtime.ReasonCrashLoop, Message: "exit code 3"},
			{Group: 2, Role: "prefill", Slot: 0, TemplateHash: "p", Status: ready},
			{Group: 2, Role: "prefill", Slot: 1, TemplateHash: "p", Status: ready},
			{Group: 2, Role: "decode", TemplateHash: "d1", Status: ready},
			{Group: 3, Role: "decode", TemplateHash: "d2", Status: draining, Reason: runtime.ReasonStopped},
		},
	}
	r := Rollup(d)
	require.EqualValues(t, 1, r.ReadyReplicas, "of the other groups, one lacks an instance, one has an older template, and one drains")
	require.EqualValues(t, 4, r.Groups)
	require.EqualValues(t, 1, r.Doomed)
	require.Len(t, r.Roles, 2)
	p, c := r.Roles[0], r.Roles[1]
	require.Equal(t, []any{"prefill", int32(5), int32(5), int32(5), int32(0), ""}, []any{p.Role, p.Instances, p.Ready, p.Updated, p.Doomed, p.Reason})
	require.Equal(t, []any{"decode", int32(4), int32(2), int32(2), int32(1), runtime.ReasonCrashLoop}, []any{c.Role, c.Instances, c.Ready, c.Updated, c.Doomed, c.Reason})

	d.Roles = nil
	require.Empty(t, Rollup(d).Roles, "a deployment with one role has no counts by role")
}
