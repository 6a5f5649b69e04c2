package observe

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/windlass-run/windlass/apps/agent/internal/gang"
)

func TestFleet_FreeIsWhatNoPodRequests(t *testing.T) {
	node := gpuNode("a", func(n *corev1.Node) { n.Status.Allocatable["pods"] = resource.MustParse("110") })
	waits := asking("w", "", "nvidia.com/gpu", 1)
	waits.Status.Phase = corev1.PodPending
	f := fleet(FleetConfig{}, node, asking("p", "a", "nvidia.com/gpu", 3), asking("q", "a", "acme.example/nic", 2), asking("r", "b", "nvidia.com/gpu", 1), waits)
	require.Equal(t, gang.Resources{"cpu": 62_000, "memory": 512 << 30, "pods": 108, "nvidia.com/gpu": 5, "acme.example/nic": -2}, f.Free(node))
	require.Equal(t, []*corev1.Pod{waits}, f.Pending())

	waits.Spec.NodeName = "a"
	f.SetPod(waits)
	require.Empty(t, f.Pending())
	f.RemovePod("p")
	f.RemovePod("q")
	require.Equal(t, gang.Resources{"cpu": 63_000, "memory": 512 << 30, "pods": 109, "nvidia.com/gpu": 7}, f.Free(node))
}

func TestNeeds_IncludeRequestsThatFollowFromLimits(t *testing.T) {
	spec := &corev1.PodSpec{Containers: []corev1.Container{
		{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": resource.MustParse("500m")},
			Limits:   corev1.ResourceList{"cpu": resource.MustParse("2"), "nvidia.com/gpu": resource.MustParse("8")},
		}},
		{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"memory": resource.MustParse("64Mi")}}},
	}}
	require.Equal(t, gang.Resources{"cpu": 500, "memory": 64 << 20, "nvidia.com/gpu": 8, "pods": 1}, Needs(spec))
	require.Len(t, spec.Containers[0].Resources.Requests, 1, "the spec is unchanged")
}

func TestTakes(t *testing.T) {
	node := gpuNode("a", label("zone", "z1"))
	affinity := func(r ...corev1.NodeSelectorRequirement) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: r}},
		}}}
	}
	tolerates := []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}}
	for name, c := range map[string]struct {
		node  *corev1.Node
		spec  corev1.PodSpec
		takes bool
	}{
		"a taint":              {node, corev1.PodSpec{}, false},
		"a tolerated taint":    {node, corev1.PodSpec{Tolerations: tolerates}, true},
		"a cordon":             {gpuNode("a", cordoned), corev1.PodSpec{Tolerations: tolerates}, false},
		"a node that is away":  {gpuNode("a", notReady), corev1.PodSpec{Tolerations: tolerates}, false},
		"its label":            {node, corev1.PodSpec{Tolerations: tolerates, NodeSelector: map[string]string{"zone": "z1"}}, true},
		"another label":        {node, corev1.PodSpec{Tolerations: tolerates, NodeSelector: map[string]string{"zone": "z2"}}, false},
		"its product":          {node, corev1.PodSpec{Tolerations: tolerates, Affinity: affinity(corev1.NodeSelectorRequirement{Key: "nvidia.com/gpu.product", Operator: corev1.NodeSelectorOpIn, Values: []string{"NVIDIA-H100-80GB-HBM3"}})}, true},
		"more memory than has": {node, corev1.PodSpec{Tolerations: tolerates, Affinity: affinity(corev1.NodeSelectorRequirement{Key: "nvidia.com/gpu.memory", Operator: corev1.NodeSelectorOpGt, Values: []string{"81559"}})}, false},
		"as much memory":       {node, corev1.PodSpec{Tolerations: tolerates, Affinity: affinity(corev1.NodeSelectorRequirement{Key: "nvidia.com/gpu.memory", Operator: corev1.NodeSelectorOpGt, Values: []string{"81558"}})}, true},
		"an empty affinity":    {node, corev1.PodSpec{Tolerations: tolerates, Affinity: affinity()}, false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.takes, Takes(c.node, &c.spec)) })
	}
}
