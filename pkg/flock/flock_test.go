package flock_test

import (
	"context"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/flock"
)

func TestLock_GoesToTheWaiterAfterUnlock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "folder", "lock")
	first, err := flock.Try(path)
	require.NoError(t, err)
	_, err = flock.Try(path)
	require.ErrorIs(t, err, flock.ErrHeld)

	waiting, got := make(chan struct{}), make(chan error, 1)
	go func() {
		second, err := flock.Acquire(t.Context(), path, func() { close(waiting) })
		if err == nil {
			err = second.Unlock()
		}
		got <- err
	}()
	<-waiting
	require.NoError(t, first.Unlock())
	require.NoError(t, <-got)
}

func TestLock_IsHeldAfterTheCallerDropsIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	_, err := flock.Try(path)
	require.NoError(t, err)
	for range 3 {
		runtime.GC()
	}
	_, err = flock.Try(path)
	require.ErrorIs(t, err, flock.ErrHeld)
}

func TestUnlock_SecondCallKeepsTheLockOfTheNextHolder(t *testing.T) {
	first, err := flock.Try(filepath.Join(t.TempDir(), "first"))
	require.NoError(t, err)
	require.NoError(t, first.Unlock())
	second := filepath.Join(t.TempDir(), "second")
	_, err = flock.Try(second)
	require.NoError(t, err)
	require.NoError(t, first.Unlock())
	_, err = flock.Try(second)
	require.ErrorIs(t, err, flock.ErrHeld)
}

func TestLock_WaitEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := flock.Try(path)
	require.NoError(t, err)
	defer func() { _ = held.Unlock() }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = flock.Acquire(ctx, path, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
