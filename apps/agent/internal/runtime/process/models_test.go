package process_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A server of models reads the models of its environment, and can neither change them nor read the
// models of other environments.
func TestModels_ServersReadOnlyThoseOfTheirEnvironment(t *testing.T) {
	h := newRootHost(t)
	h.cfg.ModelsDir = filepath.Join(h.dir, "models")
	require.NoError(t, os.MkdirAll(h.cfg.ModelsDir, 0o755))
	rt := h.open(t)
	other := filepath.Join(h.cfg.ModelsDir, "env_ws_b", "servers", "ins_b", "fraud")
	require.NoError(t, os.MkdirAll(other, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(other, "model"), []byte("of another"), 0o644))
	a := ofWorkspace(assignment("dep_servers", 1, "/bin/sh", "-c", `
		while [ ! -e "$WINDLASS_MODEL_REPOSITORY/fraud/model" ]; do sleep 0.1; done
		echo "read: $(cat "$WINDLASS_MODEL_REPOSITORY/fraud/model")"
		echo x > "$WINDLASS_MODEL_REPOSITORY/fraud/model"; rm -f "$WINDLASS_MODEL_REPOSITORY/fraud/model"; mkdir "$WINDLASS_MODEL_REPOSITORY/more"
		cat "`+other+`/model"
		ls "`+h.cfg.ModelsDir+`"
		exec `+h.program), "ws_a")
	a.Deployment.Spec.Models = &windlassv1.ModelServer{Protocol: windlassv1.ModelServer_PROTOCOL_V2}
	require.NoError(t, rt.Apply(t.Context(), a))
	in := until(t, rt, "dep_servers", func(all []runtime.Instance) bool { return len(all) == 1 })[0]
	repository := filepath.Join(h.cfg.ModelsDir, "env_ws_a", "servers", in.ID)
	require.Eventually(t, func() bool { return os.Mkdir(filepath.Join(repository, "fraud"), 0o755) == nil }, patience, 5*time.Millisecond)
	require.NoError(t, os.WriteFile(filepath.Join(repository, "fraud", "model"), []byte("weights"), 0o644))
	until(t, rt, "dep_servers", allReady(1))
	said, err := rt.Logs(t.Context(), in.ID, 1000)
	require.NoError(t, err)
	require.Contains(t, string(said), "read: weights")
	require.NotContains(t, string(said), "of another")
	require.NotContains(t, string(said), "env_ws_b\n")
	data, err := os.ReadFile(filepath.Join(repository, "fraud", "model"))
	require.NoError(t, err)
	require.Equal(t, "weights", string(data))
	require.NoDirExists(t, filepath.Join(repository, "more"))
	info, err := os.Stat(filepath.Join(h.cfg.ModelsDir, "env_ws_a"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o750), info.Mode().Perm())
}
