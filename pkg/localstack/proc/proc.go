// Package proc runs child processes that a later run can find again. It records a child before and after its
// start. So after a kill -9 of the parent, the next parent finds the child, and never mistakes another process
// for it.
//
// The record file goes through two states, each written atomically:
//
//	intent   argv, no pid      before fork
//	started  pid + birth       after fork
//
// Birth is the kernel's start time of the process together with the id of the boot, so that a reused pid does
// not match. A parent that is killed between the two states leaves an intent. Then the process list is
// searched for exactly that argv, which is unique because it names a private directory.
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
	// Name names the process in errors.
	Name string
	// Path is the program. Args are its arguments without the program's name. No process of another RecordFile may
	// have the same Path and Args.
	Path string
	Args []string
	// Env is the environment, as in exec.Cmd. Nil means that of this process.
	Env []string
	// Dir is the working directory. Empty means the current one.
	Dir string
	// RecordFile is the path of the process's record. It is required.
	RecordFile string
	// LogFile is the file to which stdout and stderr are appended. If it is larger than LogLimit at the
	// start, it is renamed to LogFile.1.
	LogFile string
	// DieWithParent makes the kernel kill the child when this process ends for any reason. It works on Linux
	// only. On other systems only the record file helps.
	DieWithParent bool
	// OwnSession detaches the child from the terminal, too, and not only from the process group.
	OwnSession bool
}

// LogLimit is the size in bytes above which a log is renamed at the next start, so that it still opens
// quickly in an editor.
const LogLimit = 16 << 20

// Process is a child process, which runs or has ended.
type Process struct {
	name string
	pid  int
	file string
	done chan struct{}
	err  error // set before done is closed
}

// Start starts the process in its own process group, so that a Ctrl-C at the terminal reaches only the
// parent, which stops its children in order. The caller must have stopped a stray of the same record file.
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
		// The parent-death signal fires when the thread that forked ends. So this goroutine keeps its thread
		// while the child lives. Go ends a thread only when a goroutine that is locked to it ends.
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
		// The child may have ended already. Then no record is needed.
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

// PID returns the child's pid.
func (p *Process) PID() int { return p.pid }

// Done returns a channel that is closed when the child has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait blocks until the child has ended. It returns nil for exit status 0, else an *exec.ExitError.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// Stop sends SIGTERM, and kills the process group if the child still runs after grace or when ctx ends. It
// returns nil once the child has ended. Wait returns how it ended.
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

// Signal sends a signal to the child. It returns nil if the child has ended.
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
