package process

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// socketOf returns the name of the socket as in /proc/PID/fd.
func socketOf(t *testing.T, l net.Listener) string {
	t.Helper()
	raw, err := l.(*net.TCPListener).SyscallConn()
	require.NoError(t, err)
	var st unix.Stat_t
	require.NoError(t, raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) }))
	require.NoError(t, err)
	return fmt.Sprintf("socket:[%d]", st.Ino)
}

func TestListeners(t *testing.T) {
	t.Parallel()
	for name, list := range map[string]func(int) map[string]bool{
		"from the kernel's answer": func(port int) map[string]bool {
			found, err := askListeners(port)
			require.NoError(t, err)
			return found
		},
		"from tables in /proc": readListeners,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, address := range []string{"127.0.0.1:0", ":0"} {
				l, err := net.Listen("tcp", address)
				require.NoError(t, err)
				port := l.Addr().(*net.TCPAddr).Port
				c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
				require.NoError(t, err)
				accepted, err := l.Accept()
				require.NoError(t, err)
				require.Equal(t, map[string]bool{socketOf(t, l): true}, list(port), address)
				require.NoError(t, l.Close())
				require.Empty(t, list(port), "the listener was closed, and a connection is still open")
				require.NoError(t, c.Close())
				require.NoError(t, accepted.Close())
			}
		})
	}
}

func BenchmarkListeners(b *testing.B) {
	for b.Loop() {
		listeningSockets(1)
	}
}
