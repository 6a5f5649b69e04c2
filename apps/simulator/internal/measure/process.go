package measure

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is the unit of the kernel's processor accounting: USER_HZ, which is 100 on every
// architecture of Go on Linux.
const ticksPerSecond = 100

// Usage is what one process used since its start.
type Usage struct {
	CPU time.Duration
	// RSS is the present memory and PeakRSS the highest, in bytes.
	RSS, PeakRSS int64
}

// ReadUsage returns the usage of a running process.
func ReadUsage(pid int) (Usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, fmt.Errorf("read usage of process %d: %w", pid, err)
	}
	// The name in parentheses may contain any characters: fields are counted from its end.
	_, rest, ok := bytes.Cut(stat, []byte(") "))
	for ok && bytes.Contains(rest, []byte(") ")) {
		_, rest, _ = bytes.Cut(rest, []byte(") "))
	}
	fields := strings.Fields(string(rest))
	if len(fields) < 13 {
		return Usage{}, fmt.Errorf("read usage of process %d: unreadable stat", pid)
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return Usage{}, fmt.Errorf("read usage of process %d: %w", pid, err)
	}
	u := Usage{CPU: time.Duration(user+system) * (time.Second / ticksPerSecond)}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Usage{}, fmt.Errorf("read usage of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		if name != "VmRSS" && name != "VmHWM" {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return Usage{}, fmt.Errorf("read usage of process %d: %s: %w", pid, name, err)
		}
		if name == "VmRSS" {
			u.RSS = kib << 10
		} else {
			u.PeakRSS = kib << 10
		}
	}
	return u, nil
}

// ReadFamily returns the sum of the usage of a process and its children.
func ReadFamily(pid int) (Usage, error) {
	sum, err := ReadUsage(pid)
	if err != nil {
		return sum, err
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return sum, fmt.Errorf("read children of process %d: %w", pid, err)
	}
	for child := range strings.FieldsSeq(string(children)) {
		id, err := strconv.Atoi(child)
		if err != nil {
			return sum, fmt.Errorf("read children of process %d: %w", pid, err)
		}
		u, err := ReadUsage(id)
		if err != nil {
			return sum, err
		}
		sum.CPU, sum.RSS, sum.PeakRSS = sum.CPU+u.CPU, sum.RSS+u.RSS, sum.PeakRSS+u.PeakRSS
	}
	return sum, nil
}
