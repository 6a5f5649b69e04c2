package api_test

import (
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (h *harness) setSecret(name, value string) *windlassv1.SetSecretResponse {
	h.t.Helper()
	res, err := h.environments(h.deployer).SetSecret(h.t.Context(), &windlassv1.SetSecretRequest{
		Environment: "default/production", Name: name, Value: value,
	})
	require.NoError(h.t, err)
	return res
}

func withSecret(name string) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) {
		s.Secrets = []*windlassv1.SecretReference{{EnvName: "TOKEN", Secret: name}}
	}
}

func TestSecret_IsSealedAndNeverShown(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	require.Equal(t, int32(1), w.setSecret("token", "hunter2-one").GetSecret().GetVersion())
	require.Equal(t, int32(2), w.setSecret("token", "hunter2-two").GetSecret().GetVersion())

	err := w.store.View(ctx, func(tx store.Tx) error {
		p, err := tx.GetProjectByName(w.workspace, "default")
		require.NoError(t, err)
		e, err := tx.GetEnvironmentByName(w.workspace, p.ID, "production")
		require.NoError(t, err)
		s, err := tx.GetSecret(w.workspace, e.ID, "token")
		require.NoError(t, err)
		require.NotContains(t, string(s.Ciphertext), "hunter2")
		plain, err := w.box.Open(s.Ciphertext, model.SecretContext(e.ID, "token", 2))
		require.NoError(t, err)
		require.Equal(t, "hunter2-two", string(plain))
		_, err = w.box.Open(s.Ciphertext, model.SecretContext(e.ID, "token", 1))
		require.Error(t, err, "a sealed value cannot be opened for another secret")
		return nil
	})
	require.NoError(t, err)
	require.NotContains(t, w.dump(), "hunter2")

	list, err := w.environments(w.viewer).ListSecrets(ctx, &windlassv1.ListSecretsRequest{Environment: "production"})
	require.NoError(t, err)
	require.Len(t, list.GetSecrets(), 1)
	require.Equal(t, "token", list.GetSecrets()[0].GetName())
	audit, err := w.history(w.owner).ListAudit(ctx, &windlassv1.ListAuditRequest{})
	require.NoError(t, err)
	require.Equal(t, "secret", audit.GetEntries()[0].GetResourceKind())
	require.JSONEq(t, `"token"`, jsonField(t, audit.GetEntries()[0].GetAfter(), "name"))
}

func TestSecret_NewValueIsARollout(t *testing.T) {
	for database, open := range map[string]func(*testing.T) store.Store{"memory": newStore, "MariaDB": newDatabase} {
		t.Run(database, func(t *testing.T) {
			w := setupOn(t, open(t))
			w.setSecret("token", "one")
			with := w.deploy("with", withSecret("token"))
			w.deploy("without")
			w.settle("with")
			w.settle("without")
			pinned := func(version int32) int32 { return w.version("with", version).GetSpec().GetSecrets()[0].GetVersion() }
			require.Equal(t, int32(1), pinned(1))

			res := w.setSecret("token", "two")
			require.Equal(t, []string{with.GetAppId()}, res.GetAppIds())
			app := w.app("with")
			require.Equal(t, []int32{2, 1}, []int32{app.GetLatestVersion(), app.GetLiveVersion()})
			require.Equal(t, int32(2), pinned(2))
			require.Equal(t, "secret", w.version("with", 2).GetSource())
			require.Equal(t, "DeploymentCreated", w.said("with")[0])
			for _, r := range w.version("with", 1).GetRegions() {
				require.Equal(t, int64(1), r.GetGeneration(), "the live version's rows do not change")
			}
			require.Equal(t, int32(1), w.app("without").GetLatestVersion())

			// Another new value during the rollout starts from the newest version.
			w.setSecret("token", "three")
			require.Equal(t, int32(3), pinned(3))
			w.settle("with")
			require.Equal(t, int32(3), w.app("with").GetLiveVersion())
			require.True(t, w.deploy("with", withSecret("token")).GetUnchanged())

			// A rollback keeps the newest value, unless the request asks for the earlier value.
			_, err := w.apps(w.deployer).Rollback(t.Context(), &windlassv1.RollbackRequest{App: "with", Version: 1})
			refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")
			require.ErrorContains(t, err, "v3, which is live, already has the configuration of v1, except for the versions of secrets")
			w.deploy("with", withSecret("token"), args("b"))
			w.settle("with")
			back, err := w.apps(w.deployer).Rollback(t.Context(), &windlassv1.RollbackRequest{App: "with", Version: 1})
			require.NoError(t, err)
			require.Equal(t, int32(3), pinned(back.GetVersion()))
			w.settle("with")
			back, err = w.apps(w.deployer).Rollback(t.Context(), &windlassv1.RollbackRequest{App: "with", Version: 1, WithSecrets: true})
			require.NoError(t, err)
			require.Equal(t, int32(1), pinned(back.GetVersion()))
		})
	}
}

func TestPullSecret_NewValueIsSent(t *testing.T) {
	w := setup(t)
	w.setSecret("registry", "{}")
	with := w.deploy("with", func(s *windlassv1.DeploymentSpec) {
		s.Image, s.Secrets = "registry.test/chat@sha256:"+strings.Repeat("0", 64), []*windlassv1.SecretReference{{Secret: "registry", ImagePull: true, Version: 7}}
	})
	w.settle("with")
	require.Zero(t, w.version("with", 1).GetSpec().GetSecrets()[0].GetVersion(), "no caller sets a version")
	require.Equal(t, []string{with.GetAppId()}, w.setSecret("registry", "{ }").GetAppIds())
	for _, r := range w.version("with", 1).GetRegions() {
		require.Equal(t, int64(2), r.GetGeneration())
	}
	require.Equal(t, "SecretRotated", w.said("with")[0])
	require.Equal(t, int32(1), w.app("with").GetLatestVersion(), "no version is made, because no instance must be replaced")
}

func TestSecret_InUseIsKept(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	w.setSecret("token", "one")
	remove := func() error {
		_, err := w.environments(w.deployer).DeleteSecret(ctx, &windlassv1.DeleteSecretRequest{Environment: "production", Name: "token"})
		return err
	}
	w.deploy("chat", withSecret("token"))
	refused(t, remove(), connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_IN_USE, "")
	w.settle("chat")
	refused(t, remove(), connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_IN_USE, "")
	w.deploy("chat")
	w.settle("chat")
	require.NoError(t, remove())
	refused(t, remove(), connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "name")

	_, err := w.apps(w.deployer).Rollback(ctx, &windlassv1.RollbackRequest{App: "chat", Version: 1})
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_SECRET, "spec.secrets[0].secret")

	// Agents cache values by version, so a new secret must not reuse versions of the deleted one.
	require.Equal(t, int32(2), w.setSecret("token", "another").GetSecret().GetVersion())
}

func TestEnvironment_DeployersSetVariablesAndOwnersRename(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	req := &windlassv1.UpdateEnvironmentRequest{
		Environment: "default/production", Name: "live", Variables: map[string]string{"A": "1"}, ResourceVersion: 1,
	}
	_, err := w.environments(w.deployer).UpdateEnvironment(ctx, req)
	refused(t, err, connect.CodePermissionDenied, windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, "")
	req.Name = "production"
	res, err := w.environments(w.deployer).UpdateEnvironment(ctx, req)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"A": "1"}, res.GetEnvironment().GetVariables())
	require.Equal(t, "default", res.GetEnvironment().GetProjectName())
	req.Name = "live"
	_, err = w.environments(w.owner).UpdateEnvironment(ctx, req)
	refused(t, err, connect.CodeAborted, windlassv1.ErrorReason_ERROR_REASON_CONFLICT, "resourceVersion")
	req.ResourceVersion = 2
	_, err = w.environments(w.owner).UpdateEnvironment(ctx, req)
	require.NoError(t, err)
	audit, err := w.history(w.owner).ListAudit(ctx, &windlassv1.ListAuditRequest{})
	require.NoError(t, err)
	entry := audit.GetEntries()[0]
	require.Equal(t, "environment", entry.GetResourceKind())
	require.JSONEq(t, `"production"`, jsonField(t, entry.GetBefore(), "name"))
	require.JSONEq(t, `{"A":"1"}`, jsonField(t, entry.GetAfter(), "variables"))
	require.Equal(t, "owner", entry.GetActor())
	require.Contains(t, entry.GetSource(), "127.0.0.1")
	require.Contains(t, entry.GetSource(), "test/1")
	require.Equal(t, "/windlass.v1.EnvironmentService/UpdateEnvironment", entry.GetProcedure())
}

func TestSetSecret_ReturnsTheRolloutsThatItStarts(t *testing.T) {
	w := setup(t)
	w.setSecret("token", "one")
	for _, app := range []string{"chat", "other"} {
		w.deploy(app, withSecret("token"))
		w.settle(app)
	}
	res := w.setSecret("token", "two")
	require.Len(t, res.GetRollouts(), 2)
	for i, r := range res.GetRollouts() {
		app := w.app(r.GetApp())
		require.Equal(t, res.GetAppIds()[i], r.GetAppId())
		require.Equal(t, []any{app.GetId(), app.GetRolloutId(), int32(2)}, []any{r.GetAppId(), r.GetRolloutId(), r.GetVersion()})
		require.NotEmpty(t, r.GetDeploymentId())
	}
	again := w.setSecret("token", "two")
	require.Empty(t, again.GetRollouts())
}
