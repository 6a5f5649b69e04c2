package measure

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// sampleEvery is short enough to see a peak that people notice. A sample costs a few file reads.
const sampleEvery = 100 * time.Millisecond

// Sampler measures the processes of a run. Make it with NewSampler.
type Sampler struct {
	// pids returns the running processes by part. A part that is restarted has another pid, and its sums
	// continue.
	pids func() map[string]int
	// limit bounds the memory of all parts together, in bytes. exceeded is called above it.
	limit    int64
	exceeded func(error)

	mu    sync.Mutex
	parts map[string]*sampled
}

type sampled struct {
	pid  int
	last Usage
	at   time.Time
	// before is the processor time of the part's earlier processes.
	before time.Duration
	// These fields are about the window.
	peakCPU      float64
	rss, peakRSS int64
	cpuAtBegin   time.Duration
	rssAtBegin   int64
	begun        bool
}

// Part is the cost of one part of a run in a window.
type Part struct {
	CPUSeconds float64 `json:"cpu_s"`
	// CPUPercent and PeakCPUPercent are percents of one processor: the average and the highest.
	CPUPercent     float64 `json:"cpu_percent"`
	PeakCPUPercent float64 `json:"peak_cpu_percent"`
	// RSSBeginMiB, RSSMiB and PeakRSSMiB are the memory at the beginning, at the end, and at its highest.
	RSSBeginMiB float64 `json:"rss_begin_mib"`
	RSSMiB      float64 `json:"rss_mib"`
	PeakRSSMiB  float64 `json:"peak_rss_mib"`
}

// NewSampler returns a sampler of the processes that pids names. It calls exceeded once, when their memory
// together is above limit bytes (0: no limit).
func NewSampler(pids func() map[string]int, limit int64, exceeded func(error)) *Sampler {
	return &Sampler{pids: pids, limit: limit, exceeded: exceeded, parts: map[string]*sampled{}}
}

// Run samples until ctx ends.
func (s *Sampler) Run(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		s.takeSample()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *Sampler) takeSample() {
	pids := s.pids()
	s.mu.Lock()
	defer s.mu.Unlock()
	total := int64(0)
	for name, pid := range pids {
		usage, err := ReadUsage(pid)
		if err != nil {
			continue // the process is just ending or beginning
		}
		now := time.Now()
		p := s.parts[name]
		if p == nil {
			p = &sampled{pid: pid, last: usage, at: now}
			s.parts[name] = p
		}
		if p.pid != pid {
			p.before += p.last.CPU
			p.pid, p.last, p.at = pid, Usage{}, now
		}
		if since := now.Sub(p.at); since > sampleEvery/2 {
			p.peakCPU = max(p.peakCPU, 100*float64(usage.CPU-p.last.CPU)/float64(since))
			p.last, p.at = usage, now
		}
		p.rss, p.peakRSS = usage.RSS, max(p.peakRSS, usage.RSS)
		total += usage.RSS
	}
	if s.limit > 0 && total > s.limit && s.exceeded != nil {
		s.exceeded(fmt.Errorf("all parts together use %d MiB of memory, above the limit of %d MiB: %s", total>>20, s.limit>>20, s.largestParts()))
		s.exceeded = nil
	}
}

// largestParts lists the memory of the parts.
func (s *Sampler) largestParts() string {
	var out []string
	for name, p := range s.parts {
		out = append(out, fmt.Sprintf("%s %d MiB", name, p.rss>>20))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// Window measures from now until the returned function is called.
func (s *Sampler) Window() func() map[string]Part {
	s.takeSample()
	begin := time.Now()
	s.mu.Lock()
	for _, p := range s.parts {
		p.begun, p.peakCPU, p.peakRSS = true, 0, p.rss
		p.cpuAtBegin, p.rssAtBegin = p.cpuTotal(), p.rss
	}
	s.mu.Unlock()
	return func() map[string]Part {
		s.takeSample()
		elapsed := time.Since(begin).Seconds()
		s.mu.Lock()
		defer s.mu.Unlock()
		out := map[string]Part{}
		for name, p := range s.parts {
			cpu := p.cpuTotal() - p.cpuAtBegin
			if !p.begun {
				cpu = p.cpuTotal()
			}
			percent := 100 * cpu.Seconds() / elapsed
			out[name] = Part{
				CPUSeconds: cpu.Seconds(), CPUPercent: percent, PeakCPUPercent: max(p.peakCPU, percent),
				RSSBeginMiB: inMiB(p.rssAtBegin), RSSMiB: inMiB(p.rss), PeakRSSMiB: inMiB(p.peakRSS),
			}
		}
		return out
	}
}

// cpuTotal returns all processor time that the part has used until now.
func (p *sampled) cpuTotal() time.Duration {
	if usage, err := ReadUsage(p.pid); err == nil {
		return p.before + usage.CPU
	}
	return p.before + p.last.CPU
}

func inMiB(bytes int64) float64 { return float64(bytes) / (1 << 20) }
