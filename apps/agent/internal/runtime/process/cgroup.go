package process

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// cpuPeriod is the kernel's default period of cpu.max, in microseconds.
const cpuPeriod = 100_000

// cgroups makes one cgroup (v2) for each instance below a parent from which this process may
// delegate. A nil *cgroups limits nothing.
type cgroups struct{ parent string }

// openCgroups prepares parent. If parent is empty, it prepares the cgroup of this process. The
// error says why limits are not possible on this host.
func openCgroups(parent string) (*cgroups, error) {
	if parent == "" {
		own, err := ownCgroup()
		if err != nil {
			return nil, err
		}
		parent = own
	}
	has, err := wordsOf(filepath.Join(parent, "cgroup.controllers"))
	if err != nil {
		return nil, fmt.Errorf("no cgroup v2 at %s", parent)
	}
	for _, c := range []string{"cpu", "memory"} {
		if !slices.Contains(has, c) {
			return nil, fmt.Errorf("controller %s is not delegated to %s", c, parent)
		}
	}
	control := filepath.Join(parent, "cgroup.subtree_control")
	err = os.WriteFile(control, []byte("+cpu +memory"), 0o600)
	if errors.Is(err, syscall.EBUSY) {
		// A cgroup that delegates controllers must not contain processes. So this process, and with
		// it all later shims, moves to a leaf.
		leaf := filepath.Join(parent, "agent")
		if err = os.MkdirAll(leaf, 0o755); err == nil {
			err = os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o600)
		}
		if err == nil {
			err = os.WriteFile(control, []byte("+cpu +memory"), 0o600)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("not permitted: %w", err)
	}
	return &cgroups{parent: parent}, nil
}

func ownCgroup() (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return filepath.Join("/sys/fs/cgroup", p), nil
		}
	}
	return "", errors.New("this host has no cgroup v2")
}

// create makes a new cgroup for one attempt, so that the attempt has its own counts.
func (c *cgroups) create(instance string, cpuMillicores, memoryMiB int) (string, error) {
	dir := filepath.Join(c.parent, instance)
	c.remove(instance)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("create cgroup: %w", err)
	}
	limits := map[string]string{"cpu.max": "max", "memory.max": "max", "memory.oom.group": "1"}
	if cpuMillicores > 0 {
		// The kernel accepts no quota below 1 ms.
		limits["cpu.max"] = fmt.Sprintf("%d %d", max(cpuMillicores*cpuPeriod/1000, 1000), cpuPeriod)
	}
	if memoryMiB > 0 {
		limits["memory.max"] = strconv.Itoa(memoryMiB << 20)
	}
	for file, v := range limits {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(v), 0o600); err != nil {
			return "", fmt.Errorf("limit cgroup: %w", err)
		}
	}
	return dir, nil
}

// remove kills the processes that are left in an instance's cgroup, and removes the cgroup.
func (c *cgroups) remove(instance string) {
	if c == nil {
		return
	}
	dir := filepath.Join(c.parent, instance)
	_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0o600)
	_ = os.Remove(dir)
}

// oomKilled reports whether the kernel killed a process of a cgroup because memory ran out.
func oomKilled(cgroup string) bool {
	if cgroup == "" {
		return false
	}
	f, err := os.Open(filepath.Join(cgroup, "memory.events"))
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	for s := bufio.NewScanner(f); s.Scan(); {
		if n, ok := strings.CutPrefix(s.Text(), "oom_kill "); ok {
			return n != "0"
		}
	}
	return false
}

func wordsOf(file string) ([]string, error) {
	b, err := os.ReadFile(file)
	return strings.Fields(string(b)), err
}
