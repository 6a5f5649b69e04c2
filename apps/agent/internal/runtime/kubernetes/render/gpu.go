package render

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

// DefaultGPUResource is the resource name of GPUs if neither the spec nor the pool has one.
const DefaultGPUResource = "nvidia.com/gpu"

// nvidiaVisible is the variable that tells NVIDIA's container runtime which devices an instance
// sees. Images set it to "all". With this value, a pod without GPUs would see all GPUs of its node.
const (
	nvidiaVisible = "NVIDIA_VISIBLE_DEVICES"
	cudaVisible   = "CUDA_VISIBLE_DEVICES"
)

// gpu has the GPUs that the spec requests. The zero value means none.
type gpu struct {
	count    int32
	resource string
	// expressions are conditions that the labels of a node must match.
	expressions []*coreac.NodeSelectorRequirementApplyConfiguration
	pool        Pool
}

func (r *rendering) takeGPU() error {
	g := r.role.resources.GetGpu()
	at := r.role.at + "resources.gpu."
	if g.GetCount() < 0 {
		return invalidError("%scount: %d is negative", at, g.GetCount())
	}
	if g.GetCount() == 0 {
		return nil
	}
	r.gpu = gpu{count: g.GetCount(), resource: g.GetResourceName()}
	if g.GetPool() != "" {
		pool, ok := r.cfg.Pools[g.GetPool()]
		if !ok {
			return refuseWith(runtime.ReasonUnknownPool, "%spool: region %s has no pool %q: %s", at, r.cfg.Region, g.GetPool(), r.knownPools())
		}
		if pool.ResourceName != "" && r.gpu.resource != "" && pool.ResourceName != r.gpu.resource {
			return invalidError("%sresourceName: it is %s, and pool %q has %s: leave it out", at, r.gpu.resource, pool.Name, pool.ResourceName)
		}
		if r.gpu.resource == "" {
			r.gpu.resource = pool.ResourceName
		}
		r.gpu.pool = pool
	}
	if r.gpu.resource == "" {
		r.gpu.resource = DefaultGPUResource
	}
	if err := checkResourceName(r.gpu.resource); err != nil {
		return invalidError("%sresourceName: %v", at, err)
	}
	labels := labelsOf(r.gpu.resource)
	if p := g.GetProduct(); p != "" {
		if labels.product == "" {
			return unsupportedError("%sproduct: nodes have no label with the product of %s: leave product out and name a pool, or a label of your nodes in kubernetes.nodeSelector", at, r.gpu.resource)
		}
		if bad := validation.IsValidLabelValue(p); len(bad) > 0 {
			return invalidError("%sproduct: %q is not a valid label value, so no node can have it: %s", at, p, strings.Join(bad, "; "))
		}
		r.gpu.expressions = append(r.gpu.expressions, coreac.NodeSelectorRequirement().
			WithKey(labels.product).WithOperator(corev1.NodeSelectorOpIn).WithValues(p))
	}
	switch m := g.GetMinMemoryMib(); {
	case m < 0:
		return invalidError("%sminMemoryMib: %d is negative", at, m)
	case m == 0:
	case labels.memory == "":
		return unsupportedError("%sminMemoryMib: nodes have no label with the memory of %s as a number: leave minMemoryMib out and name a product or a pool", at, r.gpu.resource)
	default:
		// Node affinity has the operator "greater than", but no "at least".
		r.gpu.expressions = append(r.gpu.expressions, coreac.NodeSelectorRequirement().
			WithKey(labels.memory).WithOperator(corev1.NodeSelectorOpGt).WithValues(strconv.Itoa(int(m)-1)))
	}
	return nil
}

func (r *rendering) knownPools() string {
	if len(r.cfg.Pools) == 0 {
		return "it has none: leave pool out"
	}
	return "it has " + strings.Join(slices.Sorted(maps.Keys(r.cfg.Pools)), ", ")
}

// gpuLabels has the names of the labels that describe the GPUs of a node. An empty name means that
// there is no such label.
type gpuLabels struct {
	product string
	// memory is the label with the memory of each GPU in MiB, as a plain number, because the
	// scheduler can compare only numbers.
	memory string
}

// labelsOf returns the labels for a resource. The names of NVIDIA's GPU feature discovery begin
// with the resource: nvidia.com/gpu.product, and for parts of a GPU nvidia.com/mig-3g.40gb.product.
// AMD's node labeller writes memory as "192G", which the scheduler cannot compare. The labels of
// other vendors depend on the cloud.
func labelsOf(resource string) gpuLabels {
	switch vendor, kind, _ := strings.Cut(resource, "/"); vendor {
	case vendorNVIDIA:
		if !strings.HasPrefix(kind, "mig-") {
			// A shared GPU has the resource nvidia.com/gpu.shared, but its labels have no such
			// suffix.
			kind = strings.TrimSuffix(kind, ".shared")
		}
		name := vendor + "/" + kind
		return gpuLabels{product: name + ".product", memory: name + ".memory"}
	case vendorAMD:
		return gpuLabels{product: vendorAMD + "/gpu.product-name"}
	}
	return gpuLabels{}
}
