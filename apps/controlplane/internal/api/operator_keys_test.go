package api_test

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestOperatorKeys_AreMadeAndRevokedByOperatorsAlone(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	create := func(key, name string, role windlassv1.Role) (*windlassv1.CreateApiKeyResponse, error) {
		return w.access(key).CreateApiKey(ctx, &windlassv1.CreateApiKeyRequest{Name: name, Role: role})
	}
	_, err := create(w.owner, "second", windlassv1.Role_ROLE_OPERATOR)
	refused(t, err, connect.CodePermissionDenied, isDenied, "")
	_, err = create(w.operator, "second", windlassv1.Role_ROLE_OWNER)
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "role")

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
