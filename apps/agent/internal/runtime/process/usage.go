package process

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

var _ runtime.Meter = (*Runtime)(nil)

const (
	// ticksPerSecond is the unit of times in /proc. It is the same on every architecture that Go
	// supports.
	ticksPerSecond = 100
	// shortestSpan is the shortest time over which a mean of the CPU is computed. An earlier call
	// gets the mean of the previous call.
	shortestSpan = time.Second
	// longestSpan is the age at which a reading is no longer used.
	longestSpan = time.Minute
)

// meter has the last reading of the CPU time of each instance.
type meter struct {
	mu       sync.Mutex
	readings map[string]reading // by instance
}

type reading struct {
	attempt proc // the shim of the attempt
	cpu     time.Duration
	at      time.Time
	// millicores is the mean since the previous reading. known is false for the first reading.
	millicores float64
	known      bool
}

// spent has the CPU time that one instance has used, and its memory in bytes.
type spent struct {
	cpu    time.Duration
	memory int64
}

// next takes the CPU time of an instance. It returns the mean since the previous reading.
func (m *meter) next(instanceID string, attempt proc, cpu time.Duration, now time.Time) (millicores float64, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.readings == nil {
		m.readings = map[string]reading{}
	}
	before, ok := m.readings[instanceID]
	span := now.Sub(before.at)
	switch {
	case !ok || before.attempt != attempt || span > longestSpan || span < 0 || cpu < before.cpu:
		m.readings[instanceID] = reading{attempt: attempt, cpu: cpu, at: now}
		return 0, false
	case span < shortestSpan:
		return before.millicores, before.known
	}
	r := reading{attempt: attempt, cpu: cpu, at: now, millicores: 1000 * float64(cpu-before.cpu) / float64(span), known: true}
	m.readings[instanceID] = r
	return r.millicores, true
}

// dropOld forgets the instances whose last reading is older than longestSpan.
func (m *meter) dropOld(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, r := range m.readings {
		if now.Sub(r.at) > longestSpan {
			delete(m.readings, id)
		}
	}
}

// Usage implements runtime.Meter. It reads the cgroups of instances. Without cgroups, it adds up
// the processes in the session of each instance. Memory that these processes share is then counted
// once for each process.
func (r *Runtime) Usage(ctx context.Context, instanceIDs []string) (map[string]runtime.Usage, error) {
	shims := r.shimsOf(instanceIDs)
	if len(shims) == 0 {
		return map[string]runtime.Usage{}, nil
	}
	used, err := r.spentTimes(ctx, shims)
	if err != nil {
		return nil, fmt.Errorf("usage of instances: %w", err)
	}
	now := time.Now()
	out := make(map[string]runtime.Usage, len(used))
	for id, s := range used {
		u := runtime.Usage{MemoryBytes: s.memory}
		u.CPUMillicores, u.HasCPU = r.meter.next(id, shims[id], s.cpu, now)
		out[id] = u
	}
	r.meter.dropOld(now)
	return out, nil
}

// shimsOf returns the shims of the running instances, by instance.
func (r *Runtime) shimsOf(instanceIDs []string) map[string]proc {
	wanted := make(map[string]bool, len(instanceIDs))
	for _, id := range instanceIDs {
		wanted[id] = true
	}
	r.mu.Lock()
	workloads := make([]*workload, 0, len(r.workloads))
	for _, w := range r.workloads {
		workloads = append(workloads, w)
	}
	r.mu.Unlock()
	out := map[string]proc{}
	for _, w := range workloads {
		w.mu.Lock()
		for id, i := range w.instances {
			if wanted[id] && i.live && i.shim.PID > 0 {
				out[id] = i.shim
			}
		}
		w.mu.Unlock()
	}
	return out
}

func (r *Runtime) spentTimes(ctx context.Context, shims map[string]proc) (map[string]spent, error) {
	if r.cgroups == nil {
		return spentBySession(ctx, shims)
	}
	out := make(map[string]spent, len(shims))
	for id := range shims {
		if s, ok := r.cgroups.spentBy(id); ok {
			out[id] = s
		}
	}
	return out, nil
}

// spentBy reads the cgroup of an instance. ok is false if the instance has none, or has just ended.
func (c *cgroups) spentBy(instance string) (_ spent, ok bool) {
	dir := filepath.Join(c.parent, instance)
	micros, ok := fieldOf(filepath.Join(dir, "cpu.stat"), "usage_usec")
	if !ok {
		return spent{}, false
	}
	b, err := os.ReadFile(filepath.Join(dir, "memory.current"))
	if err != nil {
		return spent{}, false
	}
	memory, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return spent{}, false
	}
	inactive, _ := fieldOf(filepath.Join(dir, "memory.stat"), "inactive_file")
	return spent{cpu: time.Duration(micros) * time.Microsecond, memory: max(memory-inactive, 0)}, true
}

// fieldOf returns the number in the line "name number" of a file.
func fieldOf(file, name string) (int64, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// spentBySession reads every process of the host once. A shim leads the session of its instance.
func spentBySession(ctx context.Context, shims map[string]proc) (map[string]spent, error) {
	instances := make(map[int]string, len(shims))
	for id, shim := range shims {
		instances[shim.PID] = id
	}
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	page := int64(os.Getpagesize())
	out := make(map[string]spent, len(shims))
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		st, err := readStat(pid)
		if err != nil {
			continue // the process has ended
		}
		id, ours := instances[st.session]
		if !ours {
			continue
		}
		s := out[id]
		s.cpu += st.cpu
		if pid != st.session { // the shim's memory does not belong to the instance
			s.memory += st.pages * page
		}
		out[id] = s
	}
	return out, nil
}
