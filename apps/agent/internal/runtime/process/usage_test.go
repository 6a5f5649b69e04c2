package process

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestUsage(t *testing.T) {
	t.Run("of a process is read behind its name", func(t *testing.T) {
		stat := "4242 (a) b (c) S 1 4242 77 0 -1 4194304 100 0 0 0 150 50 20 10 20 0 4 0 1234 5000000 300 18446744073709551615 1 1\n"
		session, cpu, pages, ok := parseSpent([]byte(stat))
		require.True(t, ok)
		require.Equal(t, 77, session)
		require.Equal(t, 2300*time.Millisecond, cpu, "with that of children that ended")
		require.EqualValues(t, 300, pages)
		for _, broken := range []string{"", "1 (x", "1 (x) S 1 2", "1 (x) S 1 2 3 0 -1 0 0 0 0 0 a b c d 0 0 0 0 0 0 0"} {
			_, _, _, ok := parseSpent([]byte(broken))
			require.False(t, ok, broken)
		}
	})
	t.Run("of a cgroup has no caches that can be taken back", func(t *testing.T) {
		parent := t.TempDir()
		dir := filepath.Join(parent, "ins_1")
		require.NoError(t, os.Mkdir(dir, 0o700))
		c := &cgroups{parent: parent}
		_, ok := c.spent("ins_1")
		require.False(t, ok, "it has just ended")
		for name, text := range map[string]string{
			"cpu.stat": "usage_usec 1500000\nuser_usec 1\n", "memory.current": "1000\n", "memory.stat": "anon 1\ninactive_file 300\n",
		} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		s, ok := c.spent("ins_1")
		require.True(t, ok)
		require.Equal(t, spent{cpu: 1500 * time.Millisecond, memory: 700}, s)
	})
	t.Run("of the CPU is the mean since the look before", func(t *testing.T) {
		var m meter
		now, shim := time.Unix(1_700_000_000, 0), proc{PID: 1, Start: 1}
		at := func(after, cpu time.Duration, of proc) (float64, bool) {
			now = now.Add(after)
			return m.next("ins_1", of, cpu, now)
		}
		_, known := at(0, 10*time.Second, shim)
		require.False(t, known, "there was no look before")
		v, known := at(5*time.Second, 12*time.Second, shim)
		require.True(t, known)
		require.InDelta(t, 400, v, 0.001)
		v, known = at(10*time.Millisecond, 13*time.Second, shim)
		require.True(t, known)
		require.InDelta(t, 400, v, 0.001, "too soon after the last")
		_, known = at(5*time.Second, time.Second, proc{PID: 2, Start: 9})
		require.False(t, known, "it was started anew")
		_, known = at(2*time.Minute, 5*time.Second, proc{PID: 2, Start: 9})
		require.False(t, known, "the last look is too old")
		m.keep(now.Add(2 * time.Minute))
		require.Empty(t, m.readings)
	})
}
