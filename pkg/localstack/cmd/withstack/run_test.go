package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain turns this test binary into withstack.
func TestMain(m *testing.M) {
	if os.Getenv("WITHSTACK_TEST") != "" {
		main()
	}
	os.Exit(m.Run())
}

func withstack(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), "WITHSTACK_TEST=1", "TMPDIR="+t.TempDir())
	return cmd
}

func TestRun_GivesServersAndPassesTheExitCode(t *testing.T) {
	cmd := withstack(t, "--", "sh", "-c", `echo "$WINDLASS_TEST_MYSQL $WINDLASS_TEST_RESTATE_INGRESS $WINDLASS_TEST_RESTATE_ADMIN"; exit 7`)
	out, err := cmd.Output()
	require.Error(t, err)
	require.Equal(t, 7, cmd.ProcessState.ExitCode())
	f := strings.Fields(string(out))
	require.Len(t, f, 3)
	require.Contains(t, f[0], "@tcp(127.0.0.1:")
	require.Contains(t, f[1], "http://127.0.0.1:")
	require.Contains(t, f[2], "http://127.0.0.1:")
}

func TestRun_SignalReachesTheCommandAndServersStop(t *testing.T) {
	cmd := withstack(t, "sh", "-c", `trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.02; done`)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	buf := make([]byte, 64)
	n, err := out.Read(buf)
	require.NoError(t, err)
	require.Equal(t, "ready\n", string(buf[:n]))
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	n, err = out.Read(buf)
	require.NoError(t, err)
	require.Equal(t, "asked\n", string(buf[:n]))
	require.Error(t, cmd.Wait())
	require.Equal(t, 3, cmd.ProcessState.ExitCode())

	for _, kv := range cmd.Env {
		if dir, ok := strings.CutPrefix(kv, "TMPDIR="); ok && strings.HasPrefix(dir, os.TempDir()) {
			require.Eventually(t, func() bool {
				entries, err := os.ReadDir(dir)
				return err == nil && len(entries) == 0
			}, time.Minute, 10*time.Millisecond)
		}
	}
}

func TestUsage_IsPrintedBeforeAnythingStarts(t *testing.T) {
	for _, args := range [][]string{nil, {"--"}, {"no-such-command-here"}} {
		cmd := withstack(t, args...)
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Equal(t, codeFailed, cmd.ProcessState.ExitCode())
		require.Contains(t, string(out), "withstack: ")
	}
}
