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

// Exit codes of a shim, for people who read a process list; the agent reads facts.
const (
	shimRan        = 0
	shimFailed     = 1
	shimNotNeeded  = 3 // the attempt has run, or runs, or its directory is gone
	helloFD        = 3
	outputPatience = 2 * time.Second
	lockPatience   = 2 * time.Second
)

// launch is what the agent hands to a shim, through a pipe: it holds secrets.
type launch struct {
	Instance string        `json:"instance"`
	Attempt  int           `json:"attempt"`
	Argv     []string      `json:"argv"`
	Env      []string      `json:"env"`
	Dir      string        `json:"dir"`
	Grace    time.Duration `json:"grace"`
	Output   int64         `json:"output"`
	// Cgroup is the directory of the cgroup to start in; empty: the shim's.
	Cgroup string `json:"cgroup,omitempty"`
	// User to run as; nil: the shim's.
	User *user `json:"user,omitempty"`
	// Hide are values that messages do not repeat.
	Hide []string `json:"hide,omitempty"`
}

// uid is the instance's own user; 0: it has none.
func (l launch) uid() int {
	if l.User == nil {
		return 0
	}
	return l.User.UID
}

// IsShim reports whether this process was started as a shim. Every program that
// embeds the process runtime asks first thing in main, and if so does nothing
// but os.Exit(ShimMain(os.Args)).
func IsShim(args []string) bool { return len(args) > 1 && args[1] == ShimArg }

// ShimMain runs one attempt of one instance, in the instance's directory, which
// is the working directory; it returns the exit code.
func ShimMain([]string) int {
	// The child must die with this thread (PDEATHSIG means the thread that
	// forked), so the thread must last as long as the process.
	goruntime.LockOSThread()
	// A shim may wait for its child for years, so it should cost little.
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
		return shimFailed, errors.New("no hello pipe: a shim is started by the agent only")
	}
	var l launch
	if err := json.NewDecoder(os.Stdin).Decode(&l); err != nil {
		// The agent died before it had said all: it will start this attempt again.
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
		return shimNotNeeded, fmt.Errorf("attempt %d is over, or was given up", l.Attempt)
	}

	// The record goes first when an instance is deleted, and its number is written
	// before each start.
	rec, found, err := readJSON[record](".", recordFile)
	if err != nil {
		return shimFailed, err
	}
	if !found || rec.Attempt != l.Attempt {
		return shimNotNeeded, fmt.Errorf("attempt %d is not the one that is wanted", l.Attempt)
	}

	me, err := identify(os.Getpid())
	if err != nil {
		return shimFailed, err
	}
	boot, err := bootID()
	if err != nil {
		return shimFailed, err
	}
	f := facts{Attempt: l.Attempt, Boot: boot, Shim: me, UID: l.uid(), StartedAt: time.Now()}
	if err := writeJSON(".", factsFile, f, false); err != nil {
		return shimFailed, outOfSpace(hello, l, err)
	}
	if err := superviseOne(&f, l, hello, told); err != nil {
		return shimFailed, outOfSpace(hello, l, err)
	}
	return shimRan, writeJSON(".", factsFile, f, false)
}

// outOfSpace tells the agent that the disk is full, because there are no facts to find on it.
func outOfSpace(hello *os.File, l launch, err error) error {
	if diskFull(err) {
		x := failedStart(err)
		_ = json.NewEncoder(hello).Encode(facts{Attempt: l.Attempt, Exit: &x})
	}
	return err
}

// lockPatiently waits for processes that hold the lock for a moment: an agent that
// reads what happened, and any process that it forks meanwhile, until its exec.
func lockPatiently(dir string) (*os.File, error) {
	for end := time.Now().Add(lockPatience); ; time.Sleep(lockRetry) {
		f, err := lockInstance(dir)
		if !errors.Is(err, errLocked) || time.Now().After(end) {
			return f, err
		}
	}
}

// superviseOne starts the child, says hello, and fills in f.Exit.
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
		// An agent that is gone does not matter: the next one reads the file.
		_ = json.NewEncoder(hello).Encode(f)
		_ = hello.Close()
		return nil
	}

	// Orphans of the child become the shim's, so that none outlives it.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	pid, copied, err := startChild(l, out)
	if err != nil {
		f.Exit = &exit{At: time.Now(), Kind: exitBadCommand, Message: err.Error()}
		return greet()
	}
	debug.FreeOSMemory()
	f.Child, _ = identify(pid)
	if err := greet(); err != nil {
		// It must not run without a record of it.
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		return err
	}

	s := &stopper{pid: pid}
	go s.obey(told, l.Grace)
	x := s.reap()
	killOrphans(pid)
	sweepUser(l.uid())
	select {
	case <-copied:
	case <-time.After(outputPatience):
		// A process that was not found holds the pipe open. Its output does not count.
	}
	if x.Kind == exitedBySignal && oomKilled(l.Cgroup) {
		x.Kind = exitedByOOM
	}
	x.Tail = out.last(redact.New(l.Hide...))
	f.Exit = &x
	return nil
}

// startChild runs the instance's program in its own process group. copied is
// closed when all of its output is written.
func startChild(l launch, out io.Writer) (pid int, copied <-chan struct{}, err error) {
	if l.User != nil {
		if err := confine(l.User); err != nil {
			return 0, nil, fmt.Errorf("cannot isolate it: %w", err)
		}
	}
	path, err := lookPath(l.Argv[0], variable(l.Env, "PATH"), l.Dir)
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
			err = fmt.Errorf("%w: it runs as user %d, and what it runs must be readable to every user", err, l.User.UID)
		}
		return 0, nil, fmt.Errorf("cannot run %s: %w", path, err)
	}
	pid = p.Pid
	// It is reaped by reap, with every orphan.
	_ = p.Release()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(out, r)
		_ = r.Close()
	}()
	return pid, done, nil
}

// stopper ends the child's process group when told to.
type stopper struct {
	mu     sync.Mutex
	pid    int
	ended  bool
	told   bool
	forced bool
}

func (s *stopper) kill(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.told = true
	s.forced = s.forced || sig == syscall.SIGKILL
	_ = syscall.Kill(-s.pid, sig)
}

func (s *stopper) obey(told <-chan os.Signal, grace time.Duration) {
	<-told
	// The agent writes its order before it sends the signal. A signal without an order comes from
	// the host, which goes down, or from a person: no drain was asked for.
	if rec, found, err := readJSON[record](".", recordFile); err == nil && found && rec.Stop != nil {
		time.Sleep(rec.Stop.drainLeft(time.Now()))
	}
	s.kill(syscall.SIGTERM)
	time.Sleep(grace)
	s.kill(syscall.SIGKILL)
}

// reap collects every child until the instance's own, and returns how that ended.
func (s *stopper) reap() exit {
	for {
		// The child is looked at before it is reaped: while it is a zombie, no other
		// process or group can have its number.
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

// killOrphans ends what the child left behind: its group, and its descendants
// wherever they went, which the kernel gave to this process.
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
		// Only now, because most instances leave nothing behind, and this reads about every process of the host.
		for _, pid := range children(os.Getpid()) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(time.Millisecond)
	}
}

// children lists the processes whose parent is pid.
func children(pid int) []int {
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

// lookPath finds a program as a shell would, by the instance's own PATH.
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

func variable(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}
