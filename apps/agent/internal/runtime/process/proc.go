package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// causeOf returns the error without the texts that net/http adds, because the URL is known.
func causeOf(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if s, ok := errors.AsType[syscall.Errno](err); ok {
		return s
	}
	return err
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// stat has the fields of /proc/PID/stat that are used here.
type stat struct {
	state   byte
	ppid    int
	session int
	threads int
	start   uint64
	// cpu is the CPU time, including that of ended children that were waited for. pages is the
	// number of pages in memory.
	cpu   time.Duration
	pages int64
}

// hasEnded reports whether nothing is left of the process except the status for its parent. A zombie
// whose other threads are still ending holds its ports and its memory.
func (s stat) hasEnded() bool { return s.state == 'X' || s.state == 'Z' && s.threads <= 1 }

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	return parseStat(b)
}

// parseStat parses the content of /proc/PID/stat. The second field is the program's name in
// parentheses, which may itself contain spaces and parentheses.
func parseStat(b []byte) (stat, error) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return stat{}, fmt.Errorf("parse stat %q: no name", b)
	}
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 22 {
		return stat{}, fmt.Errorf("parse stat %q: %d fields", b, len(f))
	}
	var st stat
	var errs [9]error
	st.state = f[0][0]
	st.ppid, errs[0] = strconv.Atoi(f[1])
	st.session, errs[1] = strconv.Atoi(f[3])
	st.threads, errs[2] = strconv.Atoi(f[17])
	st.start, errs[3] = strconv.ParseUint(f[19], 10, 64)
	st.pages, errs[4] = strconv.ParseInt(f[21], 10, 64)
	for n, text := range f[11:15] {
		var ticks int64
		ticks, errs[5+n] = strconv.ParseInt(text, 10, 64)
		st.cpu += time.Duration(ticks) * (time.Second / ticksPerSecond)
	}
	return st, errors.Join(errs[:]...)
}

func identifyProcess(pid int) (proc, error) {
	st, err := readStat(pid)
	if err != nil {
		return proc{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	return proc{PID: pid, Start: st.start}, nil
}

// isAlive reports whether exactly this process exists and has not ended.
func (p proc) isAlive() bool {
	if p.PID <= 0 {
		return false
	}
	st, err := readStat(p.PID)
	return err == nil && st.start == p.Start && !st.hasEnded()
}

// sendSignal sends a signal to exactly this process, or to none.
func (p proc) sendSignal(sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	switch {
	case errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL):
		return os.ErrProcessDone
	case err != nil:
		// This kernel has no pidfds. There is a small risk that the pid is used again between the
		// next two statements.
		if !p.isAlive() {
			return os.ErrProcessDone
		}
		return syscall.Kill(p.PID, sig)
	}
	defer func() { _ = unix.Close(fd) }()
	if !p.isAlive() {
		return os.ErrProcessDone
	}
	return unix.PidfdSendSignal(fd, sig, nil, 0)
}

// pollInterval is the interval of checks whether a process has ended, on kernels without pidfds.
const pollInterval = 200 * time.Millisecond

// wait returns when the process or ctx has ended. It occupies no thread, because the pidfd is in
// the poller, like other files.
func (p proc) wait(ctx context.Context) {
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err == nil {
		f := os.NewFile(uintptr(fd), "pidfd")
		defer func() { _ = f.Close() }()
		if !p.isAlive() {
			return
		}
		raw, rerr := f.SyscallConn()
		if rerr == nil {
			stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
			defer stop()
			rerr = raw.Read(func(fd uintptr) bool {
				fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
				n, perr := unix.Poll(fds, 0)
				return perr == nil && n > 0
			})
		}
		if rerr == nil || ctx.Err() != nil {
			return
		}
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for p.isAlive() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// instanceEnv is the variable that marks every process of an instance, even if the process detached
// itself.
const instanceEnv = "WINDLASS_INSTANCE_ID"

// remainingProcesses returns the processes of an instance: the processes of its own user if it has one, the
// processes with its id in their environment, and the processes of the session that its shim led.
// The number of a session is not given to another process while the session has members. So if
// another process has this number now, the session is empty.
func remainingProcesses(instance string, shim proc, uid int) []proc {
	if st, err := readStat(shim.PID); err == nil && st.start != shim.Start {
		shim = proc{}
	}
	mark := []byte(instanceEnv + "=" + instance + "\x00")
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var found []proc
	for _, d := range dirs {
		pid, err := strconv.Atoi(filepath.Base(d))
		if err != nil || pid == os.Getpid() {
			continue
		}
		st, err := readStat(pid)
		if err != nil || st.hasEnded() {
			continue
		}
		if shim.PID > 0 && st.session == shim.PID && st.start >= shim.Start {
			found = append(found, proc{pid, st.start})
			continue
		}
		if uid > 0 && slices.Contains(usersOf(pid), uid) {
			found = append(found, proc{pid, st.start})
			continue
		}
		env, err := os.ReadFile(d + "/environ")
		if err == nil && (bytes.HasPrefix(env, mark) || bytes.Contains(env, append([]byte{0}, mark...))) {
			found = append(found, proc{pid, st.start})
		}
	}
	return found
}

// killRemaining kills the remaining processes of an instance whose shim is gone. It repeats this, because a
// process may fork meanwhile.
func killRemaining(instance string, shim proc, uid int) {
	for range 10 {
		left := remainingProcesses(instance, shim, uid)
		if len(left) == 0 {
			break
		}
		for _, p := range left {
			_ = p.sendSignal(syscall.SIGKILL)
		}
		for end := time.Now().Add(time.Second); time.Now().Before(end) && anyAlive(left); {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// sweepUser kills every process of an instance's own user. 0: the instance has none.
func sweepUser(uid int) {
	if uid == 0 {
		return
	}
	for end := time.Now().Add(outputPatience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		left := false
		for _, d := range dirs {
			pid, err := strconv.Atoi(filepath.Base(d))
			if err != nil || !slices.Contains(usersOf(pid), uid) {
				continue
			}
			if st, err := readStat(pid); err == nil && !st.hasEnded() {
				left = true
				_ = proc{pid, st.start}.sendSignal(syscall.SIGKILL)
			}
		}
		if !left {
			return
		}
	}
}

func anyAlive(ps []proc) bool {
	for _, p := range ps {
		if p.isAlive() {
			return true
		}
	}
	return false
}
