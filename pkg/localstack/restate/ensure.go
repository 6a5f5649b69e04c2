package restate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/windlass-run/windlass/pkg/flock"
	"github.com/windlass-run/windlass/pkg/localstack/cachedir"
)

// Version is the version of the server with which Windlass is developed and tested.
const Version = "1.7.12"

// installDeadline limits the download of about 60 MB.
const installDeadline = 10 * time.Minute

// integrity has the SHA-512 of Version's npm package for each platform. npm verifies packages by it. For a new
// Version, this command prints it: npm view @restatedev/restate-server-PLATFORM@VERSION dist.integrity
var integrity = map[string]string{
	"darwin-arm64": "sha512-pHrZMaaeBJxXTgI19WG/aJvxuUDQ2nhSDEEJVseTZQiTEdJ7hboPlhvYacgXIE2iMnLMmWkN5XIlXqosHK8Byg==",
	"darwin-x64":   "sha512-ZRS1kk3S4pzIiup2IRRQ3eHoKJSZ43FG4rDe7UbGFWwZ/Yz0xSDa4/3/kiuwaMHXWs/CsKtJe0shx8JCR0DO1g==",
	"linux-arm64":  "sha512-aV7YxWvPhp88MjQtObGDhDCTwCBa68wwZOAMmJqDreO0auHYuSfOqabEx4I90coZsx3zShNusppbTPKprOa+dw==",
	"linux-x64":    "sha512-URotJ1AIqaSCDkRMl4OrQfTLH+NYuOZb3ZsP7wxxiuAB6pncgPhTUYSvegTF5PTrAShnNyHNpju9kjf2O3QxoA==",
}

// Ensure returns the path of a restate-server of this Version. It looks in the user's cache and then in PATH. If
// there is none, it installs one into the cache with npm. progress receives lines for people, and may be nil.
// Only one process at a time installs. The others wait for it.
func Ensure(ctx context.Context, progress func(string)) (string, error) {
	if progress == nil {
		progress = func(string) {}
	}
	cache, err := cachedir.Dir()
	if err != nil {
		return "", fmt.Errorf("find a folder for Restate: %w", err)
	}
	installDir := filepath.Join(cache, "windlass", "restate", Version)
	if server := programIn(installDir); isProgram(server) {
		return server, nil
	}
	if server, err := exec.LookPath("restate-server"); err == nil && isProgram(server) && checkVersion(ctx, server) == nil {
		return server, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", fmt.Errorf("the Restate server %s is not installed, and npm is not in PATH to install it: "+
			"install Node.js, or restate-server %s into PATH", Version, Version)
	}

	ctx, cancel := context.WithTimeoutCause(ctx, installDeadline, fmt.Errorf("gave up after %s", installDeadline))
	defer cancel()
	lock, err := flock.Acquire(ctx, installDir+".lock", func() {
		progress("another process is installing Restate; waiting for it")
	})
	if err != nil {
		return "", fmt.Errorf("install Restate: %w", err)
	}
	defer func() { _ = lock.Unlock() }()
	if server := programIn(installDir); isProgram(server) {
		return server, nil
	}
	if err := installPackage(ctx, npm, installDir, integrity[npmPlatform()], progress); err != nil {
		return "", fmt.Errorf("install Restate: %w", err)
	}
	progress("installed Restate " + Version)
	return programIn(installDir), nil
}

// installPackage creates installDir. npm installs the package into a temporary folder next to installDir, and verifies it by
// the digest. install then checks that the program runs, and renames the folder to installDir. The caller holds
// the lock, so a folder that exists already is from an installation that was killed.
func installPackage(ctx context.Context, npm, installDir, digest string, progress func(string)) error {
	if digest == "" {
		return fmt.Errorf("npm has no Restate server for %s/%s: install restate-server %s into PATH", runtime.GOOS, runtime.GOARCH, Version)
	}
	tmp := installDir + ".tmp"
	if err := errors.Join(os.RemoveAll(tmp), os.RemoveAll(installDir)); err != nil {
		return err
	}
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	name := npmPackage()
	if err := writeLockFile(tmp, name, digest); err != nil {
		return err
	}
	progress(fmt.Sprintf("installing Restate %s (npm install %s@%s)", Version, name, Version))
	// npm ci uses the versions and digests of the lock file. The package needs no scripts.
	cmd := exec.CommandContext(ctx, npm, "ci", "--ignore-scripts",
		"--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
	cmd.Dir = tmp
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("npm install %s@%s: %w: %s", name, Version, err, errorLine(out.String()))
	}
	server := programIn(tmp)
	if !isProgram(server) {
		return fmt.Errorf("%s has no server for %s/%s", name, runtime.GOOS, runtime.GOARCH)
	}
	if err := checkVersion(ctx, server); err != nil {
		return err
	}
	return os.Rename(tmp, installDir)
}

// writeLockFile writes npm's project file and lock file into dir. With them, npm ci installs Version of the named
// package if it has the digest.
func writeLockFile(dir, name, digest string) error {
	type object = map[string]any
	project := object{"name": "windlass-restate", "private": true, "dependencies": object{name: Version}}
	lock := object{"name": "windlass-restate", "lockfileVersion": 3, "packages": object{
		"":                     project,
		"node_modules/" + name: object{"version": Version, "integrity": digest},
	}}
	for file, content := range map[string]object{"package.json": project, "package-lock.json": lock} {
		text, err := json.Marshal(content)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// npmPlatform returns the name of this platform in the names of npm packages.
func npmPlatform() string {
	arch := runtime.GOARCH
	if arch == "amd64" {
		arch = "x64"
	}
	return runtime.GOOS + "-" + arch
}

// npmPackage returns the npm package with the program for this platform. The package restate-server is a
// JavaScript wrapper, so its process would be node.
func npmPackage() string { return "@restatedev/restate-server-" + npmPlatform() }

// programIn returns the path of restate-server in a folder in which npm has installed the package.
func programIn(prefix string) string {
	return filepath.Join(prefix, "node_modules", filepath.FromSlash(npmPackage()), "bin", "restate-server")
}

// isProgram reports whether path is an executable file that is not a script.
func isProgram(path string) bool {
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

// checkVersion returns an error unless the program runs on this machine and has Version.
func checkVersion(ctx context.Context, server string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, server, "--version").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s does not run on this machine: %w: %s", server, err, errorLine(string(out)))
	}
	f := strings.Fields(string(out))
	if len(f) < 2 || f[1] != Version {
		return fmt.Errorf("%s is not version %s but says %q", server, Version, strings.TrimSpace(string(out)))
	}
	return nil
}

// errorLine returns the line of npm's output that says what went wrong. It skips lines with codes, which come
// first and only repeat the exit status.
func errorLine(out string) string {
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "npm error"))
		if line == "" || strings.HasPrefix(line, "code ") || strings.HasPrefix(line, "A complete log") {
			continue
		}
		return line
	}
	return ""
}
