package mariadb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/windlass-run/windlass/pkg/flock"
)

// installDeadline limits the installation, including the wait for another package
// manager. It is long enough to download 60 MB twice over a slow network.
const installDeadline = 10 * time.Minute

// manager is a package manager, with its commands to install MariaDB.
type manager struct {
	tool     string
	refresh  []string // this command may fail, because the present lists may be enough
	install  []string
	needRoot bool
}

// managers are the known package managers. The first installed one is used, so the system's own managers come
// first.
var managers = []manager{
	{
		tool:    "apt-get",
		refresh: []string{"apt-get", "-qq", "-o", "Acquire::Retries=3", "update"},
		install: []string{
			"apt-get", "-qq", "-y", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3",
			"install", "--no-install-recommends", "mariadb-server",
		},
		needRoot: true,
	},
	{tool: "dnf", install: []string{"dnf", "-y", "-q", "install", "mariadb-server"}, needRoot: true},
	{tool: "apk", install: []string{"apk", "add", "--no-cache", "mariadb"}, needRoot: true},
	{tool: "pacman", install: []string{"pacman", "-Sy", "--noconfirm", "--needed", "mariadb"}, needRoot: true},
	{tool: "zypper", install: []string{"zypper", "--non-interactive", "install", "mariadb"}, needRoot: true},
	{tool: "brew", install: []string{"brew", "install", "mariadb"}},
}

// Ensure returns the installed MariaDB. It installs a missing one if this user may
// (root, or sudo without a password). progress receives lines for people, and may be
// nil. Callers in several processes take turns.
func Ensure(ctx context.Context, progress func(string)) (Paths, error) {
	if progress == nil {
		progress = func(string) {}
	}
	paths, err := Find(ctx)
	if !errors.Is(err, errNotInstalled) {
		return paths, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, installDeadline,
		fmt.Errorf("gave up after %s", installDeadline))
	defer cancel()

	cache, err := os.UserCacheDir()
	if err != nil {
		return Paths{}, fmt.Errorf("find a folder for the installation lock: %w", err)
	}
	lock, err := flock.Acquire(ctx, filepath.Join(cache, "windlass", "mariadb-install.lock"), func() {
		progress("another process is installing MariaDB; waiting for it")
	})
	if err != nil {
		return Paths{}, fmt.Errorf("install MariaDB: %w", err)
	}
	defer func() { _ = lock.Unlock() }()
	if paths, err = Find(ctx); !errors.Is(err, errNotInstalled) {
		return paths, err
	}
	if err := installPackage(ctx, progress); err != nil {
		return Paths{}, err
	}
	paths, err = Find(ctx)
	if err != nil {
		return Paths{}, fmt.Errorf("the package manager reports success, but %w", err)
	}
	progress("installed MariaDB " + paths.Version)
	return paths, nil
}

func installPackage(ctx context.Context, progress func(string)) error {
	m, ok := findManager()
	if !ok {
		return errors.New("MariaDB is not installed, and no known package manager was found to install it: " +
			"install MariaDB 10.11 or newer so that mariadbd is in PATH")
	}
	prefix, ok := privilegePrefix(ctx, m)
	if !ok {
		return fmt.Errorf("MariaDB is not installed, and only root can install it: run `sudo %s`",
			strings.Join(withoutQuiet(m.install), " "))
	}
	if m.refresh != nil {
		progress("updating the package lists (" + m.tool + " update)")
		if err := run(ctx, slices.Concat(prefix, m.refresh)); err != nil && ctx.Err() != nil {
			return fmt.Errorf("install MariaDB: %w", err)
		}
	}
	restore := func() error { return nil }
	if m.tool == "apt-get" {
		var err error
		if restore, err = keepServiceDown(ctx, prefix); err != nil {
			return fmt.Errorf("install MariaDB: %w", err)
		}
	}
	progress("installing MariaDB (" + strings.Join(withoutQuiet(m.install), " ") + "); a minute or two")
	err := run(ctx, slices.Concat(prefix, m.install))
	// The system is also restored if the installation failed.
	tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	err = errors.Join(err, restore())
	if m.needRoot {
		stopService(tidy, prefix)
	}
	if err != nil {
		return fmt.Errorf("install MariaDB: %w; to install it by hand, run `%s`", err, strings.Join(withoutQuiet(m.install), " "))
	}
	return nil
}

func findManager() (manager, bool) {
	for _, m := range managers {
		if _, err := exec.LookPath(m.tool); err == nil {
			return m, true
		}
	}
	return manager{}, false
}

// privilegePrefix returns the prefix with which a command runs as root.
func privilegePrefix(ctx context.Context, m manager) ([]string, bool) {
	if !m.needRoot || os.Geteuid() == 0 {
		return nil, true
	}
	if exec.CommandContext(ctx, "sudo", "-n", "true").Run() != nil {
		return nil, false
	}
	return []string{"sudo", "-n", "DEBIAN_FRONTEND=noninteractive"}, true
}

// policyFile is a script by which Debian's packages decide whether their services may
// start. Exit code 101 means no.
const (
	policyFile   = "/usr/sbin/policy-rc.d"
	policyScript = "#!/bin/sh\n# Written by windlass while it installs MariaDB, which it runs privately.\nexit 101\n"
)

// keepServiceDown prevents the start of the packaged service. It does not change a policy that
// the system already has, as containers do. A policy that a killed installation left behind has
// the same text as policyScript, so restore removes it.
func keepServiceDown(ctx context.Context, prefix []string) (restore func() error, err error) {
	have, err := os.ReadFile(policyFile)
	switch {
	case err == nil && string(have) != policyScript:
		return func() error { return nil }, nil
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return nil, err
	case err != nil:
		err := run(ctx, slices.Concat(prefix, []string{
			"sh", "-c", `printf %s "$1" >"$2.tmp" && chmod 755 "$2.tmp" && mv "$2.tmp" "$2"`,
			"sh", policyScript, policyFile,
		}))
		if err != nil {
			return nil, fmt.Errorf("keep the packaged service down: %w", err)
		}
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return run(ctx, slices.Concat(prefix, []string{"rm", "-f", policyFile}))
	}, nil
}

// stopService stops the packaged server and disables it, because Windlass needs only the
// program and no server on port 3306. It ignores failures, because they mean that there is
// no such service.
func stopService(ctx context.Context, prefix []string) {
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		_ = run(ctx, slices.Concat(prefix, []string{"systemctl", "disable", "--now", "mariadb"}))
		return
	}
	if _, err := os.Stat("/etc/init.d/mariadb"); err == nil && isRunning(ctx) {
		_ = run(ctx, slices.Concat(prefix, []string{"/etc/init.d/mariadb", "stop"}))
	}
}

// isRunning reports whether the packaged server answers on its default socket.
func isRunning(ctx context.Context) bool {
	return exec.CommandContext(ctx, "mariadb-admin", "--no-defaults", "--connect-timeout=2",
		"--socket=/run/mysqld/mysqld.sock", "ping").Run() == nil
}

// run runs a command. Its error has the line of the output that explains it. It repeats
// the command while another apt locks the package lists, because the option that waits for
// dpkg's lock does not wait for that lock.
func run(ctx context.Context, argv []string) error {
	for {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "HOMEBREW_NO_AUTO_UPDATE=1", "LC_ALL=C")
		// A cancelled command gets an interrupt, so that dpkg can finish its current step.
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 30 * time.Second
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !strings.Contains(out.String(), "Could not get lock") {
			return fmt.Errorf("%s: %w: %s", argv[0], err, explainFailure(out.String()))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
}

// explainFailure returns the line of the output with the reason of a failure: the first error, or else
// the last line.
func explainFailure(out string) string {
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "E: ") || strings.HasPrefix(strings.ToLower(line), "error") {
			return line
		}
	}
	return lastLine(out)
}

// withoutQuiet returns a command as a person would type it.
func withoutQuiet(argv []string) []string {
	var out []string
	for i := 0; i < len(argv); i++ {
		switch argv[i] {
		case "-qq", "-q":
		case "-o":
			i++
		default:
			out = append(out, argv[i])
		}
	}
	return out
}
