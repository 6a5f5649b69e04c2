package process

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

// blockedRetry is the interval at which an instance that lacks a resource tries again. If another
// instance gives back a resource, it tries at once.
const blockedRetry = 2 * time.Second

// PortRange is the range from which ports are allocated, including its ends. The zero range leaves
// the choice to the kernel.
type PortRange struct{ Min, Max int }

// GPU is one device. An instance gets whole devices.
type GPU struct {
	// ID is the device's id for CUDA_VISIBLE_DEVICES: an index or a UUID.
	ID string
	// Product is the product's name as in the vendor's discovery, such as "NVIDIA-H100-80GB-HBM3".
	Product string
	// MemoryMiB is the memory of the device. 0: unknown.
	MemoryMiB int
}

// ledger records which instance holds which ports, GPUs and memory of this host. An instance holds
// its resources from its first start until it is forgotten, so it has the same resources after each
// restart.
type ledger struct {
	gpus         []GPU
	pool         string
	memory       int // memory of the host, in MiB
	refuseMemory bool
	ports        PortRange
	listen       func(port int) error
	owner        func(port int) string
	random       func() float64
	freed        func(ports ...int) // called with ports that no instance holds any more; not nil
	mu           sync.Mutex
	portOf       map[int]string    // port -> instance
	gpuOf        map[string]string // GPU id -> instance
	memoryOf     map[string]int
}

func newLedger(cfg Config) *ledger {
	return &ledger{
		gpus: cfg.GPUs, pool: cfg.Pool, memory: cfg.MemoryMiB, refuseMemory: cfg.RefuseMemoryOvercommit,
		ports: cfg.Ports, listen: tryListen, owner: portOwner, random: cfg.Random,
		freed:  func(...int) {},
		portOf: map[int]string{}, gpuOf: map[string]string{}, memoryOf: map[string]int{},
	}
}

// restoreClaim records the resources that an instance held before the agent restarted.
func (l *ledger) restoreClaim(r record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range r.Ports {
		if p.Port > 0 {
			l.portOf[p.Port] = r.ID
		}
	}
	for _, g := range r.GPUs {
		l.gpuOf[g] = r.ID
	}
	l.memoryOf[r.ID] = r.MemoryMiB
}

func (l *ledger) release(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, owner := range l.portOf {
		if owner == id {
			delete(l.portOf, p)
			l.freed(p)
		}
	}
	for g, owner := range l.gpuOf {
		if owner == id {
			delete(l.gpuOf, g)
		}
	}
	delete(l.memoryOf, id)
}

// need has the resources that one instance needs.
type need struct {
	ports     []needPort
	gpus      needGPUs
	memoryMiB int
}

type needPort struct {
	name string
	port int
}

// claimResources gives r the resources of n. It keeps the resources that r holds already. If anything is
// missing, claimResources returns what is missing and changes nothing. Allocated ports that another process
// has taken meanwhile are replaced. fresh replaces allocated ports in any case.
func (l *ledger) claimResources(r *record, n need, fresh bool, now time.Time) *block {
	l.mu.Lock()
	defer l.mu.Unlock()
	gpus, b := l.claimGPUs(r, n)
	if b == nil {
		b = l.claimMemory(r, n)
	}
	var ports []port
	if b == nil {
		ports, b = l.claimPorts(r, n, fresh)
	}
	if b != nil {
		b.Until = now.Add(blockedRetry)
		return b
	}
	for _, p := range r.Ports {
		if l.portOf[p.Port] == r.ID {
			delete(l.portOf, p.Port)
		}
	}
	for _, p := range ports {
		l.portOf[p.Port] = r.ID
	}
	for _, p := range r.Ports {
		if l.portOf[p.Port] == "" {
			l.freed(p.Port)
		}
	}
	for _, g := range r.GPUs {
		if l.gpuOf[g] == r.ID {
			delete(l.gpuOf, g)
		}
	}
	for _, g := range gpus {
		l.gpuOf[g] = r.ID
	}
	l.memoryOf[r.ID] = n.memoryMiB
	r.Ports, r.GPUs, r.MemoryMiB = ports, gpus, n.memoryMiB
	return nil
}

func (l *ledger) claimGPUs(r *record, n need) ([]string, *block) {
	if n.gpus.count == 0 {
		return nil, nil
	}
	var chosen []string
	free, total := 0, 0
	for _, g := range l.gpus {
		if !n.gpus.fitsDevice(g) {
			continue
		}
		total++
		if l.gpuOf[g.ID] == r.ID && len(chosen) < n.gpus.count {
			chosen = append(chosen, g.ID)
		}
	}
	for _, g := range l.gpus {
		if !n.gpus.fitsDevice(g) || l.gpuOf[g.ID] != "" {
			continue
		}
		free++
		if len(chosen) < n.gpus.count {
			chosen = append(chosen, g.ID)
		}
	}
	if len(chosen) < n.gpus.count {
		return nil, &block{
			Reason:  runtime.ReasonUnschedulable,
			Message: fmt.Sprintf("needs %s, %d of %d free", n.gpus, free, total),
		}
	}
	return chosen, nil
}

func (l *ledger) claimMemory(r *record, n need) *block {
	if !l.refuseMemory {
		return nil
	}
	free := l.memory + l.memoryOf[r.ID]
	for _, m := range l.memoryOf {
		free -= m
	}
	if n.memoryMiB > free {
		return &block{
			Reason:  runtime.ReasonUnschedulable,
			Message: fmt.Sprintf("needs %d MiB of memory, %d of %d MiB free", n.memoryMiB, max(free, 0), l.memory),
		}
	}
	return nil
}

func (l *ledger) claimPorts(r *record, n need, fresh bool) ([]port, *block) {
	var out []port
	taken := map[int]bool{}
	for _, want := range n.ports {
		if want.port > 0 {
			if b := l.fixedPort(r.ID, want.port); b != nil {
				return nil, b
			}
			taken[want.port] = true
		}
	}
	for _, want := range n.ports {
		if want.port > 0 {
			out = append(out, port{Name: want.name, Port: want.port, Fixed: true})
			continue
		}
		p := 0
		for _, had := range r.Ports {
			mine := l.portOf[had.Port] == r.ID || l.portOf[had.Port] == ""
			if had.Name == want.name && !had.Fixed && !fresh && mine && !taken[had.Port] && had.Port > 0 && l.listen(had.Port) == nil {
				p = had.Port
			}
		}
		if p == 0 {
			if p = l.allocatePort(taken); p == 0 {
				return nil, &block{Reason: runtime.ReasonUnschedulable, Message: "no free port" + l.rangeText()}
			}
		}
		taken[p] = true
		out = append(out, port{Name: want.name, Port: p})
	}
	return out, nil
}

func (l *ledger) rangeText() string {
	if l.ports.Max == 0 {
		return ""
	}
	return fmt.Sprintf(" in %d-%d", l.ports.Min, l.ports.Max)
}

func (l *ledger) fixedPort(id string, p int) *block {
	if owner := l.portOf[p]; owner != "" && owner != id {
		return &block{
			Reason:  runtime.ReasonPortInUse,
			Message: fmt.Sprintf("port %d is taken by instance %s of this host: a fixed port allows one instance per host; leave the port 0 to have one allocated", p, owner),
		}
	}
	if err := l.listen(p); err != nil {
		who := l.owner(p)
		if who == "" {
			who = "another process (" + causeOf(err).Error() + ")"
		}
		return &block{Reason: runtime.ReasonPortInUse, Message: fmt.Sprintf("port %d is in use by %s", p, who)}
	}
	return nil
}

// allocatePort finds a port on which no process listens and which no instance holds.
func (l *ledger) allocatePort(taken map[int]bool) int {
	usable := func(p int) bool { return l.portOf[p] == "" && !taken[p] }
	if l.ports.Max == 0 {
		for range 100 {
			ln, err := net.Listen("tcp", ":0")
			if err != nil {
				return 0
			}
			p := ln.Addr().(*net.TCPAddr).Port
			_ = ln.Close()
			if usable(p) {
				return p
			}
		}
		return 0
	}
	size := l.ports.Max - l.ports.Min + 1
	// The search starts at a random place, so that two agents of one host seldom choose the same
	// port.
	at := int(l.random() * float64(size))
	for i := range size {
		p := l.ports.Min + (at+i)%size
		if usable(p) && l.listen(p) == nil {
			return p
		}
	}
	return 0
}

// tryListen returns an error if the port cannot be bound on every address of this host.
func tryListen(p int) error {
	// Without the fork lock, an instance that is forked meanwhile would hold the socket until its
	// exec. The next check would then find the port in use.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	ln, err := net.Listen("tcp", ":"+strconv.Itoa(p))
	if err != nil {
		return err
	}
	return ln.Close()
}

// portOwner returns the process that listens on a port, or "" if /proc does not show it to this
// process.
func portOwner(p int) string {
	inodes := listeningSockets(p)
	if len(inodes) == 0 {
		return ""
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !inodes[target] {
			continue
		}
		pid := strings.Split(fd, "/")[2]
		name, err := os.ReadFile("/proc/" + pid + "/comm")
		if err != nil {
			continue
		}
		return fmt.Sprintf("pid %s (%s)", pid, strings.TrimSpace(string(name)))
	}
	return ""
}
