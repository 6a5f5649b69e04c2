// Package proc runs child processes that outlast their parent's memory: what
// was started is written down before and after the start, so that after a kill
// -9 of the parent the next one finds the child again, and never mistakes a
// stranger for it.
//
// The record file goes through two states, each written atomically:
//
//	intent   argv, no pid      before fork
//	started  pid + birth       after fork
//
// Birth is the kernel's start time of the process together with the boot it
// belongs to, so a pid that was used again does not match. A parent killed
// between the two states leaves an intent; then the process list is searched for
// exactly that argv, which is unique because it names a private directory.
package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// Spec is one process to run.
type Spec struct {
	// Name says in errors what this is.
	Name string
	// Path is the program, Args its arguments without the program's name. The
	// two together must be unique to RecordFile.
	Path string
	Args []string
	// Env as in exec.Cmd: nil means the environment of this process.
	Env []string
	// Dir is the working directory; empty means the current one.
	Dir string
	// RecordFile is where the process is written down; required.
	RecordFile string
	// LogFile receives stdout and stderr, appended; it is set aside as
	// LogFile.1 at a start that finds it larger than LogLimit.
	LogFile string
	// DieWithParent has the kernel kill the child when this process ends,
	// however it ends. Linux only: elsewhere the record file is the only net.
	DieWithParent bool
	// OwnSession detaches the child from the terminal too, not only from its
	// process group.
	OwnSession bool
}

// LogLimit is the size in bytes beyond which a log is set aside at the next
// start: some hours of a chatty server, and still quick to open in an editor.
const LogLimit = 16 << 20

// Process is a running child, or one that has ended.
type Process struct {
	name string
	pid  int
	file string
	done chan struct{}
	err  error // set before done is closed
}

// Start runs the process in its own process group, so that a Ctrl-C at the
// terminal reaches the parent alone, which then stops its children in order.
// Any stray of the same record file must have been stopped before.
func Start(s Spec) (*Process, error) {
	if s.RecordFile == "" {
		return nil, fmt.Errorf("start %s: RecordFile is empty", s.Name)
	}
	log, err := openLog(s.LogFile)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	defer func() { _ = log.Close() }()

	cmd := exec.Command(s.Path, s.Args...)
	cmd.Env, cmd.Dir = s.Env, s.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !s.OwnSession, Setsid: s.OwnSession}
	if s.DieWithParent {
		dieWithParent(cmd.SysProcAttr)
	}
	if err := writeRecord(s.RecordFile, Record{Argv: cmd.Args}); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}

	p := &Process{name: s.Name, file: s.RecordFile, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The parent-death signal fires when the *thread* that forked ends. The
		// thread is therefore kept by this goroutine for as long as the child
		// lives; Go ends threads only when a locked goroutine ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.pid = cmd.Process.Pid
		started <- nil
		p.err = cmd.Wait()
		removeRecord(s.RecordFile, p.pid)
		close(p.done)
	}()
	if err := <-started; err != nil {
		_ = os.Remove(s.RecordFile)
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	birth, err := Birth(p.pid)
	if err != nil {
		// It may have ended already; then there is nothing to find again.
		select {
		case <-p.done:
			return p, nil
		case <-time.After(time.Second):
		}
		_ = syscall.Kill(-p.pid, syscall.SIGKILL)
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	if err := writeRecord(s.RecordFile, Record{PID: p.pid, Birth: birth, Argv: cmd.Args}); err != nil {
		_ = syscall.Kill(-p.pid, syscall.SIGKILL)
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	return p, nil
}

// PID of the child.
func (p *Process) PID() int { return p.pid }

// Done is closed when the child has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait blocks until the child has ended, and returns how: nil for exit status
// 0, else an *exec.ExitError.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// Stop asks with SIGTERM, and kills the process group when the child still runs
// after grace or when ctx ends. It returns nil once the child has ended, and
// how it ended is Wait's to say.
func (p *Process) Stop(ctx context.Context, grace time.Duration) error {
	return stop(ctx, p.pid, grace, func() bool {
		select {
		case <-p.done:
			return false
		default:
			return true
		}
	}, p.done)
}

// Signal the child; no error when it has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	if err := syscall.Kill(p.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %s: %w", p.name, err)
	}
	return nil
}

func openLog(path string) (*os.File, error) {
	if path == "" {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if st, err := os.Stat(path); err == nil && st.Size() > LogLimit {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}
