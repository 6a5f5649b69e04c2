// Package child runs parts of a scenario that are other machines outside of a test, such as attackers: processes of the
// simulator's own binary, with descriptors of their own and a lower priority, that end with the one that started them.
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
	// nice is the priority of a child.
	nice = 10
	// stopTimeout is the time that a child has to end in.
	stopTimeout = 10 * time.Second
)

// Become lowers the priority of this process, and takes it out of the real-time class. The context that it returns
// ends with the process that started this one.
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

// Start starts self, the simulator's binary, with arguments and further variables of the environment, and calls line for
// each line that it writes. It ends with ctx, and closes ended.
func Start(ctx context.Context, self string, env []string, line func(string), args ...string) (ended <-chan struct{}, err error) {
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stderr, cmd.Env = os.Stderr, append(os.Environ(), env...)
	in, err := cmd.StdinPipe() // which ends with this process, too
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
