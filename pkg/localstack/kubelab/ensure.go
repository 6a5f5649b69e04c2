package kubelab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/windlass-run/windlass/pkg/flock"
	"github.com/windlass-run/windlass/pkg/localstack/cachedir"
)

// EnvProgram is the environment variable with the path of a kubelab binary to use.
const EnvProgram = "WINDLASS_KUBELAB"

const (
	// buildDeadline limits a build, which takes long with an empty build cache.
	buildDeadline = time.Hour
	// keep is how long an unused binary stays. Binaries are large, but switching between branches uses a few
	// in turn.
	keep = 7 * 24 * time.Hour

	programName = "kubelab"
)

// Ensure returns the path of kubelab's program. That is WINDLASS_KUBELAB, or else the program next to this
// executable, or else a build of the checkout that contains it. Ensure makes this build if it is missing. progress
// receives lines for people, and may be nil. Callers in several processes take turns.
func Ensure(ctx context.Context, progress func(string)) (string, error) {
	if progress == nil {
		progress = func(string) {}
	}
	if path := os.Getenv(EnvProgram); path != "" {
		abs, err := filepath.Abs(path)
		if err == nil {
			err = requireExecutable(abs)
		}
		if err != nil {
			return "", fmt.Errorf("%s names no program: %w", EnvProgram, err)
		}
		return abs, nil
	}
	if self, err := os.Executable(); err == nil {
		if sibling := filepath.Join(filepath.Dir(self), programName); requireExecutable(sibling) == nil {
			return sibling, nil
		}
	}
	root, err := findSources()
	if err != nil {
		return "", fmt.Errorf("%w to build kubelab from: set %s to a kubelab binary, or put the binary next to this program", err, EnvProgram)
	}
	path, err := ensureBuilt(ctx, root, progress)
	if err != nil {
		return "", fmt.Errorf("build kubelab: %w", err)
	}
	return path, nil
}

func ensureBuilt(ctx context.Context, root string, progress func(string)) (string, error) {
	cache, err := cachedir.Dir()
	if err != nil {
		return "", err
	}
	hash, err := hashSources(root)
	if err != nil {
		return "", err
	}
	all := filepath.Join(cache, "windlass", "kubelab")
	path := filepath.Join(all, hash, programName)
	if isBuilt(path) {
		return path, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, buildDeadline, fmt.Errorf("gave up after %s", buildDeadline))
	defer cancel()
	// All versions share one lock, because two builds at once take twice as long.
	lock, err := flock.Acquire(ctx, filepath.Join(all, "lock"), func() {
		progress("another process is building kubelab; waiting for it")
	})
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Unlock() }()
	if isBuilt(path) {
		return path, nil
	}
	if err := buildProgram(ctx, root, path, progress); err != nil {
		return "", err
	}
	removeOld(all, hash)
	return path, nil
}

// isBuilt reports whether path is a program, and marks it as used now.
func isBuilt(path string) bool {
	if requireExecutable(path) != nil {
		return false
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now)
	return true
}

// notBuilt is the template of `go list` for the packages that the build cache lacks. go build builds only these.
const notBuilt = "{{if .Stale}}{{.ImportPath}}{{end}}"

// buildProgram builds the program under a temporary name, and renames it to path.
func buildProgram(ctx context.Context, root, path string, progress func(string)) error {
	progress("building kubelab, a Kubernetes in one binary; the first time takes some ten minutes")
	began := time.Now()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp := path + ".tmp"
	defer func() { _ = os.Remove(tmp) }()
	version, err := kubernetesVersion(root)
	if err != nil {
		return err
	}
	dir := filepath.Join(root, filepath.FromSlash(module))
	out := &buildOutput{}
	stop := out.reportProgress(progress)
	defer stop()
	run := func(stdout io.Writer, args ...string) error {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir, cmd.Env, cmd.WaitDelay = dir, append(os.Environ(), "GOWORK=off"), 5*time.Second
		cmd.Stdout, cmd.Stderr = stdout, out
		return cmd.Run()
	}
	// Without symbols the program is smaller. The version is set as in Kubernetes' own build. Without it
	// the API server reports v0.0.0.
	flags := "-s -w -X k8s.io/component-base/version.gitVersion=" + version
	var packages bytes.Buffer
	err = run(&packages, "list", "-deps", "-f", notBuilt, "-ldflags", flags, "./cmd/kubelab")
	if err == nil {
		out.expectPackages(bytes.Count(packages.Bytes(), []byte("\n")))
		err = run(out, "build", "-v", "-o", tmp, "-ldflags", flags, "./cmd/kubelab")
	}
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("%w: install Go, or set %s to a binary", err, EnvProgram)
		}
		return fmt.Errorf("go build in %s: %w: %s", dir, err, lastOf(out.otherLines()))
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	progress("built kubelab in " + time.Since(began).Round(time.Second).String())
	return nil
}

var requiredKubernetes = regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes (v\S+)`)

// kubernetesVersion returns the version of Kubernetes that the program's module requires.
func kubernetesVersion(root string) (string, error) {
	path := filepath.Join(root, filepath.FromSlash(module), "go.mod")
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	match := requiredKubernetes.FindSubmatch(content)
	if match == nil {
		return "", fmt.Errorf("%s does not require k8s.io/kubernetes", path)
	}
	return string(match[1]), nil
}

// removeOld removes builds that were not used for the time keep. A running program loses only its name.
func removeOld(all, current string) {
	entries, err := os.ReadDir(all)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !e.IsDir() || e.Name() == current {
			continue
		}
		dir := filepath.Join(all, e.Name())
		st, err := os.Stat(filepath.Join(dir, programName))
		if err == nil && time.Since(st.ModTime()) < keep {
			continue
		}
		_ = os.RemoveAll(dir)
	}
}

func requireExecutable(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return fmt.Errorf("%s is not executable", path)
	}
	return nil
}

// lastOf returns the last lines of the compiler's output.
func lastOf(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
