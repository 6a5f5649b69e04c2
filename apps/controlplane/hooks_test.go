package controlplane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout/webhook"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/memory"
	"github.com/windlass-run/windlass/pkg/seal"
)

func TestWebHook_IsSignedWithTheNewestSecretOfItsEnvironment(t *testing.T) {
	keyset, err := seal.Generate()
	require.NoError(t, err)
	box, err := seal.New(keyset)
	require.NoError(t, err)
	p := parts{store: memory.New(func() int64 { return time.Now().UnixMilli() }), box: box}
	require.NoError(t, p.store.Update(t.Context(), func(tx store.Tx) error {
		require.NoError(t, tx.InsertWorkspace(model.Workspace{ID: "ws_1", Name: "acme", ResourceVersion: 1}))
		require.NoError(t, tx.InsertProject(model.Project{ID: "prj_1", WorkspaceID: "ws_1", Name: "search", ResourceVersion: 1}))
		for id, name := range map[string]string{"env_1": "production", "env_2": "staging"} {
			require.NoError(t, tx.InsertEnvironment(model.Environment{ID: id, WorkspaceID: "ws_1", ProjectID: "prj_1", Name: name, ResourceVersion: 1}))
			for version, value := range []string{"old", "new of " + name} {
				s := model.Secret{WorkspaceID: "ws_1", EnvironmentID: id, Name: "checks", Version: int32(version) + 1}
				s.Ciphertext, err = box.Seal([]byte(value), model.SecretContext(id, s.Name, s.Version))
				require.NoError(t, err)
				require.NoError(t, tx.InsertSecretVersion(s))
			}
		}
		return nil
	}))
	call := analysis.Call{
		Workspace: analysis.Named{ID: "ws_1"}, Project: analysis.Named{ID: "prj_1"}, Environment: analysis.Named{ID: "env_1"},
	}
	facts, err := p.hookFacts(t.Context(), call, []string{"checks", "gone"})
	require.NoError(t, err)
	require.Equal(t, webhook.Facts{
		Workspace: "acme", Project: "search", Environment: "production",
		Secrets: map[string][]byte{"checks": []byte("new of production")},
	}, facts)
	call.Workspace.ID = "ws_2"
	_, err = p.hookFacts(t.Context(), call, nil)
	require.ErrorIs(t, err, model.ErrNotFound)
}
