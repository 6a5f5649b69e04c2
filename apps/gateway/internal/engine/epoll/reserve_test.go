//go:build linux

package epoll_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/engine/epoll"
)

// A process that has the engine as a part keeps its GOMAXPROCS. A program that asks for a processor more has
// it once.
func TestReserve(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	require.NoError(t, epoll.Start())
	require.Equal(t, before, runtime.GOMAXPROCS(0))
	for range 2 {
		require.NoError(t, epoll.Reserve())
		require.Equal(t, before+1, runtime.GOMAXPROCS(0))
	}
}
