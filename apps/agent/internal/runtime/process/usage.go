package process

import (
	"bytes"
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
	// ticksPerSecond is the unit of times in /proc, on every architecture that Go has.
	ticksPerSecond = 100
	// shortestSpan is the least time that a mean of the CPU is computed over. A look that comes earlier gets
	// the mean of the look before.
	shortestSpan = time.Second
	// longestSpan is the age at which a reading is of no use any more.
	longestSpan = time.Minute
)

// meter remembers the CPU time that instances had used when it was read last.
type meter struct {
	mu       sync.Mutex
	readings map[string]reading // by instance
}

type reading struct {
	attempt proc // whose time it is
	cpu     time.Duration
	at      time.Time
	// millicores as of this reading; known once there was a reading before.
	millicores float64
	known      bool
}

// spent is what one instance had used at a time.
type spent struct {
	cpu    time.Duration
	memory int64
}

// next takes the CPU time of an instance and returns the mean since the reading before.
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

// keep forgets the instances that were not read for a while.
func (m *meter) keep(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, r := range m.readings {
		if now.Sub(r.at) > longestSpan {
			delete(m.readings, id)
		}
	}
}

// Usage implements runtime.Meter. It reads the cgroups of instances. Where there are none it adds up the
// processes of each instance's session; memory that these share is counted for each of them.
func (r *Runtime) Usage(ctx context.Context, instanceIDs []string) (map[string]runtime.Usage, error) {
	shims := r.shimsOf(instanceIDs)
	if len(shims) == 0 {
		return map[string]runtime.Usage{}, nil
	}
	used, err := r.spent(ctx, shims)
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
	r.meter.keep(now)
	return out, nil
}

// shimsOf returns the shims of the instances that live, by instance.
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

func (r *Runtime) spent(ctx context.Context, shims map[string]proc) (map[string]spent, error) {
	if r.cgroups == nil {
		return spentBySession(ctx, shims)
	}
	out := make(map[string]spent, len(shims))
	for id := range shims {
		if s, ok := r.cgroups.spent(id); ok {
			out[id] = s
		}
	}
	return out, nil
}

// spent reads an instance's cgroup; ok is false if it has none, or just ended.
func (c *cgroups) spent(instance string) (_ spent, ok bool) {
	dir := filepath.Join(c.parent, instance)
	micros, ok := field(filepath.Join(dir, "cpu.stat"), "usage_usec")
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
	inactive, _ := field(filepath.Join(dir, "memory.stat"), "inactive_file")
	return spent{cpu: time.Duration(micros) * time.Microsecond, memory: max(memory-inactive, 0)}, true
}

// field returns a number of a file of lines "name number".
func field(file, name string) (int64, bool) {
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
		b, err := os.ReadFile("/proc/" + d.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		session, cpu, pages, ok := parseSpent(b)
		id, ours := instances[session]
		if !ok || !ours {
			continue
		}
		s := out[id]
		s.cpu += cpu
		if pid != session { // the shim's memory is ours, and not the instance's
			s.memory += pages * page
		}
		out[id] = s
	}
	return out, nil
}

// parseSpent reads /proc/PID/stat: the session, the CPU time with that of children that ended, and the pages
// in memory.
func parseSpent(b []byte) (session int, cpu time.Duration, pages int64, ok bool) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return 0, 0, 0, false
	}
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 22 {
		return 0, 0, 0, false
	}
	session, err := strconv.Atoi(f[3])
	if err != nil {
		return 0, 0, 0, false
	}
	var ticks int64
	for _, text := range f[11:15] {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, 0, 0, false
		}
		ticks += n
	}
	if pages, err = strconv.ParseInt(f[21], 10, 64); err != nil {
		return 0, 0, 0, false
	}
	return session, time.Duration(ticks) * (time.Second / ticksPerSecond), pages, true
}
