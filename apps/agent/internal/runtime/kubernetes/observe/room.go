package observe

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/windlass-run/windlass/apps/agent/internal/gang"
)

// podsResource is the resource of which each pod takes one.
const podsResource = string(corev1.ResourcePods)

// isDevice reports whether a resource has a vendor's name, such as nvidia.com/gpu.
func isDevice(name corev1.ResourceName) bool { return strings.Contains(string(name), "/") }

// usedOn returns the resources of the pods that are bound to a node. The caller holds f.mu, and must not change them.
func (f *Fleet) usedOn(node string) *usage {
	if u := f.used[node]; u != nil {
		return u
	}
	return &usage{}
}

// Free returns the resources of a node that no pod has requested. Of resources other than CPU, memory, pods and those
// with a vendor's name, it returns all that pods can request.
func (f *Fleet) Free(node *corev1.Node) gang.Resources {
	out := amountsOf(node.Status.Allocatable)
	f.mu.Lock()
	defer f.mu.Unlock()
	used := f.usedOn(node.Name)
	out[podsResource] -= used.pods
	out[string(corev1.ResourceCPU)] -= used.cpu
	out[string(corev1.ResourceMemory)] -= used.memory
	for name, n := range used.devices {
		out[string(name)] -= n
	}
	return out
}

// Pending returns the pods of the region without a node. Callers must not change them.
func (f *Fleet) Pending() []*corev1.Pod {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.pending))
}

// Needs returns the resources that the scheduler reserves for a pod with this spec.
func Needs(spec *corev1.PodSpec) gang.Resources {
	pod := &corev1.Pod{Spec: *spec}
	pod.Spec.Containers, pod.Spec.InitContainers = withRequests(spec.Containers), withRequests(spec.InitContainers)
	out := amountsOf(requestsOf(pod))
	out[podsResource] = 1
	return out
}

// withRequests returns the containers with the requests that the API server derives from limits.
func withRequests(all []corev1.Container) []corev1.Container {
	all = slices.Clone(all)
	for i := range all {
		c := &all[i].Resources
		asked := corev1.ResourceList{}
		maps.Copy(asked, c.Limits)
		maps.Copy(asked, c.Requests)
		c.Requests = asked
	}
	return all
}

// amountsOf converts quantities: CPU to millicores, all others to whole units.
func amountsOf(list corev1.ResourceList) gang.Resources {
	out := gang.Resources{}
	for name, q := range list {
		out[string(name)] = amountIn(name, q)
	}
	return out
}

func amountIn(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return max(q.MilliValue(), 0)
	}
	return wholeUnits(q)
}

// Takes reports whether a pod with this spec may run on the node, if the node has the resources. It reads the node
// selector, the required node affinity and the tolerations.
func Takes(node *corev1.Node, spec *corev1.PodSpec) bool {
	if closedReason(node, spec.Tolerations) != "" || !labels.SelectorFromSet(spec.NodeSelector).Matches(labels.Set(node.Labels)) {
		return false
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil || spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	return slices.ContainsFunc(spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return len(t.MatchExpressions)+len(t.MatchFields) > 0 && matchesAll(t.MatchExpressions, node.Labels) && matchesAll(t.MatchFields, map[string]string{"metadata.name": node.Name})
	})
}

var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn, corev1.NodeSelectorOpExists: selection.Exists,
	corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist, corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

func matchesAll(all []corev1.NodeSelectorRequirement, values map[string]string) bool {
	for _, r := range all {
		one, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
		if err != nil || !one.Matches(labels.Set(values)) {
			return false
		}
	}
	return true
}
