package observe

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

func gpuNode(name string, change ...func(*corev1.Node)) *corev1.Node {
	list := corev1.ResourceList{
		"cpu": resource.MustParse("64"), "memory": resource.MustParse("512Gi"), "nvidia.com/gpu": resource.MustParse("8"),
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559",
		}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Capacity: list, Allocatable: list.DeepCopy(),
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, c := range change {
		c(n)
	}
	return n
}

func cpuNode(name string) *corev1.Node {
	return gpuNode(name, func(n *corev1.Node) {
		n.Labels, n.Spec.Taints = nil, nil
		delete(n.Status.Capacity, "nvidia.com/gpu")
		delete(n.Status.Allocatable, "nvidia.com/gpu")
	})
}

func label(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func notReady(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }

func taint(key string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
}

// devicesOf replaces the node's GPUs.
func devicesOf(name string, n int) func(*corev1.Node) {
	return func(node *corev1.Node) {
		delete(node.Status.Capacity, "nvidia.com/gpu")
		delete(node.Status.Allocatable, "nvidia.com/gpu")
		node.Status.Capacity[corev1.ResourceName(name)] = *resource.NewQuantity(int64(n), resource.DecimalSI)
		node.Status.Allocatable[corev1.ResourceName(name)] = *resource.NewQuantity(int64(n), resource.DecimalSI)
	}
}

func asking(uid, node, name string, n int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Name: uid, Namespace: "ns"},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceName(name): *resource.NewQuantity(int64(n), resource.DecimalSI), "cpu": resource.MustParse("1"),
			}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func fleet(cfg FleetConfig, objects ...any) *Fleet {
	f := NewFleet(cfg)
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Node:
			f.SetNode(o)
		case *corev1.Pod:
			f.SetPod(o)
		}
	}
	return f
}

func requireCapacity(t *testing.T, want string, got *agentv1.Capacity) {
	t.Helper()
	w := &agentv1.Capacity{}
	require.NoError(t, prototext.Unmarshal([]byte(want), w))
	require.Empty(t, diffText(w, got))
}

func diffText(want, got proto.Message) string {
	if proto.Equal(want, got) {
		return ""
	}
	return fmt.Sprintf("want %s\ngot  %s", prototext.Format(want), prototext.Format(got))
}

func TestCapacity_IsByProduct(t *testing.T) {
	a100 := label("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB")
	f := fleet(FleetConfig{},
		gpuNode("h1"), gpuNode("h2"), gpuNode("a1", a100, label("nvidia.com/gpu.memory", "40960")), cpuNode("c1"),
		asking("p1", "h1", "nvidia.com/gpu", 3), asking("p2", "h1", "nvidia.com/gpu", 1), asking("p3", "h2", "nvidia.com/gpu", 6),
		asking("p4", "", "nvidia.com/gpu", 8), asking("p5", "c1", "example.com/fpga", 1))
	requireCapacity(t, `
		cpu_millicores: 256000 memory_mib: 2097152
		gpus { product: "NVIDIA-A100-SXM4-40GB" resource_name: "nvidia.com/gpu" memory_mib: 40960 hosts: 1 allocatable: 8 free: 8 largest_free: 8 }
		gpus { product: "NVIDIA-H100-80GB-HBM3" resource_name: "nvidia.com/gpu" memory_mib: 81559 hosts: 2 allocatable: 16 requested: 10 free: 6 largest_free: 4 }`,
		f.Capacity())
}

func TestCapacity_FreeIsOnNodesThatTakeInstances(t *testing.T) {
	broken := func(n *corev1.Node) { n.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("7") }
	f := fleet(FleetConfig{},
		gpuNode("h1", cordoned), gpuNode("h2", notReady), gpuNode("h3", taint("acme/reserved")), gpuNode("h4", broken),
		gpuNode("h5", func(n *corev1.Node) { n.DeletionTimestamp = new(at(1)) }),
		asking("p1", "h1", "nvidia.com/gpu", 3), asking("p2", "h4", "nvidia.com/gpu", 2), asking("p3", "gone", "nvidia.com/gpu", 2))
	requireCapacity(t, `
		cpu_millicores: 64000 memory_mib: 524288
		gpus { product: "NVIDIA-H100-80GB-HBM3" resource_name: "nvidia.com/gpu" memory_mib: 81559 hosts: 5 allocatable: 39 requested: 5 free: 5 largest_free: 5 }
		notes: "node h1 takes no instances: cordoned"
		notes: "node h2 takes no instances: not ready"
		notes: "node h3 takes no instances: tainted acme/reserved"
		notes: "node h4: 1 of 8 nvidia.com/gpu are out of order or reserved"
		notes: "node h5 takes no instances: being removed"`,
		f.Capacity())
}

func TestPool_HasItsNodesTolerationsAndQuota(t *testing.T) {
	cfg := FleetConfig{Pools: []Pool{
		{
			Name: "reserved", NodeSelector: map[string]string{"acme/team": "chat"}, Quota: 6,
			Tolerations: []corev1.Toleration{{Key: "acme/reserved", Operator: corev1.TolerationOpExists}},
		},
		{Name: "fpga", NodeSelector: map[string]string{"acme/team": "fpga"}, ResourceName: "example.com/fpga"},
	}}
	f := fleet(cfg,
		gpuNode("h1", label("acme/team", "chat"), taint("acme/reserved")), gpuNode("h2"),
		gpuNode("f1", label("acme/team", "fpga"), devicesOf("example.com/fpga", 4), func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "example.com/fpga", Effect: corev1.TaintEffectNoSchedule}}
		}),
		asking("p1", "h1", "nvidia.com/gpu", 3), asking("p2", "f1", "example.com/fpga", 1))
	requireCapacity(t, `
		cpu_millicores: 192000 memory_mib: 1572864
		gpus { product: "NVIDIA-H100-80GB-HBM3" resource_name: "nvidia.com/gpu" memory_mib: 81559 hosts: 1 allocatable: 8 free: 8 largest_free: 8 }
		gpus { pool: "fpga" resource_name: "example.com/fpga" hosts: 1 allocatable: 4 requested: 1 free: 3 largest_free: 3 }
		gpus { pool: "reserved" product: "NVIDIA-H100-80GB-HBM3" resource_name: "nvidia.com/gpu" memory_mib: 81559 quota: 6 hosts: 1 allocatable: 8 requested: 3 free: 5 largest_free: 5 }`,
		f.Capacity())
}

func TestCapacity_HasPartitionsAndOtherVendors(t *testing.T) {
	mixed := gpuNode("m1", devicesOf("nvidia.com/mig-3g.40gb", 2), label("nvidia.com/mig-3g.40gb.product", "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb"), label("nvidia.com/mig-3g.40gb.memory", "40192"))
	mixed.Status.Capacity["nvidia.com/mig-1g.10gb"] = resource.MustParse("3")
	mixed.Status.Allocatable["nvidia.com/mig-1g.10gb"] = resource.MustParse("3")
	amd := gpuNode("x1", devicesOf("amd.com/gpu", 8), label("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM"), label("amd.com/gpu.vram", "192G"), func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "amd.com/gpu", Effect: corev1.TaintEffectNoSchedule}}
	})
	f := fleet(FleetConfig{}, mixed, amd, asking("p1", "m1", "nvidia.com/mig-3g.40gb", 1), asking("p2", "x1", "amd.com/gpu", 2))
	requireCapacity(t, `
		cpu_millicores: 128000 memory_mib: 1048576
		gpus { product: "AMD_Instinct_MI300X_OAM" resource_name: "amd.com/gpu" memory_mib: 196608 hosts: 1 allocatable: 8 requested: 2 free: 6 largest_free: 6 }
		gpus { product: "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb" resource_name: "nvidia.com/mig-1g.10gb" hosts: 1 allocatable: 3 free: 3 largest_free: 3 }
		gpus { product: "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb" resource_name: "nvidia.com/mig-3g.40gb" memory_mib: 40192 hosts: 1 allocatable: 2 requested: 1 free: 1 largest_free: 1 }`,
		f.Capacity())
}

func TestCapacity_PodHoldsDevicesFromBindingToItsEnd(t *testing.T) {
	f := fleet(FleetConfig{}, gpuNode("h1"))
	free := func() int32 { return f.Capacity().Gpus[0].Free }
	p := asking("p1", "", "nvidia.com/gpu", 5)
	require.False(t, f.SetPod(p), "not bound")
	p.Spec.NodeName = "h1"
	require.True(t, f.SetPod(p))
	require.EqualValues(t, 3, free())
	require.False(t, f.SetPod(changed(p, turnedRunning)), "a change of the pod's status changes no sum")
	require.False(t, f.SetPod(changed(p, deleted(10))))
	require.EqualValues(t, 3, free(), "a pod that stops still holds its devices")
	require.True(t, f.SetPod(changed(p, evicted)))
	require.EqualValues(t, 8, free())
	require.False(t, f.RemovePod(p.UID))
	require.True(t, f.SetPod(p))
	require.True(t, f.RemovePod(p.UID))
	require.EqualValues(t, 8, free())
}

func turnedRunning(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" }

func TestRequests_AreWhatTheSchedulerReserves(t *testing.T) {
	list := func(cpu, gpu string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu), "nvidia.com/gpu": resource.MustParse(gpu)}}
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{
			{Name: "early", Resources: list("9", "1")},
			{Name: "sidecar", RestartPolicy: new(corev1.ContainerRestartPolicyAlways), Resources: list("1", "0")},
			{Name: "late", Resources: list("3", "4")},
		},
		Containers: []corev1.Container{{Name: "a", Resources: list("2", "1")}, {Name: "b", Resources: list("1", "1")}},
		Overhead:   corev1.ResourceList{"cpu": resource.MustParse("250m")},
	}}
	got := requestsOf(pod)
	require.Equal(t, "9250m", amountOf(got, "cpu"))

	require.Equal(t, "4", amountOf(got, "nvidia.com/gpu"))
	pod.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("4")}}
	require.Equal(t, "4250m", amountOf(requestsOf(pod), "cpu"), "requests of the pod replace those of its containers")
}

func TestFleet_ReportsAChangeOnlyIfSumsChange(t *testing.T) {
	f := fleet(FleetConfig{}, gpuNode("h1"))
	before := f.Capacity()
	heartbeat := gpuNode("h1", func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = at(5) })
	require.False(t, f.SetNode(heartbeat))
	require.Same(t, before, f.Capacity())
	require.True(t, f.SetNode(gpuNode("h1", cordoned)))
	require.Zero(t, f.Capacity().Gpus[0].Free)
	require.True(t, f.RemoveNode("h1"))
	require.False(t, f.RemoveNode("h1"))
	require.Empty(t, f.Capacity().Gpus)
}

func TestCapacity_OutageNamesFewNodes(t *testing.T) {
	f := fleet(FleetConfig{})
	for n := range 50 {
		f.SetNode(gpuNode(fmt.Sprintf("h%02d", n), notReady))
	}
	notes := f.Capacity().Notes
	require.Len(t, notes, maxNotes+1)
	require.Equal(t, "and 30 more", notes[maxNotes])
}

func amountOf(l corev1.ResourceList, name corev1.ResourceName) string {
	q := l[name]
	return q.String()
}
