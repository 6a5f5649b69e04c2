package process

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestUsage(t *testing.T) {
	t.Run("of a cgroup leaves out file caches that the kernel can reclaim", func(t *testing.T) {
		parent := t.TempDir()
		dir := filepath.Join(parent, "ins_1")
		require.NoError(t, os.Mkdir(dir, 0o700))
		c := &cgroups{parent: parent}
		_, ok := c.spentBy("ins_1")
		require.False(t, ok, "the instance has just ended")
		for name, text := range map[string]string{
			"cpu.stat": "usage_usec 1500000\nuser_usec 1\n", "memory.current": "1000\n", "memory.stat": "anon 1\ninactive_file 300\n",
		} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		s, ok := c.spentBy("ins_1")
		require.True(t, ok)
		require.Equal(t, spent{cpu: 1500 * time.Millisecond, memory: 700}, s)
	})
	t.Run("of the CPU is the mean since the last reading", func(t *testing.T) {
		var m meter
		now, shim := time.Unix(1_700_000_000, 0), proc{PID: 1, Start: 1}
		at := func(after, cpu time.Duration, of proc) (float64, bool) {
			now = now.Add(after)
			return m.next("ins_1", of, cpu, now)
		}
		_, known := at(0, 10*time.Second, shim)
		require.False(t, known, "it is the first reading")
		v, known := at(5*time.Second, 12*time.Second, shim)
		require.True(t, known)
		require.InDelta(t, 400, v, 0.001)
		v, known = at(10*time.Millisecond, 13*time.Second, shim)
		require.True(t, known)
		require.InDelta(t, 400, v, 0.001, "the last reading is too new")
		_, known = at(5*time.Second, time.Second, proc{PID: 2, Start: 9})
		require.False(t, known, "this is another attempt")
		_, known = at(2*time.Minute, 5*time.Second, proc{PID: 2, Start: 9})
		require.False(t, known, "the last reading is too old")
		m.dropOld(now.Add(2 * time.Minute))
		require.Empty(t, m.readings)
	})
}
