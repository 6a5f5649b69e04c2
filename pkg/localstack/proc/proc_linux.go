package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// Birth of a running process: the boot it belongs to and its start time in clock
// ticks since that boot. An error when it does not run.
//
// The first thread of a killed process is a zombie as soon as it has ended itself. The
// others may still be on their way out, and with them the files, ports and memory that
// all of them share: until the last is gone, the process runs.
func Birth(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", fmt.Errorf("process %d: %w", pid, err)
	}
	// The program's name stands in parentheses and may hold anything, so fields
	// are counted from the last one: state is field 3, the number of threads field 20,
	// start time field 22.
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return "", fmt.Errorf("process %d: unreadable stat", pid)
	}
	f := strings.Fields(string(stat[i+1:]))
	if len(f) < 20 {
		return "", fmt.Errorf("process %d: unreadable stat", pid)
	}
	if f[0] == "X" || f[0] == "Z" && (f[17] == "1" || f[17] == "0") { // 0: it is being reaped
		return "", fmt.Errorf("process %d: %w", pid, os.ErrProcessDone)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(boot)) + ":" + f[19], nil
}

// findArgv returns the process with exactly these arguments, or 0.
func findArgv(argv []string) (int, error) {
	want := []byte(strings.Join(argv, "\x00") + "\x00")
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		got, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err != nil {
			continue
		}
		if bytes.Equal(got, want) {
			return pid, nil
		}
	}
	return 0, nil
}
