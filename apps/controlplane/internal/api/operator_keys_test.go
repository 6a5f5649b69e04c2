package api_test

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestOperatorKeys_OnlyOperatorsMakeAndRevokeThem(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	create := func(key, name string, role windlassv1.Role) (*windlassv1.CreateApiKeyResponse, error) {
		return w.access(key).CreateApiKey(ctx, &windlassv1.CreateApiKeyRequest{Name: name, Role: role})
	}
	_, err := create(w.owner, "second", windlassv1.Role_ROLE_OPERATOR)
	refused(t, err, connect.CodePermissionDenied, isDenied, "")
	_, err = create(w.operator, "second", windlassv1.Role_ROLE_OWNER)
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "workspace")

	revoke := func(key, name string) error {
		_, err := w.access(key).RevokeApiKey(ctx, &windlassv1.RevokeApiKeyRequest{Key: name})
		return err
	}
	err = revoke(w.operator, "operator")
	refused(t, err, failed, windlassv1.ErrorReason_ERROR_REASON_IN_USE, "")
	require.ErrorContains(t, err, "key operator is the platform's last operator key that does not expire")
	second, err := create(w.operator, "second", windlassv1.Role_ROLE_OPERATOR)
	require.NoError(t, err)
	require.Empty(t, second.GetKey().GetWorkspaceId())
	require.NoError(t, revoke(second.GetValue(), "operator"))
	_, err = w.workspaces(second.GetValue()).ListWorkspaces(ctx, &windlassv1.ListWorkspacesRequest{})
	require.NoError(t, err)
	_, err = w.workspaces(w.operator).ListWorkspaces(ctx, &windlassv1.ListWorkspacesRequest{})
	refused(t, err, connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "")
	refused(t, revoke(w.owner, "second"), connect.CodeNotFound, notFound, "key")
}

func TestOperatorKeys_WorkspaceKeyMadeByAnOperatorBeginsAFamily(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		create := func(key, name, workspace string, role windlassv1.Role) (*windlassv1.CreateApiKeyResponse, error) {
			return w.access(key).CreateApiKey(ctx, &windlassv1.CreateApiKeyRequest{Name: name, Role: role, Workspace: workspace})
		}
		_, err := create(w.owner, "bob", "rival", windlassv1.Role_ROLE_OWNER)
		refused(t, err, connect.CodePermissionDenied, isDenied, "")
		_, err = create(w.operator, "bob", "acme", windlassv1.Role_ROLE_OPERATOR)
		refused(t, err, connect.CodeInvalidArgument, validation, "workspace")
		_, err = create(w.operator, "bob", "nothing", windlassv1.Role_ROLE_OWNER)
		refused(t, err, connect.CodeNotFound, notFound, "workspace")
		bob, err := create(w.operator, "bob", "acme", windlassv1.Role_ROLE_OWNER)
		require.NoError(t, err)
		require.Equal(t, bob.GetKey().GetId(), bob.GetKey().GetFamily())
		first, err := create(bob.GetValue(), "bob-2", "", windlassv1.Role_ROLE_OWNER)
		require.NoError(t, err)
		second, err := create(first.GetValue(), "bob-3", "", windlassv1.Role_ROLE_DEPLOYER)
		require.NoError(t, err)
		require.Equal(t, bob.GetKey().GetId(), second.GetKey().GetFamily())
		require.Equal(t, first.GetKey().GetId(), second.GetKey().GetMadeBy())
		for name, key := range map[string]string{"the workspace's": w.owner, "the platform's": w.operator} {
			audit, err := w.history(key).ListAudit(ctx, &windlassv1.ListAuditRequest{Page: &windlassv1.PageRequest{Size: 200}})
			require.NoError(t, err)
			var has bool
			for _, e := range audit.GetEntries() {
				has = has || e.GetActor() == "operator" && e.GetResourceId() == bob.GetKey().GetId()
			}
			require.True(t, has, name+" audit has it")
		}
	})
}
