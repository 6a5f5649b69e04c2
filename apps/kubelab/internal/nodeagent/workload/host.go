package workload

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/lifecycle"
)

// outputPatience is how long the output of an ended process is read. A descendant that left the killed group
// may keep it open.
const outputPatience = 2 * time.Second

// Host is a container that runs as a process of this host.
type Host struct {
	Log    *Log
	Timing Timing
	// Argv is the program, which is looked up in Env's PATH, and its arguments.
	Argv []string
	// Env is the whole environment.
	Env []string
	// Dir is the working directory.
	Dir string
}

// StartHost starts a process.
func (s *Spawner) StartHost(h Host, exit func(lifecycle.Exit)) (*Run, error) {
	return startRun(h.Log, h.Timing, func(exit func(lifecycle.Exit)) (program, error) { return s.launchHost(h, exit) }, exit)
}

type host struct {
	mu    sync.Mutex
	pid   int
	ended bool // then another process may have the pid

	// cores is the average over window, which ended at measuredAt. window is 0 before the first measurement.
	cores      float64
	window     time.Duration
	measuredAt time.Time
	measured   float64 // seconds of processor time of the group until measuredAt
}

func (s *Spawner) launchHost(h Host, exit func(lifecycle.Exit)) (program, error) {
	if len(h.Argv) == 0 || h.Argv[0] == "" {
		return nil, errors.New("no command specified: an image of this host has no entrypoint, so the container needs a command")
	}
	path, err := lookPath(h.Argv[0], h.Env)
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("open the output of %s: %w", h.Argv[0], err)
	}
	cmd := &exec.Cmd{
		Path: path, Args: h.Argv, Env: h.Env, Dir: h.Dir, Stdout: write, Stderr: write,
		// Its own process group lets kill reach all its children. The kernel kills it when this process ends.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	}
	err = s.startProcess(cmd)
	_ = write.Close()
	if err != nil {
		_ = read.Close()
		return nil, fmt.Errorf("start %s: %w", h.Argv[0], err)
	}
	p := &host{pid: cmd.Process.Pid, measuredAt: time.Now()}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		copyOutput(h.Log, read)
	}()
	go func() {
		e := p.awaitExit(cmd)
		select {
		case <-copied:
		case <-time.After(outputPatience):
		}
		_ = read.Close()
		<-copied
		exit(e)
	}()
	return p, nil
}

func copyOutput(log *Log, read *os.File) {
	buf := make([]byte, 8<<10)
	for {
		n, err := read.Read(buf)
		_, _ = log.Write(buf[:n])
		if err != nil {
			return
		}
	}
}

// awaitExit waits for the process and kills the rest of its group, as the end of a container's first process
// ends the container.
func (p *host) awaitExit(cmd *exec.Cmd) lifecycle.Exit {
	// First wait without reaping: until the process is reaped, no other process or group gets its pid.
	for {
		if err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	p.mu.Lock()
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	p.ended = true
	p.mu.Unlock()
	_ = cmd.Wait()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case ok && status.Signaled():
		return lifecycle.Exit{Code: 128 + int32(status.Signal()), Signal: int32(status.Signal())}
	default:
		return lifecycle.Exit{Code: int32(cmd.ProcessState.ExitCode())}
	}
}

func (p *host) sendSignal(group bool, sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	pid := p.pid
	if group {
		pid = -pid
	}
	_ = syscall.Kill(pid, sig)
}

// terminate signals only the first process, as in a container.
func (p *host) terminate() { p.sendSignal(false, syscall.SIGTERM) }

func (p *host) kill() { p.sendSignal(true, syscall.SIGKILL) }

func (p *host) freeze(frozen bool) {
	if frozen {
		p.sendSignal(true, syscall.SIGSTOP)
	} else {
		p.sendSignal(true, syscall.SIGCONT)
	}
}
