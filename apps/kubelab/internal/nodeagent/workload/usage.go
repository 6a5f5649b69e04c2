package workload

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// usageWindow is the minimum time over which the processor time of a process is averaged.
const usageWindow = 2 * time.Second

// Usage is the usage of a run.
type Usage struct {
	Cores       float64
	MemoryBytes int64
	// Window is the time over which Cores is an average. 0 means that it is the value of this moment.
	Window time.Duration
}

// Groups has the usage of every process group of this host at one moment.
type Groups struct {
	at   time.Time
	used map[int]groupUsage
}

type groupUsage struct {
	seconds float64 // processor time, with that of children that have ended
	memory  int64   // resident bytes
}

// ReadGroups reads the usage of all process groups.
func ReadGroups() (Groups, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return Groups{}, fmt.Errorf("read processes: %w", err)
	}
	all, err := fs.AllProcs()
	if err != nil {
		return Groups{}, fmt.Errorf("read processes: %w", err)
	}
	g := Groups{at: time.Now(), used: map[int]groupUsage{}}
	for _, one := range all {
		stat, err := one.Stat()
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return Groups{}, fmt.Errorf("read process %d: %w", one.PID, err)
		}
		u := g.used[stat.PGRP]
		u.seconds += stat.CPUTime() + childrenSeconds(stat)
		u.memory += int64(stat.ResidentMemory())
		g.used[stat.PGRP] = u
	}
	return g, nil
}

// childrenSeconds returns the processor time of the ended children of a process.
func childrenSeconds(stat procfs.ProcStat) float64 {
	const ticks = 100 // a second, on every architecture that Linux and Go support
	return float64(stat.CUTime+stat.CSTime) / ticks
}

// Usage returns the usage of the run. ok is false if its program has not started or has ended, or runs for less than
// usageWindow.
func (r *Run) Usage(g Groups) (u Usage, ok bool) {
	r.mu.Lock()
	inner := r.inner
	r.mu.Unlock()
	if inner == nil {
		return Usage{}, false
	}
	return inner.usage(g)
}

// usage returns the average since the last measurement, which is at least usageWindow ago, or since the start.
func (p *host) usage(g Groups) (u Usage, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, ok := g.used[p.pid]
	if p.ended || !ok {
		return Usage{}, false
	}
	if since := g.at.Sub(p.measuredAt); since >= usageWindow {
		p.cores, p.window = max(0, now.seconds-p.measured)/since.Seconds(), since
		p.measured, p.measuredAt = now.seconds, g.at
	}
	return Usage{Cores: p.cores, MemoryBytes: now.memory, Window: p.window}, p.window > 0
}

// usage returns the usage that the server computes, because the server has no process of its own.
func (p *model) usage(Groups) (u Usage, ok bool) {
	if p.server == nil {
		return Usage{}, true
	}
	computed := p.server.Usage()
	return Usage{Cores: computed.Cores, MemoryBytes: computed.MemoryBytes}, true
}
