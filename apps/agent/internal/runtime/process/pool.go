package process

import (
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// nvidia is Kubernetes' resource name of the GPUs of a host. A host assigns GPUs by
// CUDA_VISIBLE_DEVICES.
const nvidia = "nvidia.com/gpu"

// needGPUs has the GPUs that one instance requests.
type needGPUs struct {
	count   int
	product string
	// memoryMiB is the memory that each GPU must have. 0: any.
	memoryMiB int
}

func gpusOf(g *windlassv1.Gpu) needGPUs {
	return needGPUs{count: int(g.GetCount()), product: g.GetProduct(), memoryMiB: int(g.GetMinMemoryMib())}
}

// fitsDevice reports whether the device has the product and enough memory. A device whose memory is not
// known does not have enough.
func (n needGPUs) fitsDevice(g GPU) bool {
	return (n.product == "" || g.Product == n.product) && g.MemoryMiB >= n.memoryMiB
}

func (n needGPUs) String() string {
	s := fmt.Sprintf("%d of any GPU", n.count)
	if n.product != "" {
		s = fmt.Sprintf("%d of %s", n.count, n.product)
	}
	if n.memoryMiB > 0 {
		s += fmt.Sprintf(" with %d MiB or more each", n.memoryMiB)
	}
	return s
}

// refuseGPUs returns why this host can never provide the GPUs, or nil if it may. at is the path of g in the
// spec.
func (r *Runtime) refuseGPUs(at string, g *windlassv1.Gpu) *runtime.Rejection {
	if g.GetCount() == 0 {
		return nil
	}
	if pool := g.GetPool(); pool != "" && pool != r.cfg.Pool {
		return &runtime.Rejection{Code: runtime.ReasonUnknownPool, Message: fmt.Sprintf(
			"%s.pool: asks for pool %q, %s", at, pool, r.whichPool())}
	}
	if name := g.GetResourceName(); name != "" && name != nvidia {
		return &runtime.Rejection{Code: runtime.ReasonUnsupported, Message: fmt.Sprintf(
			"%s.resourceName: %q is a resource name of Kubernetes, and this region is a host with NVIDIA GPUs: leave resourceName out, or use regions on Kubernetes", at, name)}
	}
	n, has := gpusOf(g), 0
	for _, d := range r.cfg.GPUs {
		if n.fitsDevice(d) {
			has++
		}
	}
	if n.count <= has {
		return nil
	}
	message := fmt.Sprintf("%s: needs %s, this host has %d", at, n, has)
	if others := r.otherGPUs(n); others != "" {
		message += " (" + others + ")"
	}
	return &runtime.Rejection{Code: runtime.ReasonUnschedulable, Message: message}
}

func (r *Runtime) whichPool() string {
	if r.cfg.Pool == "" {
		return "this host is in no pool: its operator can set one with --pool"
	}
	return fmt.Sprintf("this host is in pool %q", r.cfg.Pool)
}

// otherGPUs describes the devices that do not fit, and why not.
func (r *Runtime) otherGPUs(n needGPUs) string {
	var products, small []string
	unknown := 0
	for _, d := range r.cfg.GPUs {
		switch {
		case n.product != "" && d.Product != n.product:
			if !slices.Contains(products, d.Product) {
				products = append(products, d.Product)
			}
		case n.memoryMiB > 0 && d.MemoryMiB == 0:
			unknown++
		case !n.fitsDevice(d):
			if text := fmt.Sprintf("%d MiB", d.MemoryMiB); !slices.Contains(small, text) {
				small = append(small, text)
			}
		}
	}
	var out []string
	if len(products) > 0 {
		out = append(out, fmt.Sprintf("it has %v", products))
	}
	if len(small) > 0 {
		out = append(out, "others have "+strings.Join(small, ", "))
	}
	if unknown > 0 {
		out = append(out, fmt.Sprintf("the memory of %d is unknown: use nvidia-smi or --gpus COUNT:PRODUCT:MIB to provide it", unknown))
	}
	return strings.Join(out, "; ")
}

// gpuPools returns the GPU part of the capacity, with one row for each kind of device.
func (l *ledger) gpuPools() []*agentv1.GpuPool {
	l.mu.Lock()
	defer l.mu.Unlock()
	type kind struct {
		product   string
		memoryMiB int
	}
	rows := map[kind]*agentv1.GpuPool{}
	var out []*agentv1.GpuPool
	for _, g := range l.gpus {
		k := kind{g.Product, g.MemoryMiB}
		p := rows[k]
		if p == nil {
			p = &agentv1.GpuPool{Product: g.Product, Pool: l.pool, MemoryMib: int64(g.MemoryMiB), Hosts: 1}
			rows[k] = p
			out = append(out, p)
		}
		p.Allocatable++
		if l.gpuOf[g.ID] != "" {
			p.Requested++
		} else {
			// There is only one host, so all free GPUs are free together.
			p.Free++
			p.LargestFree++
		}
	}
	return out
}
