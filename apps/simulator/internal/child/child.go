// Package child runs parts of a scenario that are other machines in a real installation. Each part is a
// process of the simulator's binary, with its own descriptors and a lower priority. It ends with its parent.
package child

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
)

const (
	// nice is the niceness of a child.
	nice = 10
	// stopTimeout bounds the end of a child.
	stopTimeout = 10 * time.Second
)

// Become lowers the priority of this process, and removes it from the real-time class. The returned context
// ends with the parent process.
func Become(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if err := errors.Join(measure.NormalTime(), syscall.Setpriority(syscall.PRIO_PROCESS, 0, nice)); err != nil {
		return nil, nil, fmt.Errorf("lower the priority: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx, cancel, nil
}

// Start starts self, the simulator's binary, with arguments and additional environment variables. It calls
// line for each line that the process writes. The process ends with ctx, and ended is then closed.
func Start(ctx context.Context, self string, env []string, line func(string), args ...string) (ended <-chan struct{}, err error) {
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stderr, cmd.Env = os.Stderr, append(os.Environ(), env...)
	in, err := cmd.StdinPipe() // the pipe also ends with this process
	if err != nil {
		return nil, err
	}
	cmd.Cancel, cmd.WaitDelay = in.Close, stopTimeout
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			line(lines.Text())
		}
		_ = cmd.Wait() // it may have been killed
	}()
	return done, nil
}
