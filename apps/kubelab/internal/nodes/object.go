package nodes

import (
	"fmt"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Address is the address of every node, because kubelab's node agent answers for all of them.
const Address = "127.0.0.1"

// kubeletVersion is the version that nodes report. It is the version of the Kubernetes modules in go.mod.
const kubeletVersion = "v1.36.3"

// objects returns the Node objects of a new group. kubeletPort is the port on which the API server reads
// their logs.
func (g Group) objects(kubeletPort int) []*corev1.Node {
	g = g.withDefaults()
	nodes := make([]*corev1.Node, g.Count)
	for i := range nodes {
		name := fmt.Sprintf("%s-%d", g.Name, i)
		capacity := g.capacity()
		nodes[i] = &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name:   name,
				Labels: g.labels(name, g.Zones[i%len(g.Zones)]),
			},
			Spec: corev1.NodeSpec{ProviderID: "kubelab://" + name, Taints: g.Taints},
			Status: corev1.NodeStatus{
				Capacity: capacity, Allocatable: capacity,
				Addresses: []corev1.NodeAddress{
					{Type: corev1.NodeInternalIP, Address: Address},
					{Type: corev1.NodeHostName, Address: name},
				},
				DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(kubeletPort)}},
				NodeInfo: corev1.NodeSystemInfo{
					Architecture: "amd64", OperatingSystem: "linux", OSImage: "kubelab",
					KernelVersion: "kubelab", ContainerRuntimeVersion: "kubelab://1", KubeletVersion: kubeletVersion,
				},
			},
		}
	}
	return nodes
}

func (g Group) capacity() corev1.ResourceList {
	list := corev1.ResourceList{
		corev1.ResourceCPU:              g.CPU,
		corev1.ResourceMemory:           g.Memory,
		corev1.ResourcePods:             *resource.NewQuantity(int64(g.Pods), resource.DecimalSI),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
	}
	if g.GPU != "" {
		list[corev1.ResourceName(g.GPU)] = *resource.NewQuantity(int64(g.GPUs), resource.DecimalSI)
	}
	return list
}

// labels returns the labels of one node. Labels of its GPUs are the resource's name with a suffix, as GPU
// feature discovery writes them for nvidia.com/gpu.
func (g Group) labels(name, zone string) map[string]string {
	labels := map[string]string{
		corev1.LabelHostname:           name,
		corev1.LabelArchStable:         "amd64",
		corev1.LabelOSStable:           "linux",
		corev1.LabelTopologyZone:       zone,
		corev1.LabelTopologyRegion:     g.Region,
		corev1.LabelInstanceTypeStable: g.Name,
		LabelGroup:                     g.Name,
		LabelOnline:                    "true",
	}
	if g.GPU != "" {
		labels[g.GPU+".present"] = "true"
		labels[g.GPU+".count"] = strconv.Itoa(g.GPUs)
		if g.Product != "" {
			labels[g.GPU+".product"] = g.Product
		}
		if g.MemoryMiB != 0 {
			labels[g.GPU+".memory"] = strconv.Itoa(g.MemoryMiB)
		}
	}
	if g.Spot {
		labels[LabelSpot] = "true"
	}
	maps.Copy(labels, g.Labels)
	return labels
}

// GPUs returns the number and the product of a node's GPUs.
func GPUs(n *corev1.Node) (count int64, product string) {
	for name, quantity := range n.Status.Capacity {
		if n.Labels[string(name)+".present"] == "true" {
			return quantity.Value(), n.Labels[string(name)+".product"]
		}
	}
	return 0, ""
}
