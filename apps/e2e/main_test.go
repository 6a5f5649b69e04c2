package e2e

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/windlass-run/windlass/pkg/flock"
)

const module = "github.com/windlass-run/windlass/"

// rootPrefix begins the name of the folder that holds all that a run makes.
const rootPrefix = "windlass-e2e-"

// workspace is what this test process made. It is the process's, as the programs
// are: they are built once.
type workspace struct {
	root string
	err  error
}

var (
	work     = sync.OnceValue(makeWorkspace)
	programs = sync.OnceValues(func() (string, error) {
		return build("apps/agent/cmd/agent", "apps/controlplane/cmd/controlplane", "apps/gateway/cmd/gateway", "apps/modelserver/cmd/modelserver")
	})
	cliProgram = sync.OnceValues(func() (string, error) { return build("apps/windlass/cmd/windlass") })
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Tests here wait for other processes: more of them than there are cores may. Each has a
	// product of its own, and with twice as many probes failed and reports were late.
	if err := flag.Set("test.parallel", "4"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	// As .ci/test sets GOGC for other tests. Programs that tests start keep the value that users have.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	sweepDead(os.TempDir())
	if err := trustHere(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	code := m.Run()
	if w := work(); w.err == nil && os.Getenv("WINDLASS_E2E_KEEP") == "" {
		_ = os.RemoveAll(w.root)
	}
	os.Exit(code)
}

// makeWorkspace makes a folder that is locked for as long as this process lives.
func makeWorkspace() workspace {
	root, err := os.MkdirTemp("", rootPrefix)
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err == nil {
		_, err = flock.Try(filepath.Join(root, "lock"))
	}
	return workspace{root: root, err: err}
}

// sweepDead ends what a killed test process left running, and removes its folder.
func sweepDead(temp string) {
	roots, _ := filepath.Glob(filepath.Join(temp, rootPrefix+"*"))
	for _, root := range roots {
		info, err := os.Stat(root)
		// A folder exists for a moment before its lock does.
		if err != nil || time.Since(info.ModTime()) < 10*time.Second {
			continue
		}
		lock, err := flock.Try(filepath.Join(root, "lock"))
		if err != nil {
			continue
		}
		killAll(root)
		_ = os.RemoveAll(root)
		_ = lock.Unlock()
	}
}

// build returns the folder that holds the programs.
func build(packages ...string) (string, error) {
	if dir := os.Getenv("WINDLASS_E2E_PROGRAMS"); dir != "" {
		return filepath.Abs(dir)
	}
	w := work()
	if w.err != nil {
		return "", w.err
	}
	dir := filepath.Join(w.root, "programs")
	args := []string{"build", "-o", dir + string(filepath.Separator)}
	for _, p := range packages {
		args = append(args, module+p)
	}
	cmd := exec.Command("go", args...)
	// As they are shipped: static.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); ok {
			return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return "", err
	}
	return dir, nil
}
