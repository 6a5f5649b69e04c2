package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
)

// ShimArg is the first argument that turns a program into a shim.
const ShimArg = "__shim"

// The exit codes of a shim. They are for people who look at processes, because the agent reads the
// facts.
const (
	shimRan        = 0
	shimFailed     = 1
	shimNotNeeded  = 3 // the attempt has run or runs, or the directory is gone
	helloFD        = 3
	outputPatience = 2 * time.Second
	lockPatience   = 2 * time.Second
)

// launch has everything that the agent passes to a shim. It is sent through a pipe, because it has
// secrets.
type launch struct {
	Instance string        `json:"instance"`
	Attempt  int           `json:"attempt"`
	Argv     []string      `json:"argv"`
	Env      []string      `json:"env"`
	Dir      string        `json:"dir"`
	Grace    time.Duration `json:"grace"`
	Output   int64         `json:"output"`
	// Cgroup is the directory of the cgroup to start in. Empty: the shim's cgroup.
	Cgroup string `json:"cgroup,omitempty"`
	// Slot is the directory of the instance's slot. Empty: the slot is not stable.
	Slot string `json:"slot,omitempty"`
	// User is the user of the instance. Nil: the shim's user.
	User *user `json:"user,omitempty"`
	// Hide has the values that must be blanked in messages.
	Hide []string `json:"hide,omitempty"`

	// models has the directories for models, of which the shim needs to know nothing.
	models []string
}

// userID returns the instance's own user, or 0 if it has none.
func (l launch) userID() int {
	if l.User == nil {
		return 0
	}
	return l.User.UID
}

// IsShim reports whether this process was started as a shim. A program that contains the process
// runtime must call it first in main. If it returns true, the program must do nothing except
// os.Exit(ShimMain(os.Args)).
func IsShim(args []string) bool { return len(args) > 1 && args[1] == ShimArg }

// ShimMain runs one attempt of one instance, and returns the exit code. The working directory must
// be the instance's directory.
func ShimMain([]string) int {
	// The child must die with this thread, because PDEATHSIG refers to the thread that forked. So
	// the thread must live as long as the process.
	goruntime.LockOSThread()
	// A shim may wait for its child for years, so it should use little memory.
	debug.SetGCPercent(20)
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGPIPE)
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)

	code, err := runShim(told)
	if err != nil {
		fmt.Fprintln(os.Stderr, "shim:", err)
	}
	return code
}

func runShim(told <-chan os.Signal) (int, error) {
	hello := os.NewFile(helloFD, "hello")
	if hello == nil {
		return shimFailed, errors.New("no hello pipe: only the agent may start a shim")
	}
	if err := keepDescriptors(); err != nil {
		return shimFailed, err
	}
	var l launch
	if err := json.NewDecoder(os.Stdin).Decode(&l); err != nil {
		// The agent died before it had sent everything. The next agent will end this attempt.
		return shimFailed, fmt.Errorf("read launch: %w", err)
	}
	_ = os.Stdin.Close()

	lock, err := lockPatiently(".")
	if err != nil {
		return shimNotNeeded, err
	}
	defer func() { _ = lock.Close() }()
	old, found, err := readJSON[facts](".", factsFile)
	if err != nil {
		return shimFailed, err
	}
	if found && old.Attempt >= l.Attempt {
		return shimNotNeeded, fmt.Errorf("attempt %d is over", l.Attempt)
	}

	// When an instance is deleted, the record is removed first. The attempt is written to the
	// record before each start.
	rec, found, err := readJSON[record](".", recordFile)
	if err != nil {
		return shimFailed, err
	}
	if !found || rec.Attempt != l.Attempt {
		return shimNotNeeded, fmt.Errorf("attempt %d is not the attempt in the record", l.Attempt)
	}

	me, err := identifyProcess(os.Getpid())
	if err != nil {
		return shimFailed, err
	}
	boot, err := bootID()
	if err != nil {
		return shimFailed, err
	}
	f := facts{Attempt: l.Attempt, Boot: boot, Shim: me, UID: l.userID(), StartedAt: time.Now()}
	if err := writeJSON(".", factsFile, f, false); err != nil {
		return shimFailed, outOfSpace(hello, l, err)
	}
	if err := superviseOne(&f, l, hello, told); err != nil {
		return shimFailed, outOfSpace(hello, l, err)
	}
	return shimRan, writeJSON(".", factsFile, f, false)
}

// keepDescriptors keeps the descriptors of this process from its child: the hello pipe, through
// which the child could send false facts to the agent, and descriptors that the agent inherited.
func keepDescriptors() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list open descriptors: %w", err)
	}
	for _, e := range entries {
		// The child gets other descriptors in the places of 0 to 2.
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// outOfSpace tells the agent that the disk is full, because the facts cannot be written to the
// disk.
func outOfSpace(hello *os.File, l launch, err error) error {
	if diskFull(err) {
		x := failedStart(err)
		_ = json.NewEncoder(hello).Encode(facts{Attempt: l.Attempt, Exit: &x})
	}
	return err
}

// lockPatiently waits for processes that hold the lock for a moment: an agent that reads the facts,
// and a process that it forks meanwhile, until its exec.
func lockPatiently(dir string) (*os.File, error) {
	for end := time.Now().Add(lockPatience); ; time.Sleep(lockRetry) {
		f, err := lockInstance(dir)
		if !errors.Is(err, errLocked) || time.Now().After(end) {
			return f, err
		}
	}
}

// superviseOne starts the child, says hello, and sets f.Exit.
func superviseOne(f *facts, l launch, hello *os.File, told <-chan os.Signal) error {
	out, err := openOutput(".", l.Output)
	if err != nil {
		return err
	}
	defer out.close()
	greet := func() error {
		if err := writeJSON(".", factsFile, *f, false); err != nil {
			return err
		}
		// The agent may be gone. The next agent reads the file.
		_ = json.NewEncoder(hello).Encode(f)
		_ = hello.Close()
		return nil
	}

	// Orphans of the child become children of the shim, so that none of them outlives the shim.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	pid, copied, err := startChild(l, out)
	if err != nil {
		f.Exit = &exit{At: time.Now(), Kind: exitBadCommand, Message: err.Error()}
		return greet()
	}
	debug.FreeOSMemory()
	f.Child, _ = identifyProcess(pid)
	if err := greet(); err != nil {
		// The child must not run without a record of it.
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		return err
	}

	s := &stopper{pid: pid}
	go s.obeyOrders(told, l.Grace)
	x := s.reapChildren()
	killOrphans(pid)
	sweepUser(l.userID())
	select {
	case <-copied:
	case <-time.After(outputPatience):
		// A process that was not found holds the pipe open. Its output is ignored.
	}
	if x.Kind == exitedBySignal && oomKilled(l.Cgroup) {
		x.Kind = exitedByOOM
	}
	x.Tail = out.newestLines(redact.New(l.Hide...))
	f.Exit = &x
	return nil
}

// startChild runs the instance's program in its own process group. copied is closed when all of its
// output is written.
func startChild(l launch, out io.Writer) (pid int, copied <-chan struct{}, err error) {
	if l.User != nil {
		if err := confineThread(l.User); err != nil {
			return 0, nil, fmt.Errorf("cannot isolate the instance: %w", err)
		}
	}
	path, err := lookPath(l.Argv[0], variableIn(l.Env, "PATH"), l.Dir)
	if err != nil {
		return 0, nil, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = null.Close() }()
	r, w, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = w.Close() }()

	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if u := l.User; u != nil {
		attr.Credential = &syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.GID)}
		for _, g := range u.Groups {
			attr.Credential.Groups = append(attr.Credential.Groups, uint32(g))
		}
	}
	if l.Cgroup != "" {
		cg, err := os.Open(l.Cgroup)
		if err != nil {
			_ = r.Close()
			return 0, nil, fmt.Errorf("open cgroup: %w", err)
		}
		defer func() { _ = cg.Close() }()
		attr.UseCgroupFD, attr.CgroupFD = true, int(cg.Fd())
	}
	p, err := os.StartProcess(path, l.Argv, &os.ProcAttr{Dir: l.Dir, Env: l.Env, Files: []*os.File{null, w, w}, Sys: attr})
	if err != nil {
		_ = r.Close()
		if e, ok := errors.AsType[*os.PathError](err); ok {
			err = e.Err
		}
		if l.User != nil && errors.Is(err, syscall.EACCES) {
			err = fmt.Errorf("%w: the instance runs as user %d, so every user must be able to read its program", err, l.User.UID)
		}
		return 0, nil, fmt.Errorf("cannot run %s: %w", path, err)
	}
	pid = p.Pid
	// reap reaps the child, like every orphan.
	_ = p.Release()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(out, r)
		_ = r.Close()
	}()
	return pid, done, nil
}

// stopper ends the child's process group when the shim is told to stop.
type stopper struct {
	mu     sync.Mutex
	pid    int
	ended  bool
	told   bool
	forced bool
}

func (s *stopper) killGroup(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.told = true
	s.forced = s.forced || sig == syscall.SIGKILL
	_ = syscall.Kill(-s.pid, sig)
}

func (s *stopper) obeyOrders(told <-chan os.Signal, grace time.Duration) {
	<-told
	// The agent writes its order before it sends the signal. A signal without an order comes from
	// the host, which is shutting down, or from a person. Neither asks for a drain.
	if rec, found, err := readJSON[record](".", recordFile); err == nil && found && rec.Stop != nil {
		time.Sleep(rec.Stop.drainLeft(time.Now()))
	}
	s.killGroup(syscall.SIGTERM)
	time.Sleep(grace)
	s.killGroup(syscall.SIGKILL)
}

// reapChildren reaps every child until the instance's own child has ended. It returns how that child ended.
func (s *stopper) reapChildren() exit {
	for {
		// The status of the child is read before the child is reaped. While the child is a zombie,
		// no other process or group can have its number.
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		s.mu.Lock()
		var ws unix.WaitStatus
		pid, werr := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		if err != nil || errors.Is(werr, unix.ECHILD) {
			pid = s.pid
		}
		if pid != s.pid {
			s.mu.Unlock()
			continue
		}
		s.ended = true
		x := exit{At: time.Now(), Kind: exitedByCode, Code: ws.ExitStatus(), StopRequested: s.told, Forced: s.forced}
		s.mu.Unlock()
		if ws.Signaled() {
			x.Kind, x.Code, x.Signal = exitedBySignal, 0, unix.SignalName(ws.Signal())
		}
		return x
	}
}

// killOrphans kills the processes that the child left behind: its group, and its other descendants,
// which the kernel gave to this process.
func killOrphans(pgid int) {
	_ = syscall.Kill(-pgid, syscall.SIGKILL)
	for end := time.Now().Add(outputPatience); time.Now().Before(end); {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if errors.Is(err, unix.ECHILD) {
			return
		}
		if pid > 0 || errors.Is(err, unix.EINTR) {
			continue
		}
		// This comes last, because most instances leave nothing behind, and it reads about every
		// process of the host.
		for _, pid := range childrenOf(os.Getpid()) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(time.Millisecond)
	}
}

// childrenOf returns the processes whose parent is pid.
func childrenOf(pid int) []int {
	var found []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		n, err := strconv.Atoi(filepath.Base(d))
		if err != nil {
			continue
		}
		if st, err := readStat(n); err == nil && st.ppid == pid {
			found = append(found, n)
		}
	}
	return found
}

// lookPath finds a program like a shell does, with the instance's own PATH.
func lookPath(file, path, dir string) (string, error) {
	try := func(p string) error {
		st, err := os.Stat(p)
		switch {
		case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
			return errors.New("no such file")
		case err != nil:
			return err
		case st.IsDir():
			return errors.New("it is a directory")
		case unix.Access(p, unix.X_OK) != nil || st.Mode()&0o111 == 0:
			return errors.New("it is not executable")
		}
		return nil
	}
	if strings.Contains(file, "/") {
		p := file
		if !filepath.IsAbs(p) {
			p = filepath.Join(dir, p)
		}
		if err := try(p); err != nil {
			return "", fmt.Errorf("cannot run %s: %w", p, err)
		}
		return p, nil
	}
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			continue
		}
		if p := filepath.Join(d, file); try(p) == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("cannot run %s: no such program in PATH (%s)", file, path)
}

func variableIn(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}
