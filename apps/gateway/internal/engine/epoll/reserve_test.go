//go:build linux

package epoll_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/engine/epoll"
)

// Start must not change GOMAXPROCS, because the engine may be only a part of the process.
func TestReserve_AddsOneProcessorOnce(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	require.NoError(t, epoll.Start())
	require.Equal(t, before, runtime.GOMAXPROCS(0))
	for range 2 {
		require.NoError(t, epoll.Reserve())
		require.Equal(t, before+1, runtime.GOMAXPROCS(0))
	}
}
