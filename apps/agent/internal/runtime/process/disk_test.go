package process_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// fill makes writes of a file of an instance fail, as on a full disk, until free is called.
func (h *host) fill(t *testing.T, id, file string) (free func()) {
	t.Helper()
	path := filepath.Join(h.cfg.DataDir, "instances", id, "."+file+".tmp")
	require.NoError(t, os.Symlink("/dev/full", path))
	return func() { require.NoError(t, os.Remove(path)) }
}

func TestFullDisk_IsNoCrashAndInstancesStartOnceThereIsRoom(t *testing.T) {
	t.Parallel()
	for _, file := range []string{
		"facts.json",  // written by the shim
		"record.json", // written by the agent
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
			require.Equal(t, windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING, full.Status, "the instance did not run")
			require.False(t, full.Doomed)
			require.Contains(t, full.Message, "no space left on device")
			free()
			again := until(t, rt, "dep_1", allReady(1))[0]
			require.Equal(t, in.ID, again.ID)
			require.LessOrEqual(t, again.Restarts, 1)
		})
	}
}
