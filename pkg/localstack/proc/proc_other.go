//go:build unix && !linux

package proc

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent does nothing, because only Linux has a parent-death signal.
func dieWithParent(*syscall.SysProcAttr) {}

// Birth returns the start time of a running process as ps prints it, which does not change. It returns an
// error if the process does not run.
func Birth(pid int) (string, error) {
	out, err := exec.Command("ps", "-o", "state=,lstart=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return "", fmt.Errorf("process %d does not run: %w", pid, err)
	}
	state, start, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if start == "" || strings.HasPrefix(state, "Z") {
		return "", fmt.Errorf("process %d does not run", pid)
	}
	return strings.Join(strings.Fields(start), " "), nil
}

// findArgv returns the pid of a process with exactly these arguments, or 0.
func findArgv(argv []string) (int, error) {
	out, err := exec.Command("ps", "-axww", "-o", "pid=,command=").Output()
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	want := strings.Join(argv, " ")
	for line := range strings.Lines(string(out)) {
		id, command, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.TrimSpace(command) != want {
			continue
		}
		if pid, err := strconv.Atoi(id); err == nil {
			return pid, nil
		}
	}
	return 0, nil
}
