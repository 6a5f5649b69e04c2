package observe

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// isGPU reports whether a resource counts as GPUs even if no pool has that resource. Of Intel's
// resources, only whole devices count.
func isGPU(name corev1.ResourceName) bool {
	vendor, kind, _ := strings.Cut(string(name), "/")
	switch vendor {
	case "nvidia.com":
		return kind == "gpu" || kind == "gpu.shared" || strings.HasPrefix(kind, "mig-")
	case "amd.com":
		// Partitions have their own names, such as amd.com/cpx_nps4.
		return kind != ""
	case "gpu.intel.com":
		return kind == "i915" || kind == "xe"
	case "habana.ai":
		return kind == "gaudi"
	case "google.com":
		return kind == "tpu"
	}
	return false
}

// productOf returns the product name of a resource's devices from the node's labels, or "" if there
// is no such label. The labels come from NVIDIA's GPU feature discovery, from AMD's and Intel's
// node labellers, and from clouds.
func productOf(node *corev1.Node, name corev1.ResourceName) string {
	labels, n := node.Labels, string(name)
	if p := labels[n+".product"]; p != "" {
		return p
	}
	if kind, ok := strings.CutPrefix(n, "nvidia.com/"); ok {
		p := labels["nvidia.com/gpu.product"]
		if profile, mig := strings.CutPrefix(kind, "mig-"); mig && p != "" {
			return p + "-MIG-" + profile
		}
		if p != "" {
			return p
		}
	}
	if strings.HasPrefix(n, "amd.com/") {
		if p := labels["amd.com/gpu.product-name"]; p != "" {
			return p
		}
	}
	for _, l := range []string{"gpu.intel.com/product", "cloud.google.com/gke-accelerator", "cloud.google.com/gke-tpu-accelerator"} {
		if p := labels[l]; p != "" {
			return p
		}
	}
	return ""
}

// memoryMiB returns the memory of one device from the labels, in MiB, or 0 if it is unknown.
func memoryMiB(node *corev1.Node, name corev1.ResourceName) int64 {
	text := node.Labels[string(name)+".memory"]
	if text == "" && strings.HasPrefix(string(name), "nvidia.com/gpu") {
		text = node.Labels["nvidia.com/gpu.memory"]
	}
	if mib, err := strconv.ParseInt(text, 10, 64); err == nil && mib > 0 {
		return mib
	}
	// AMD writes "192G" for 192 GiB.
	if strings.HasPrefix(string(name), "amd.com/") {
		text = strings.TrimSuffix(node.Labels["amd.com/gpu.vram"], "G")
		if gib, err := strconv.ParseInt(text, 10, 32); err == nil && gib > 0 {
			return gib << 10
		}
	}
	return 0
}

// requestsOf returns the resources that the scheduler reserves for a pod. They are the sum over its
// containers, or the requests of an init container that needs more, plus the overhead of the
// runtime class.
func requestsOf(pod *corev1.Pod) corev1.ResourceList {
	sum, peak := corev1.ResourceList{}, corev1.ResourceList{}
	sidecars := corev1.ResourceList{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(sidecars, c.Resources.Requests)
			raiseTo(peak, sidecars)
			continue
		}
		here := sidecars.DeepCopy()
		add(here, c.Resources.Requests)
		raiseTo(peak, here)
	}
	add(sum, sidecars)
	for i := range pod.Spec.Containers {
		add(sum, pod.Spec.Containers[i].Resources.Requests)
	}
	raiseTo(sum, peak)
	if pod.Spec.Resources != nil {
		// Requests of the pod replace the requests of its containers.
		for name, q := range pod.Spec.Resources.Requests {
			sum[name] = q.DeepCopy()
		}
	}
	add(sum, pod.Spec.Overhead)
	return sum
}

func add(to, more corev1.ResourceList) {
	for name, q := range more {
		have := to[name]
		have.Add(q)
		to[name] = have
	}
}

func raiseTo(to, atLeast corev1.ResourceList) {
	for name, q := range atLeast {
		if have, ok := to[name]; !ok || have.Cmp(q) < 0 {
			to[name] = q.DeepCopy()
		}
	}
}

// podDevices returns one entry for each device of a pod. The entry is the device's id if the
// kubelet reports it. Otherwise, it is the product or the name of the resource.
func podDevices(pod *corev1.Pod, node *corev1.Node) []string {
	var out []string
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		names := gpuNames(c.Resources)
		if len(names) == 0 {
			continue
		}
		cs := statusOf(pod.Status.ContainerStatuses, c.Name)
		for _, name := range names {
			if ids := deviceIDs(cs, name); len(ids) > 0 {
				out = append(out, ids...)
				continue
			}
			q := c.Resources.Limits[name]
			label := string(name)
			if node != nil {
				if p := productOf(node, name); p != "" {
					label = p
				}
			}
			for range min(q.Value(), maxDevices) {
				out = append(out, label)
			}
		}
	}
	return out
}

// maxDevices is the maximum number of devices of one pod.
const maxDevices = 64

func gpuNames(r corev1.ResourceRequirements) []corev1.ResourceName {
	var names []corev1.ResourceName
	for name := range r.Limits {
		if isGPU(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func deviceIDs(cs *corev1.ContainerStatus, name corev1.ResourceName) []string {
	if cs == nil {
		return nil
	}
	for _, r := range cs.AllocatedResourcesStatus {
		if r.Name != name {
			continue
		}
		var ids []string
		for _, d := range r.Resources[:min(len(r.Resources), maxDevices)] {
			ids = append(ids, string(d.ResourceID))
		}
		return ids
	}
	return nil
}

func wholeUnits(q resource.Quantity) int64 { return max(q.Value(), 0) }
