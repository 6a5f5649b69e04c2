package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/pkg/flock"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

func stopCommand(cfg Config, opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "stop",
		Short: "Stop the Windlass of this machine",
		Long: `Stop the Windlass that runs on the data directory, or the processes that a killed
windlass dev left. Apps and history stay, and the next start brings them back.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(forPeople(cmd, cfg, *opts), opts.completeDataDir(cfg)); err != nil {
				return err
			}
			cmd.SilenceUsage = true
			return stopDev(cmd.Context(), cfg, opts.dataLayout(), cmd.OutOrStdout())
		},
	}
}

// stopDev asks the running dev to stop, kills it if it does not, and then stops the processes that are left.
func stopDev(ctx context.Context, cfg Config, l layout, out io.Writer) error {
	say := func(text string) { _, _ = fmt.Fprintln(out, text) }
	runs, err := l.isRunning()
	if err != nil {
		return err
	}
	if runs {
		if err := askToStop(ctx, l, say); err != nil {
			return err
		}
	} else if left, err := l.listStrays(); err != nil {
		return err
	} else if len(left) == 0 && !l.hasState() {
		say("windlass dev does not run on " + shortPath(l.root))
		return nil
	}
	lock, err := flock.Try(l.lockPath())
	if errors.Is(err, flock.ErrHeld) {
		return fmt.Errorf("another windlass dev was started on %s meanwhile", shortPath(l.root))
	}
	if err != nil {
		return err
	}
	defer func() { _ = lock.Unlock() }()
	ctx, cancel := context.WithTimeout(ctx, stopDeadline)
	defer cancel()
	s := sweeper{layout: l, programs: cfg.Programs, note: say}
	// Agents end first, or they would start the instances again.
	if err := errors.Join(s.stopAgents(ctx), s.stopInstances(ctx), s.stopProcesses(ctx)); err != nil {
		return err
	}
	if runs {
		say("stopped")
	} else {
		say("nothing of windlass dev runs on " + shortPath(l.root))
	}
	return nil
}

// askToStop stops the running dev, and returns once it has ended.
func askToStop(ctx context.Context, l layout, say func(string)) error {
	state, err := loadState(l.statePath())
	if err != nil {
		return err
	}
	if !proc.Alive(state.PID, state.Birth) {
		// The process holds the lock, but has not written its state yet.
		return fmt.Errorf("windlass dev is just starting on %s; try again in a moment", shortPath(l.root))
	}
	say(fmt.Sprintf("stopping windlass dev (pid %d)", state.PID))
	if err := syscall.Kill(state.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop windlass dev (pid %d): %w", state.PID, err)
	}
	// The dev observes stopDeadline itself. If it takes a little longer, it hangs.
	wait, cancel := context.WithTimeout(ctx, stopDeadline+10*time.Second)
	defer cancel()
	if proc.Ended(wait, state.PID, state.Birth) {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	say("it does not stop; killing it")
	if err := syscall.Kill(state.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill windlass dev (pid %d): %w", state.PID, err)
	}
	wait, cancel = context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if !proc.Ended(wait, state.PID, state.Birth) {
		return fmt.Errorf("windlass dev (pid %d) still runs, though it was killed", state.PID)
	}
	return nil
}
