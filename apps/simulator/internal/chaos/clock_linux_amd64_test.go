package chaos

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain makes this test binary a program that tells the time.
func TestMain(m *testing.M) {
	if os.Getenv("CHAOS_TEST_PROGRAM") == "clock" {
		begin := time.Now()
		for range 10_000 {
			now := time.Now()
			_, _ = fmt.Fprintln(os.Stdout, now.UnixMilli(), now.Sub(begin).Milliseconds())
			<-time.After(5 * time.Millisecond)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestClock_JumpsInOneProcessButNotItsMonotonicClock(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), "CHAOS_TEST_PROGRAM=clock")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	// wrong reads the clock until it is wrong by this duration.
	wrong := func(by time.Duration) {
		t.Helper()
		for lines.Scan() {
			var wall, since int64
			_, err := fmt.Sscan(lines.Text(), &wall, &since)
			require.NoError(t, err)
			require.Less(t, since, int64(60_000), "the monotonic clock jumped, too")
			if off := time.Until(time.UnixMilli(wall)) - by; off < 2*time.Second && off > -2*time.Second {
				return
			}
		}
		t.Fatal("it ended")
	}
	wrong(0)
	for _, by := range []time.Duration{time.Hour, -time.Hour, 0} {
		require.NoError(t, setClock(cmd.Process.Pid, by))
		wrong(by)
	}
}
