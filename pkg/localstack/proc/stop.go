package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// StopStray stops the process of a record file if it still runs, as Stop does,
// and removes the record. It returns the pid that it stopped, or 0.
func StopStray(ctx context.Context, recordFile string, grace time.Duration) (int, error) {
	rec, ok, err := Find(recordFile)
	if err != nil {
		return 0, err
	}
	stopped := 0
	if ok {
		stopped = rec.PID
		alive := func() bool { return Alive(rec.PID, rec.Birth) }
		if err := stop(ctx, rec.PID, grace, alive, nil); err != nil {
			return 0, err
		}
	}
	if err := os.Remove(recordFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, err
	}
	return stopped, nil
}

// killWait is how long a killed process may take to end, because the kernel may have to finish its disk
// writes.
const killWait = 10 * time.Second

// stop sends SIGTERM, waits, sends SIGKILL to the group, and waits again. Without grace it sends no SIGTERM,
// so that the process cannot clean up. ended is nil for a process that is not our child, which can only be
// polled.
func stop(ctx context.Context, pid int, grace time.Duration, alive func() bool, ended <-chan struct{}) error {
	if !alive() {
		return nil
	}
	if grace > 0 {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop process %d: %w", pid, err)
		}
		gctx, cancel := context.WithTimeout(ctx, grace)
		defer cancel()
		if awaitGone(gctx, alive, ended) {
			return nil
		}
	}
	err := syscall.Kill(-pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EPERM) {
		// The process does not lead a group, or the group has a process of another user.
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killWait)
	defer cancel()
	if awaitGone(kctx, alive, ended) {
		return nil
	}
	return fmt.Errorf("process %d still runs %s after it was killed", pid, killWait)
}

// Ended waits until the process with this pid and birth has ended or is a zombie. It returns false if the
// process still runs when ctx ends.
func Ended(ctx context.Context, pid int, birth string) bool {
	alive := func() bool { return Alive(pid, birth) }
	return !alive() || awaitGone(ctx, alive, nil)
}

func awaitGone(ctx context.Context, alive func() bool, ended <-chan struct{}) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return true
		case <-tick.C:
			if ended == nil && !alive() {
				return true
			}
		case <-ctx.Done():
			return !alive()
		}
	}
}
