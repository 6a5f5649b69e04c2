package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

var errLocked = errors.New("locked by another process")

// tryLock takes the lock on a file. The lock belongs to the open file. The kernel releases it when
// the holder dies.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errLocked
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// lockInstance takes the lock on an instance's directory. The error is fs.ErrNotExist if the
// directory was deleted meanwhile.
func lockInstance(dir string) (*os.File, error) {
	f, err := tryLock(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, err
	}
	mine, err := f.Stat()
	if err == nil {
		var there os.FileInfo
		if there, err = os.Stat(filepath.Join(dir, lockFile)); err == nil && !os.SameFile(mine, there) {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock instance: %w", err)
	}
	return f, nil
}

// lockRetry is the pause between two attempts to take a lock. Another process usually holds it only
// until it has ended.
const lockRetry = 20 * time.Millisecond

// lockDataDir makes this process the only agent of the directory. It waits at most patience for the
// previous agent to end.
func lockDataDir(ctx context.Context, dir string, patience time.Duration) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	path := filepath.Join(dir, lockFile)
	for {
		f, err := tryLock(path)
		if err == nil {
			if err := f.Truncate(0); err == nil {
				_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
			}
			return f, nil
		}
		if !errors.Is(err, errLocked) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			b, _ := os.ReadFile(path)
			return nil, fmt.Errorf("data directory %s is in use by another agent (pid %s): stop that agent, or give this agent another directory", dir, strings.TrimSpace(string(b)))
		case <-time.After(lockRetry):
		}
	}
}
