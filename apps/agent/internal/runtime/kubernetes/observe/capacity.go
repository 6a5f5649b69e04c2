package observe

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Pool is a named set of nodes with GPUs.
type Pool struct {
	Name         string
	NodeSelector map[string]string
	// Tolerations are the tolerations of instances that request the pool. They come in addition to
	// the tolerations of all instances with the pool's resource.
	Tolerations []corev1.Toleration
	// ResourceName is the resource of its devices. Empty: every resource of its nodes that counts
	// as GPUs.
	ResourceName string
	// Quota is how many of its devices Windlass may use. 0: all of them.
	Quota int
}

// FleetConfig configures a Fleet.
type FleetConfig struct {
	Pools []Pool
	// Words are the region's words for parts of it.
	Words []string
	// Tolerations are the tolerations of every instance with devices. They come in addition to
	// tolerations of taints with the name of the resource.
	Tolerations []corev1.Toleration
}

// Fleet keeps sums over the nodes and pods of the cluster. A change updates only the node or pod
// that changed. Capacity makes one pass over the nodes. Fleet is safe for concurrent use.
type Fleet struct {
	cfg FleetConfig

	mu    sync.Mutex
	nodes map[string]*host
	pods  map[types.UID]load
	// used has, for each node, the resources of the pods that are bound to the node. The node itself
	// may be unknown.
	used map[string]*usage
	// pending has the pods without a node.
	pending map[types.UID]*corev1.Pod
	// last is the last result of Capacity. It is nil if something has changed since.
	last *agentv1.Capacity
}

// host is one node.
type host struct {
	name        string
	cpu, memory int64 // millicores, MiB
	shares      []share
	// closed is the reason why instances that need no GPU cannot run on the node. It is empty if
	// they can.
	closed string
}

// share is the part of a node in one line of the capacity.
type share struct {
	line        line
	resource    corev1.ResourceName
	memory      int64
	allocatable int64
	broken      int64
	closed      string
}

// line identifies one line of the capacity: devices that are interchangeable.
type line struct{ pool, product, resource string }

// load is the node of one pod, and the resources that the pod holds there. devices has all resources with a vendor's
// name, in whole units.
type load struct {
	node        string
	cpu, memory int64 // millicores, bytes
	devices     map[corev1.ResourceName]int64
}

// usage is the sum of the loads of one node.
type usage struct {
	pods, cpu, memory int64
	devices           map[corev1.ResourceName]int64
}

// NewFleet returns a Fleet without nodes.
func NewFleet(cfg FleetConfig) *Fleet {
	return &Fleet{
		cfg: cfg, nodes: map[string]*host{}, pods: map[types.UID]load{},
		used: map[string]*usage{}, pending: map[types.UID]*corev1.Pod{},
	}
}

// SetNode adds or replaces a node. It reports whether that may change the capacity.
func (f *Fleet) SetNode(node *corev1.Node) bool {
	h := f.hostOf(node)
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.nodes[node.Name]; old != nil && old.equal(h) {
		return false
	}
	f.nodes[node.Name] = h
	f.last = nil
	return true
}

// RemoveNode forgets a node.
func (f *Fleet) RemoveNode(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nodes[name] == nil {
		return false
	}
	delete(f.nodes, name)
	f.last = nil
	return true
}

// SetPod adds or replaces a pod, of Windlass or of another client. It reports whether that may
// change the capacity. A pod holds its devices until it has ended, also while it stops.
func (f *Fleet) SetPod(pod *corev1.Pod) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	old, known := f.pods[pod.UID]
	delete(f.pending, pod.UID)
	if pod.Spec.NodeName == "" && Holds(pod) {
		f.pending[pod.UID] = pod
	}
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return known && f.dropLoad(pod.UID, old)
	}
	if known && old.node == pod.Spec.NodeName {
		// The devices of a pod cannot change while it exists.
		return false
	}
	l := loadOf(pod)
	if known {
		f.dropLoad(pod.UID, old)
	}
	f.pods[pod.UID] = l
	sums := f.used[l.node]
	if sums == nil {
		sums = &usage{devices: map[corev1.ResourceName]int64{}}
		f.used[l.node] = sums
	}
	sums.pods++
	sums.cpu += l.cpu
	sums.memory += l.memory
	if len(l.devices) == 0 {
		return known && len(old.devices) > 0
	}
	for name, n := range l.devices {
		sums.devices[name] += n
	}
	f.last = nil
	return true
}

// RemovePod forgets a pod.
func (f *Fleet) RemovePod(uid types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pending, uid)
	l, known := f.pods[uid]
	return known && f.dropLoad(uid, l)
}

func (f *Fleet) dropLoad(uid types.UID, l load) bool {
	delete(f.pods, uid)
	sums := f.used[l.node]
	sums.pods--
	sums.cpu -= l.cpu
	sums.memory -= l.memory
	for name, n := range l.devices {
		if sums.devices[name] -= n; sums.devices[name] == 0 {
			delete(sums.devices, name)
		}
	}
	if sums.pods == 0 {
		delete(f.used, l.node)
	}
	if len(l.devices) == 0 {
		return false
	}
	f.last = nil
	return true
}

// countsResource reports whether a resource is part of the capacity.
func (f *Fleet) countsResource(name corev1.ResourceName) bool {
	return isGPU(name) || slices.ContainsFunc(f.cfg.Pools, func(p Pool) bool { return p.ResourceName == string(name) })
}

func loadOf(pod *corev1.Pod) load {
	l := load{node: pod.Spec.NodeName}
	for name, q := range requestsOf(pod) {
		switch {
		case name == corev1.ResourceCPU:
			l.cpu = max(q.MilliValue(), 0)
		case name == corev1.ResourceMemory:
			l.memory = wholeUnits(q)
		case isDevice(name) && wholeUnits(q) > 0:
			if l.devices == nil {
				l.devices = map[corev1.ResourceName]int64{}
			}
			l.devices[name] = wholeUnits(q)
		}
	}
	return l
}

func (f *Fleet) hostOf(node *corev1.Node) *host {
	cpu, memory := node.Status.Allocatable[corev1.ResourceCPU], node.Status.Allocatable[corev1.ResourceMemory]
	h := &host{name: node.Name, cpu: max(cpu.MilliValue(), 0), memory: max(inMebibytes(memory), 0), closed: closedReason(node, nil)}
	for _, name := range slices.Sorted(maps.Keys(node.Status.Capacity)) {
		capacity := wholeUnits(node.Status.Capacity[name])
		if capacity == 0 || !f.countsResource(name) {
			continue
		}
		allocatable := wholeUnits(node.Status.Allocatable[name])
		s := share{
			line:     line{product: productOf(node, name), resource: string(name)},
			resource: name, memory: memoryMiB(node, name),
			allocatable: allocatable, broken: max(capacity-allocatable, 0),
		}
		pooled, tolerations := false, slices.Concat(f.cfg.Tolerations, render.GPUTolerations(string(name)))
		for _, p := range f.cfg.Pools {
			if p.ResourceName != "" && p.ResourceName != string(name) || !labels.SelectorFromSet(p.NodeSelector).Matches(labels.Set(node.Labels)) {
				continue
			}
			pooled = true
			s.line.pool = p.Name
			s.closed = closedReason(node, slices.Concat(tolerations, p.Tolerations))
			h.shares = append(h.shares, s)
		}
		if !pooled {
			s.closed = closedReason(node, tolerations)
			h.shares = append(h.shares, s)
		}
	}
	return h
}

func (h *host) equal(o *host) bool {
	return h.name == o.name && h.cpu == o.cpu && h.memory == o.memory && h.closed == o.closed && slices.Equal(h.shares, o.shares)
}

// open reports whether any instance can run on the node.
func (h *host) open() bool {
	return h.closed == "" || slices.ContainsFunc(h.shares, func(s share) bool { return s.closed == "" })
}

// maxNotes is the maximum number of notes, because an outage may affect all nodes.
const maxNotes = 20

// Capacity returns the capacity of the cluster, by pool, product and resource. A node in two pools
// counts in both. A node without a pool counts under an empty name. Callers must not change the
// result.
func (f *Fleet) Capacity() *agentv1.Capacity {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last != nil {
		return f.last
	}
	out := &agentv1.Capacity{TopologyWords: f.cfg.Words}
	lines := map[line]*agentv1.GpuPool{}
	notes := 0
	note := func(format string, args ...any) {
		if notes++; notes <= maxNotes {
			out.Notes = append(out.Notes, fmt.Sprintf(format, args...))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.nodes)) {
		h := f.nodes[name]
		if h.open() {
			out.CpuMillicores += h.cpu
			out.MemoryMib += h.memory
		} else if len(h.shares) > 0 {
			note("node %s takes no instances: %s", name, h.shares[0].closed)
		}
		for i, s := range h.shares {
			l := lines[s.line]
			if l == nil {
				l = &agentv1.GpuPool{Product: s.line.product, Pool: s.line.pool, ResourceName: s.line.resource, Quota: f.quotaOf(s.line.pool)}
				lines[s.line] = l
			}
			used := f.usedOn(name).devices[s.resource]
			l.Hosts++
			l.Allocatable = saturatingSum(l.Allocatable, s.allocatable)
			l.Requested = saturatingSum(l.Requested, used)
			if s.closed == "" {
				free := max(s.allocatable-used, 0)
				l.Free = saturatingSum(l.Free, free)
				l.LargestFree = max(l.LargestFree, saturatingSum(0, free))
			}
			if s.memory > 0 && (l.MemoryMib == 0 || s.memory < l.MemoryMib) {
				l.MemoryMib = s.memory
			}
			if s.broken > 0 && h.open() && (i == 0 || h.shares[i-1].resource != s.resource) {
				note("node %s: %d of %d %s are out of order or reserved", name, s.broken, s.broken+s.allocatable, s.resource)
			}
		}
	}
	if notes > maxNotes {
		out.Notes = append(out.Notes, fmt.Sprintf("and %d more", notes-maxNotes))
	}
	out.Gpus = slices.SortedFunc(maps.Values(lines), func(a, b *agentv1.GpuPool) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Product, b.Product), cmp.Compare(a.ResourceName, b.ResourceName))
	})
	f.last = out
	return out
}

func (f *Fleet) quotaOf(pool string) int32 {
	for _, p := range f.cfg.Pools {
		if p.Name == pool {
			return saturatingSum(0, int64(max(p.Quota, 0)))
		}
	}
	return 0
}

// saturatingSum adds without overflow, because a node may report any number.
func saturatingSum(a int32, b int64) int32 {
	return int32(min(int64(a)+min(max(b, 0), math.MaxInt32), math.MaxInt32))
}
