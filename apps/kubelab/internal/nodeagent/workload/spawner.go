package workload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/lifecycle"
)

// Spawner starts processes that do not outlive it.
//
// The kernel sends a process's parent-death signal when the thread that started it ends. So one thread starts
// all processes, and lives as long as the spawner.
type Spawner struct {
	requests chan request
	done     chan struct{}
}

type request struct {
	cmd *exec.Cmd
	err chan error
}

// NewSpawner returns a spawner that lives until ctx ends. Then all processes that it started are killed.
func NewSpawner(ctx context.Context) *Spawner {
	s := &Spawner{requests: make(chan request), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		// The thread is never unlocked. So it ends with the goroutine, and the children end with the thread.
		runtime.LockOSThread()
		for {
			select {
			case r := <-s.requests:
				r.err <- r.cmd.Start()
			case <-ctx.Done():
				return
			}
		}
	}()
	return s
}

func (s *Spawner) startProcess(cmd *exec.Cmd) error {
	r := request{cmd: cmd, err: make(chan error, 1)}
	select {
	case s.requests <- r:
		return <-r.err
	case <-s.done:
		return errors.New("the node agent is stopping")
	}
}

// Exec runs a command, as an exec probe or hook does, and returns the end of its output. It kills the command
// when ctx ends.
func (s *Spawner) Exec(ctx context.Context, h Host) (string, error) {
	h.Log = &Log{}
	ended := make(chan lifecycle.Exit, 1)
	run, err := s.StartHost(h, func(e lifecycle.Exit) { ended <- e })
	if err != nil {
		return "", err
	}
	select {
	case e := <-ended:
		if e.Code != 0 {
			return h.Log.Tail(), fmt.Errorf("command %q exited with %d: %s", strings.Join(h.Argv, " "), e.Code, h.Log.Tail())
		}
		return h.Log.Tail(), nil
	case <-ctx.Done():
		run.Kill()
		return "", fmt.Errorf("command %q timed out", strings.Join(h.Argv, " "))
	}
}

// lookPath finds a program in the PATH of env, instead of this process's PATH.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	var path string
	for _, pair := range env {
		if value, ok := strings.CutPrefix(pair, "PATH="); ok {
			path = value
		}
	}
	for _, dir := range filepath.SplitList(path) {
		candidate := filepath.Join(dir, name)
		if st, err := os.Stat(candidate); err == nil && !st.IsDir() && st.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH", name)
}
