package process_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// fill has writing a file of an instance's fail as on a full disk, until it is called
// again.
func (h *host) fill(t *testing.T, id, file string) (free func()) {
	t.Helper()
	path := filepath.Join(h.cfg.DataDir, "instances", id, "."+file+".tmp")
	require.NoError(t, os.Symlink("/dev/full", path))
	return func() { require.NoError(t, os.Remove(path)) }
}

func TestFullDisk_IsNoCrashAndStartsOnceThereIsRoom(t *testing.T) {
	t.Parallel()
	for _, file := range []string{
		"facts.json",  // the shim's
		"record.json", // the agent's
	} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			rt := h.open(t)
			require.NoError(t, rt.Apply(t.Context(), assignment("dep_1", 1, self(t))))
			in := until(t, rt, "dep_1", allReady(1))[0]
			free := h.fill(t, in.ID, file)
			require.NoError(t, rt.Restart(t.Context(), in.ID))
			full := until(t, rt, "dep_1", func(all []runtime.Instance) bool {
				return len(all) == 1 && all[0].Reason == runtime.ReasonDiskFull
			})[0]
			require.Equal(t, windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING, full.Status, "nothing of it ran")
			require.False(t, full.Doomed)
			require.Contains(t, full.Message, "no space left on device")
			free()
			again := until(t, rt, "dep_1", allReady(1))[0]
			require.Equal(t, in.ID, again.ID)
			require.LessOrEqual(t, again.Restarts, 1)
		})
	}
}
