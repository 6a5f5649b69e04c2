package localstack_test

import (
	"net"
	"os/exec"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/localstack"
)

func listen(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

func TestPort_WantedIsKeptOrReplaced(t *testing.T) {
	var ports localstack.Ports
	free, err := localstack.FreePort()
	require.NoError(t, err)

	got, taken, err := ports.Take(free)
	require.NoError(t, err)
	require.False(t, taken)
	require.Equal(t, free, got)

	got, taken, err = ports.Take(free)
	require.NoError(t, err)
	require.True(t, taken, "a port is given out only once, even if no process listens on it yet")
	require.NotEqual(t, free, got)

	busy := listen(t)
	got, taken, err = ports.Take(busy)
	require.NoError(t, err)
	require.True(t, taken)
	require.NotEqual(t, busy, got)
	require.True(t, localstack.PortFree(got))

	got, taken, err = ports.Take(0)
	require.NoError(t, err)
	require.False(t, taken, "0 means any port")
	require.NotZero(t, got)
}

func TestPort_OutOfRangeIsNamed(t *testing.T) {
	for _, want := range []int{-1, 65536} {
		var ports localstack.Ports
		_, _, err := ports.Take(want)
		require.ErrorContains(t, err, "must be 0 to 65535")
	}
}

func TestPorts_FreshChildInheritsNone(t *testing.T) {
	var children sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		children.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					_ = exec.CommandContext(t.Context(), "true").Run()
				}
			}
		})
	}
	defer children.Wait()
	defer close(done)
	var ports localstack.Ports
	for range 300 {
		port, _, err := ports.Take(0)
		require.NoError(t, err)
		require.True(t, localstack.PortFree(port), "port %d was free a moment ago", port)
	}
}
