package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// Birth returns the boot id and the start time, in clock ticks since that boot, of a running process. It
// returns an error if the process does not run.
//
// The first thread of a killed process is a zombie as soon as that thread has ended. Other threads may still
// be ending, and hold the files, ports and memory of the process. Until the last thread has ended, the process
// counts as running.
func Birth(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", fmt.Errorf("process %d: %w", pid, err)
	}
	// The program's name is in parentheses and may contain any text, so fields are counted after the last
	// parenthesis. State is field 3, the number of threads is field 20, and the start time is field 22.
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return "", fmt.Errorf("process %d: unreadable stat", pid)
	}
	f := strings.Fields(string(stat[i+1:]))
	if len(f) < 20 {
		return "", fmt.Errorf("process %d: unreadable stat", pid)
	}
	if f[0] == "X" || f[0] == "Z" && (f[17] == "1" || f[17] == "0") { // 0: the parent is reaping the process
		return "", fmt.Errorf("process %d: %w", pid, os.ErrProcessDone)
	}
	boot, err := bootID()
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return boot + ":" + f[19], nil
}

var bootID = sync.OnceValues(func() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
})

// findArgv returns the pid of a process with exactly these arguments, or 0.
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
