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

// rootPrefix begins the name of the folder with all files of a run.
const rootPrefix = "windlass-e2e-"

// workspace has the files of this test process. All tests share it, because the programs are built once.
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
	// More tests than cores may run in parallel, because tests mostly wait for other processes. Each has its
	// own installation. With twice as many, probes failed and reports were late. -parallel on the command line wins.
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", "4"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	// .ci/test sets the same GOGC for other tests. Programs that tests start keep the value that users have.
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

// makeWorkspace creates a folder that is locked as long as this process lives.
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

// sweepDead ends the processes that a killed test process left, and removes its folder.
func sweepDead(temp string) {
	roots, _ := filepath.Glob(filepath.Join(temp, rootPrefix+"*"))
	for _, root := range roots {
		info, err := os.Stat(root)
		// For a moment, a new folder has no lock yet.
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

// build builds the programs, and returns their folder.
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
	// The programs are static, as the shipped ones are.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); ok {
			return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return "", err
	}
	return dir, nil
}
