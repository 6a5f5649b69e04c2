package process

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/ident"
)

// Config configures the process runtime.
type Config struct {
	// DataDir holds everything that the runtime stores. Each agent needs its own directory.
	DataDir string
	// Region is the region's name, for WINDLASS_REGION.
	Region string
	// Shim is the command that runs ShimMain. Default: this program with ShimArg.
	Shim []string
	// ModelsDir is the directory in which the agent keeps the files of models. Servers of models see
	// their environment's part of it. Empty: there is none.
	ModelsDir string
	// WorkDir is the working directory of every instance. Default: each instance has its own, which
	// is removed with the instance.
	WorkDir string
	// Ports is the range to allocate ports from. Zero: the kernel chooses.
	Ports PortRange
	// GPUs are the GPUs for instances. DetectGPUs finds them.
	GPUs []GPU
	// Pool is the GPU pool of this host. A deployment that requests another pool is refused.
	Pool string
	// ImageCommands are the commands of roles that have an image but no command.
	ImageCommands ImageCommands
	// CPUMillicores and MemoryMiB are the resources of the host. Default: all of the host's. An
	// instance that requests more than that gets a final rejection. All instances together may
	// request more CPU than exists. They may also request more memory, unless
	// RefuseMemoryOvercommit is set: then an instance waits until enough memory is free.
	CPUMillicores          int
	MemoryMiB              int
	RefuseMemoryOvercommit bool
	// MaxInstances is the maximum number of instances of one deployment, because each is one or two
	// processes of this host. Default: 1000.
	MaxInstances int
	// OutputBytes is how much output is stored for each instance, in two files. Default: 8 MiB.
	OutputBytes int64
	// CgroupParent is a cgroup (v2) directory below which instances are limited. Default: the
	// agent's own cgroup, if it is delegated.
	CgroupParent string
	// StopInstancesOnExit stops all instances within their grace period when Run ends. Their
	// deployments stay, and run again after the next start.
	StopInstancesOnExit bool
	// Isolation makes each instance run as its own user. Nil: all instances run as the agent's
	// user.
	Isolation *Isolation
	// TrustAllTenants lets instances of more than one workspace run as the agent's user.
	TrustAllTenants bool
	// LockPatience is how long New waits for another agent to release DataDir. Default: 5 s.
	LockPatience time.Duration
	// RestartDelay is the delay between starts of an instance that keeps ending. Default: 1 s,
	// which doubles up to a minute, with jitter.
	RestartDelay backoff.Policy
	// StartConcurrency is how many instances may be starting at the same time. Default: twice the
	// number of cores.
	StartConcurrency int

	Log *slog.Logger
	// Registerer registers the metrics. Nil: no metrics.
	Registerer prometheus.Registerer
	// Random returns random numbers in [0,1). It must be safe for concurrent use.
	Random func() float64
}

func (c Config) withDefaults() (Config, error) {
	switch {
	case c.DataDir == "":
		return c, errors.New("process runtime: DataDir is empty: name a directory that outlives the agent")
	case c.Log == nil:
		return c, errors.New("process runtime: Log is nil")
	case c.Random == nil:
		return c, errors.New("process runtime: Random is nil")
	case c.Ports.Max < c.Ports.Min || c.Ports.Min < 0 || c.Ports.Max > 65535 || c.Ports.Max > 0 && c.Ports.Min == 0:
		return c, fmt.Errorf("process runtime: ports %d-%d: want 1 <= first <= last <= 65535", c.Ports.Min, c.Ports.Max)
	}
	if c.Pool != "" && !ident.ValidName(c.Pool) {
		return c, fmt.Errorf("process runtime: pool %q: want lower-case letters, digits and dashes, as in h100-spot", c.Pool)
	}
	dir, err := filepath.Abs(c.DataDir)
	if err != nil {
		return c, fmt.Errorf("process runtime: data directory: %w", err)
	}
	c.DataDir = dir
	if c.Isolation != nil {
		if c.Isolation, err = c.Isolation.resolveDefaults(dir); err != nil {
			return c, fmt.Errorf("process runtime: isolation of instances: %w", err)
		}
	}
	seen := map[string]bool{}
	for _, g := range c.GPUs {
		if g.ID == "" || seen[g.ID] {
			return c, fmt.Errorf("process runtime: GPU id %q is empty or declared twice", g.ID)
		}
		seen[g.ID] = true
	}
	if len(c.Shim) == 0 {
		self, err := os.Executable()
		if err != nil {
			return c, fmt.Errorf("process runtime: find this program to run shims: %w", err)
		}
		c.Shim = []string{self, ShimArg}
	}
	if c.CPUMillicores == 0 {
		c.CPUMillicores = goruntime.NumCPU() * 1000
	}
	if c.MemoryMiB == 0 {
		if c.MemoryMiB, err = hostMemoryMiB(); err != nil {
			return c, err
		}
	}
	if c.MaxInstances == 0 {
		c.MaxInstances = 1000
	}
	if c.OutputBytes == 0 {
		c.OutputBytes = 8 << 20
	}
	if c.LockPatience == 0 {
		c.LockPatience = 5 * time.Second
	}
	if c.RestartDelay == (backoff.Policy{}) {
		c.RestartDelay = backoff.Policy{Min: time.Second, Max: time.Minute}
	}
	if c.StartConcurrency == 0 {
		c.StartConcurrency = 2 * goruntime.NumCPU()
	}
	return c, nil
}

func hostMemoryMiB() (int, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read the host's memory: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) >= 2 && f[0] == "MemTotal:" {
			kib, err := strconv.Atoi(f[1])
			if err != nil {
				return 0, fmt.Errorf("read the host's memory: %w", err)
			}
			return kib / 1024, nil
		}
	}
	return 0, errors.New("read the host's memory: /proc/meminfo has no MemTotal")
}
