package nodes

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Group is a number of nodes that differ only in name and zone.
type Group struct {
	// Name begins the names of the nodes: <name>-0, <name>-1 ...
	Name string
	// Count is the number of nodes, 0 to MaxNodes.
	Count int
	// GPU is the extended resource of the GPUs, such as nvidia.com/gpu. Empty means no GPUs.
	GPU string
	// GPUs is the number of GPUs of each node.
	GPUs int
	// Product is the GPU's name in the spelling of GPU feature discovery.
	Product string
	// MemoryMiB is the memory of one GPU. Default: the memory of Product, if known.
	MemoryMiB int
	// CPU and Memory are the size of each node. Default: 64 and 512Gi.
	CPU, Memory resource.Quantity
	// Pods is how many pods fit a node. Default: 110, as a kubelet's.
	Pods int
	// Zones are the zones over which nodes are spread in turn. Default: "a".
	Zones []string
	// Region is the region of all zones. Default: lab.
	Region string
	// Spot marks nodes that the provider may take away.
	Spot bool
	// Taints and Labels are set on each node.
	Taints []corev1.Taint
	Labels map[string]string
}

// MaxNodes is the maximum of Group.Count. KWOK renews a lease for each node every few seconds, which limits
// how many nodes one machine can run.
const MaxNodes = 2000

// gpuMemory is the memory in MiB that GPU feature discovery reports for a whole GPU.
var gpuMemory = map[string]int{
	"NVIDIA-B200":             183359,
	"NVIDIA-H200":             143771,
	"NVIDIA-H100-80GB-HBM3":   81559,
	"NVIDIA-H100-NVL":         95830,
	"NVIDIA-A100-SXM4-80GB":   81920,
	"NVIDIA-A100-SXM4-40GB":   40960,
	"NVIDIA-A100-PCIE-40GB":   40960,
	"NVIDIA-L40S":             46068,
	"NVIDIA-L4":               23034,
	"NVIDIA-A10G":             23028,
	"NVIDIA-RTX-A6000":        49140,
	"NVIDIA-GeForce-RTX-4090": 24564,
	"Tesla-T4":                15360,
	"Tesla-V100-SXM2-16GB":    16384,
	"NVIDIA-GH200-480GB":      97871,
}

// ParseGroup parses a group on the command line, which is a list of keys and values such as
//
//	name=h100,nodes=4,gpu=nvidia.com/gpu=8,gpu-product=NVIDIA-H100-80GB-HBM3,zones=a|b,spot=true
//
// The other keys are gpu-memory (MiB), cpu, memory, pods, region, and the repeatable taint=key=value:Effect
// and label=key=value. The result is valid.
func ParseGroup(s string) (Group, error) {
	g := Group{Count: 1}
	seen := map[string]bool{}
	for field := range strings.SplitSeq(s, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(field), "=")
		if !ok {
			return Group{}, fmt.Errorf("group %q: %q must be key=value", s, field)
		}
		if seen[key] && key != "taint" && key != "label" {
			return Group{}, fmt.Errorf("group %q: %s is given twice", s, key)
		}
		seen[key] = true
		if err := set(&g, key, value); err != nil {
			return Group{}, fmt.Errorf("group %q: %s: %w", s, key, err)
		}
	}
	if err := g.Validate(); err != nil {
		return Group{}, err
	}
	return g, nil
}

// set sets one field by its key.
func set(g *Group, key, value string) (err error) {
	switch key {
	case "name":
		g.Name = value
	case "nodes":
		g.Count, err = strconv.Atoi(value)
	case "gpu":
		g.GPU, g.GPUs, err = ParseGPU(value)
	case "gpu-product":
		g.Product = value
	case "gpu-memory":
		g.MemoryMiB, err = strconv.Atoi(value)
	case "cpu":
		g.CPU, err = resource.ParseQuantity(value)
	case "memory":
		g.Memory, err = resource.ParseQuantity(value)
	case "pods":
		g.Pods, err = strconv.Atoi(value)
	case "zones":
		g.Zones = strings.Split(value, "|")
	case "region":
		g.Region = value
	case "spot":
		g.Spot, err = strconv.ParseBool(value)
	case "taint":
		var t corev1.Taint
		t, err = ParseTaint(value)
		g.Taints = append(g.Taints, t)
	case "label":
		k, v, ok := strings.Cut(value, "=")
		if !ok {
			return fmt.Errorf("%q must be key=value", value)
		}
		if g.Labels == nil {
			g.Labels = map[string]string{}
		}
		g.Labels[k] = v
	default:
		return errors.New("unknown key; the keys are name, nodes, gpu, gpu-product, gpu-memory, cpu, memory, pods, zones, region, spot, taint, label")
	}
	return err
}

// ParseGPU parses resource=count, such as nvidia.com/gpu=8.
func ParseGPU(s string) (name string, count int, err error) {
	name, number, ok := strings.Cut(s, "=")
	if !ok {
		return "", 0, fmt.Errorf("%q must be resource=count, such as nvidia.com/gpu=8", s)
	}
	count, err = strconv.Atoi(number)
	return name, count, err
}

// ParseTaint parses key=value:Effect or key:Effect, as kubectl does.
func ParseTaint(s string) (corev1.Taint, error) {
	rest, effect, ok := strings.Cut(s, ":")
	if !ok {
		return corev1.Taint{}, fmt.Errorf("%q must be key=value:Effect", s)
	}
	key, value, _ := strings.Cut(rest, "=")
	return corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}, nil
}

// Validate returns an error that names the key of each field that Kubernetes would refuse or that is invalid.
func (g Group) Validate() error {
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf("group %q: "+format, append([]any{g.Name}, args...)...))
		}
	}
	problem := func(key, value string, problems []string) {
		refuse(len(problems) > 0, "%s: %q: %s", key, value, strings.Join(problems, "; "))
	}
	problem("name", g.Name, validation.IsDNS1123Label(g.Name))
	refuse(g.Count < 0 || g.Count > MaxNodes, "nodes must be 0 to %d, not %d", MaxNodes, g.Count)
	if g.GPU != "" {
		problem("gpu", g.GPU, validation.IsQualifiedName(g.GPU))
		refuse(!strings.Contains(g.GPU, "/"), "gpu: %q must have a domain, such as nvidia.com/gpu", g.GPU)
		refuse(g.GPUs < 1 || g.GPUs > 1024, "gpu: the count must be 1 to 1024, not %d", g.GPUs)
		problem("gpu-product", g.Product, validation.IsValidLabelValue(g.Product))
	}
	refuse(g.GPU == "" && (g.Product != "" || g.MemoryMiB != 0), "gpu-product and gpu-memory need gpu")
	refuse(g.MemoryMiB < 0, "gpu-memory must not be negative")
	refuse(g.CPU.Sign() < 0, "cpu must not be negative")
	refuse(g.Memory.Sign() < 0, "memory must not be negative")
	refuse(g.Pods < 0, "pods must not be negative")
	for _, z := range g.Zones {
		problem("zones", z, validation.IsValidLabelValue(z))
		refuse(z == "", "zones: a zone has no name")
	}
	problem("region", g.Region, validation.IsValidLabelValue(g.Region))
	for k, v := range g.Labels {
		problem("label", k, validation.IsQualifiedName(k))
		problem("label", v, validation.IsValidLabelValue(v))
	}
	for _, t := range g.Taints {
		problem("taint", t.Key, validation.IsQualifiedName(t.Key))
		problem("taint", t.Value, validation.IsValidLabelValue(t.Value))
		refuse(!slices.Contains([]corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}, t.Effect),
			"taint: the effect must be NoSchedule, PreferNoSchedule or NoExecute, not %q", t.Effect)
	}
	return errors.Join(errs...)
}

// ValidateAll validates all groups, and refuses two with the same name.
func ValidateAll(groups []Group) error {
	var errs []error
	names := map[string]bool{}
	for _, g := range groups {
		errs = append(errs, g.Validate())
		if names[g.Name] {
			errs = append(errs, fmt.Errorf("two groups have the name %q", g.Name))
		}
		names[g.Name] = true
	}
	return errors.Join(errs...)
}

func (g Group) withDefaults() Group {
	if g.CPU.IsZero() {
		g.CPU = resource.MustParse("64")
	}
	if g.Memory.IsZero() {
		g.Memory = resource.MustParse("512Gi")
	}
	g.MemoryMiB = cmp.Or(g.MemoryMiB, gpuMemory[g.Product])
	g.Pods = cmp.Or(g.Pods, 110)
	g.Region = cmp.Or(g.Region, "lab")
	if len(g.Zones) == 0 {
		g.Zones = []string{"a"}
	}
	return g
}
