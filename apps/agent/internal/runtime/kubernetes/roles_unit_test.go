package kubernetes

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestRoles_OnlyPoolsLackRoomByAQuota(t *testing.T) {
	refused := &appsv1.Deployment{Status: appsv1.DeploymentStatus{Conditions: []appsv1.DeploymentCondition{{
		Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: `pods "chat-x" is forbidden: exceeded quota: gpus`,
	}}}}
	for layout, lacks := range map[windlassv1.Layout]bool{windlassv1.Layout_LAYOUT_POOLED: true, windlassv1.Layout_LAYOUT_REPLICAS: false} {
		t.Run(layout.String(), func(t *testing.T) {
			spec := &windlassv1.DeploymentSpec{Layout: layout, Roles: []*windlassv1.RoleSpec{{Name: "prefill"}, {Name: "decode"}}}
			f := newFamily(runtime.Assignment{Deployment: &agentv1.Deployment{Spec: spec, Replicas: 4}})
			in := families{&Runtime{}}.observedUnit(f, &unit{live: refused}, time.Now())
			require.False(t, in.Ready)
			// The pod of a group may be refused only until the previous pod has left. The next group must wait.
			require.Equal(t, lacks, in.Unfit)
		})
	}
}
