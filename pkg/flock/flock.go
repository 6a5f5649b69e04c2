// Package flock is a lock between processes, held by an open file: the kernel
// lets go of it when its holder ends, however it ends, so no lock is ever stale.
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

// poll is how often a taken lock is tried again. flock(2) has no timeout, and
// what the lock guards takes seconds, so a tenth of one is not felt.
const poll = 100 * time.Millisecond

// Lock is held until Unlock, or until the process ends. It may be forgotten: it is
// a plain descriptor, which the garbage collector does not close as it would an
// os.File.
type Lock struct {
	fd     int
	unlock sync.Once
	err    error
}

// ErrHeld says that another process, or another Lock of this one, holds it.
var ErrHeld = errors.New("lock is held by another process")

// Try takes the lock on the file at path, which is created with its folder when
// missing; ErrHeld when it is taken. The file stays after Unlock: removing it
// would let two processes lock two files of one name.
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

// retry makes a system call again when a signal came between.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// Acquire waits for the lock until ctx ends. waiting, when not nil, is called
// once if it has to wait.
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

// Unlock lets go of the lock. Once is enough, and more do no harm: the descriptor
// may be somebody else's by then.
func (l *Lock) Unlock() error {
	l.unlock.Do(func() { l.err = unix.Close(l.fd) })
	return l.err
}
