// Package flock is a lock between processes, which an open file holds. The kernel releases the lock
// when its holder ends, even if it crashes. So a lock is never stale.
package flock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// poll is the time between two attempts to take a lock. Acquire polls, because flock(2) has no timeout.
// The work that a lock guards takes seconds, so 100 ms more do not matter.
const poll = 100 * time.Millisecond

// Lock is held until Unlock is called or the process ends. The caller may drop the Lock without losing
// the lock, because the garbage collector does not close its descriptor as it closes an os.File.
type Lock struct {
	fd     int
	unlock sync.Once
	err    error
}

// ErrHeld says that another process, or another Lock of this process, holds the lock.
var ErrHeld = errors.New("lock is held by another process")

// Try takes the lock on the file at path, and creates the file and its folder if they are missing. It
// returns ErrHeld if the lock is held. The file stays after Unlock, because after a removal two processes
// could lock two files with the same name.
func Try(path string) (*Lock, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	fd, err := retry(func() (int, error) {
		return unix.Open(path, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return nil, fmt.Errorf("lock: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	_, err = retry(func() (int, error) { return 0, unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err == nil {
		return &Lock{fd: fd}, nil
	}
	_ = unix.Close(fd)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, ErrHeld
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// retry repeats a system call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// Acquire takes the lock, and waits for it until ctx ends. If it must wait, it calls waiting once. waiting
// may be nil.
func Acquire(ctx context.Context, path string, waiting func()) (*Lock, error) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for first := true; ; first = false {
		l, err := Try(path)
		if !errors.Is(err, ErrHeld) {
			return l, err
		}
		if first && waiting != nil {
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for lock %s: %w", path, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// Unlock releases the lock. Only the first call closes the descriptor, because later its number may belong
// to another file. Further calls return the result of the first one.
func (l *Lock) Unlock() error {
	l.unlock.Do(func() { l.err = unix.Close(l.fd) })
	return l.err
}
