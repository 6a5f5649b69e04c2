package restate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/windlass-run/windlass/pkg/flock"
)

// Version of the server that Windlass is developed and tested against.
const Version = "1.7.12"

// installDeadline bounds the download of about 60 MB.
const installDeadline = 10 * time.Minute

const npmPackage = "@restatedev/restate-server"

// Ensure returns the path of restate-server: one of this Version in PATH, else
// the one in the user's cache, where npm installs it when it is missing.
// progress receives lines for a person; nil is fine. Callers in several
// processes take turns.
func Ensure(ctx context.Context, progress func(string)) (string, error) {
	if progress == nil {
		progress = func(string) {}
	}
	cache, err := cacheDir()
	if err != nil {
		return "", fmt.Errorf("find a folder for Restate: %w", err)
	}
	home := filepath.Join(cache, "windlass", "restate", Version)
	if server := inside(home); usable(server) {
		return server, nil
	}
	if server, err := exec.LookPath("restate-server"); err == nil && usable(server) && version(ctx, server) == nil {
		return server, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", fmt.Errorf("the Restate server %s is not installed, and npm is not here to install it: "+
			"install Node.js, or restate-server %s into PATH", Version, Version)
	}

	ctx, cancel := context.WithTimeoutCause(ctx, installDeadline, fmt.Errorf("gave up after %s", installDeadline))
	defer cancel()
	lock, err := flock.Acquire(ctx, home+".lock", func() {
		progress("another process is installing Restate; waiting for it")
	})
	if err != nil {
		return "", fmt.Errorf("install Restate: %w", err)
	}
	defer func() { _ = lock.Unlock() }()
	if server := inside(home); usable(server) {
		return server, nil
	}
	if err := install(ctx, npm, home, progress); err != nil {
		return "", fmt.Errorf("install Restate: %w", err)
	}
	progress("installed Restate " + Version)
	return inside(home), nil
}

// install makes home in one step: npm works in a folder beside it, which is
// renamed once the program in it has run. The lock is held, so whatever lies
// there is of an installation that was killed.
func install(ctx context.Context, npm, home string, progress func(string)) error {
	tmp := home + ".tmp"
	if err := errors.Join(os.RemoveAll(tmp), os.RemoveAll(home)); err != nil {
		return err
	}
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	progress(fmt.Sprintf("installing Restate %s (npm install %s@%s)", Version, npmPackage, Version))
	// Scripts are not run: the package's only one reports the installation.
	cmd := exec.CommandContext(ctx, npm, "install", "--prefix", tmp, "--no-save", "--ignore-scripts",
		"--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error", npmPackage+"@"+Version)
	cmd.Dir = tmp
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("npm install %s@%s: %w: %s", npmPackage, Version, err, explain(out.String()))
	}
	server := inside(tmp)
	if !usable(server) {
		return fmt.Errorf("%s has no server for %s/%s", npmPackage, runtime.GOOS, runtime.GOARCH)
	}
	if err := version(ctx, server); err != nil {
		return err
	}
	return os.Rename(tmp, home)
}

// inside is the path of the program in an npm prefix: the platform's own, not
// the JavaScript wrapper, whose pid would be that of node.
func inside(prefix string) string {
	arch := runtime.GOARCH
	if arch == "amd64" {
		arch = "x64"
	}
	return filepath.Join(prefix, "node_modules", "@restatedev",
		"restate-server-"+runtime.GOOS+"-"+arch, "bin", "restate-server")
}

// usable reports whether path is a program, and no script.
func usable(path string) bool {
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, 2)
	n, err := f.Read(head)
	return err == nil && n == 2 && string(head) != "#!"
}

// version is nil when the program runs here and is of Version.
func version(ctx context.Context, server string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, server, "--version").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s does not run here: %w: %s", server, err, explain(string(out)))
	}
	f := strings.Fields(string(out))
	if len(f) < 2 || f[1] != Version {
		return fmt.Errorf("%s is not version %s but says %q", server, Version, strings.TrimSpace(string(out)))
	}
	return nil
}

// cacheDir is XDG's on every system: npm and node use such paths on macOS too.
func cacheDir() (string, error) {
	if dir := os.Getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".cache"), nil
}

// explain picks the line of npm's output that says what went wrong: codes come
// first and only repeat the exit status.
func explain(out string) string {
	last := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "npm error"))
		if line == "" || strings.HasPrefix(line, "code ") || strings.HasPrefix(line, "A complete log") {
			continue
		}
		if last == "" {
			last = line
		}
	}
	return last
}
