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

// Config of the process runtime.
type Config struct {
	// DataDir holds everything the runtime knows; one agent per directory.
	DataDir string
	// Region is what instances read in WINDLASS_REGION.
	Region string
	// Shim is the command that runs ShimMain; default: this program and ShimArg.
	Shim []string
	// WorkDir is the working directory of every instance; default: one of its own
	// for each, which is removed with it.
	WorkDir string
	// Ports to allocate from; zero: the kernel chooses.
	Ports PortRange
	// GPUs that instances may be given. DetectGPUs finds them.
	GPUs []GPU
	// Pool that this host is in; a deployment that asks for another is refused.
	Pool string
	// ImageCommands are the commands of roles that have an image and no command.
	ImageCommands ImageCommands
	// CPUMillicores and MemoryMiB of the host; default: all it has. An instance
	// that asks for more than that is refused for good. All instances together may
	// ask for more CPU than there is, and for more memory unless
	// RefuseMemoryOvercommit is set: then an instance waits until enough is free.
	CPUMillicores          int
	MemoryMiB              int
	RefuseMemoryOvercommit bool
	// MaxInstances of one deployment; default 1000: each is a process or two of
	// this host.
	MaxInstances int
	// OutputBytes kept per instance; default 8 MiB, in two files.
	OutputBytes int64
	// CgroupParent is a cgroup (v2) directory to limit instances below; default:
	// the agent's own, if it is delegated.
	CgroupParent string
	// StopInstancesOnExit stops all instances with their grace when Run ends.
	// Their deployments stay, and run again after the next start.
	StopInstancesOnExit bool
	// Isolation makes each instance run as a user of its own; nil: all run as the agent's.
	Isolation *Isolation
	// TrustAllTenants lets instances of more than one workspace run as the agent's user.
	TrustAllTenants bool
	// LockPatience is how long New waits for another agent to let go of DataDir;
	// default 5 s.
	LockPatience time.Duration
	// RestartDelay between starts of an instance that keeps ending; default 1 s
	// doubling to a minute, with jitter.
	RestartDelay backoff.Policy
	// StartConcurrency bounds how many instances are being started at one time;
	// default twice the number of cores.
	StartConcurrency int

	Log *slog.Logger
	// Registerer takes the metrics; nil: none are kept.
	Registerer prometheus.Registerer
	// Random returns numbers in [0,1), safely for concurrent use.
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
		if c.Isolation, err = c.Isolation.resolve(dir); err != nil {
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
