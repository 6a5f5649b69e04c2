package process_test

import (
	"context"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/process"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/runtimetest"
	"github.com/windlass-run/windlass/pkg/backoff"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// agentEnv makes the test binary an agent on the data directory in this variable.
const agentEnv = "WINDLASS_TEST_AGENT"

func TestMain(m *testing.M) {
	switch {
	case process.IsShim(os.Args):
		// Unlike os.Exit, syscall.Exit does not wait for the second that the race detector adds to
		// the end of a process. GORACE could shorten it, but a shim gets no variables of the agent.
		syscall.Exit(process.ShimMain(os.Args))
	case os.Getenv(namespaceEnv) != "":
		os.Exit(attackAsRootOfNamespace())
	case os.Getenv(attackEnv) != "":
		os.Exit(attack())
	case os.Getenv(takePortEnv) != "":
		port, _ := strconv.Atoi(os.Getenv(takePortEnv))
		say(takePort(port))
		os.Exit(0)
	case os.Getenv(agentEnv) != "":
		os.Exit(agentMain(os.Getenv(agentEnv)))
	}
	os.Exit(runtimetest.Main(m))
}

func TestConformance(t *testing.T) {
	runtimetest.Run(t, func(t *testing.T) runtimetest.Harness {
		h := newHost(t)
		return runtimetest.Harness{
			Open:        func(t *testing.T) runtime.Runtime { return h.open(t) },
			Shut:        h.shut,
			Command:     []string{self(t)},
			Leftovers:   h.leftovers,
			Stored:      h.stored,
			GPUs:        len(h.cfg.GPUs),
			GPUProduct:  h.cfg.GPUs[0].Product,
			Unsupported: &windlassv1.DeploymentSpec{Image: "ghcr.io/example/model:1"},
		}
	})
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

// host is a data directory, and the runtime on it, if one is open.
type host struct {
	cfg  process.Config
	stop func()
	// released and patience are the arguments of Drain. Nil: Drain is not called.
	released func(instanceID string) bool
	patience time.Duration
	// again tells the runtime that results of released may have changed.
	again func()
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{cfg: config(t.TempDir(), t.Output())}
	t.Cleanup(func() {
		h.shut(t)
		h.killAll(t)
	})
	return h
}

func config(dir string, log interface{ Write([]byte) (int, error) }) process.Config {
	return process.Config{
		DataDir: dir, Region: "test-1",
		GPUs: []process.GPU{
			{ID: "GPU-0", Product: "NVIDIA-H100-80GB-HBM3"},
			{ID: "GPU-1", Product: "NVIDIA-H100-80GB-HBM3"},
			{ID: "GPU-2", Product: "NVIDIA-H100-80GB-HBM3"},
		},
		RestartDelay: backoff.Policy{Min: 50 * time.Millisecond, Max: 500 * time.Millisecond},
		Log:          slog.New(slog.NewTextHandler(log, nil)),
		Random:       rand.Float64,
	}
}

func (h *host) open(t *testing.T) *process.Runtime {
	t.Helper()
	h.shut(t)
	rt, err := process.New(t.Context(), h.cfg)
	require.NoError(t, err)
	if h.released != nil {
		h.again = rt.Drain(h.released, func(string) time.Duration { return h.patience })
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- rt.Run(ctx) }()
	h.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return rt
}

func (h *host) shut(t *testing.T) {
	t.Helper()
	if h.stop != nil {
		h.stop()
		h.stop = nil
	}
}

// leftovers returns the processes that belong to this host's instances, and the remaining files of
// instances.
func (h *host) leftovers(t *testing.T) []string {
	t.Helper()
	left := processesBelow(h.cfg.DataDir)
	dirs, err := os.ReadDir(filepath.Join(h.cfg.DataDir, "instances"))
	require.NoError(t, err)
	for _, d := range dirs {
		left = append(left, "directory of "+d.Name())
	}
	slots, err := os.ReadDir(filepath.Join(h.cfg.DataDir, "slots"))
	require.True(t, err == nil || os.IsNotExist(err), err)
	for _, d := range slots {
		left = append(left, "slots of "+d.Name())
	}
	return left
}

// processesBelow lists the live processes whose working directory is below dir.
func processesBelow(dir string) []string {
	var found []string
	// The pattern is not "/proc/[0-9]*/cwd", because Glob would list the directory of each process
	// for it.
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range procs {
		cwd, err := os.Readlink(proc + "/cwd")
		if err != nil || !strings.HasPrefix(cwd, dir+"/") {
			continue
		}
		pid := filepath.Base(proc)
		cmd, _ := os.ReadFile(proc + "/cmdline")
		if len(cmd) > 0 {
			found = append(found, pid+" "+strings.ReplaceAll(string(cmd), "\x00", " "))
		}
	}
	return found
}

func (h *host) stored(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(h.cfg.DataDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // files of running instances come and go
		}
		b, err := os.ReadFile(path)
		if err == nil {
			all.Write(b)
		}
		return nil
	})
	require.NoError(t, err)
	// Every user can read the command line of a process.
	for _, p := range processesBelow(h.cfg.DataDir) {
		all.WriteString(p)
	}
	return all.String()
}
