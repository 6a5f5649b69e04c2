package api_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// methods returns all methods of the user API, by procedure.
func methods() map[string]protoreflect.MethodDescriptor {
	found := map[string]protoreflect.MethodDescriptor{}
	protoregistry.GlobalFiles.RangeFilesByPackage("windlass.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				found["/"+string(service.FullName())+"/"+string(m.Name())] = m
			}
		}
		return true
	})
	return found
}

func TestAccess_TableHasEveryMethod(t *testing.T) {
	known := methods()
	require.NotEmpty(t, known)
	for procedure := range known {
		if _, ok := api.Access[procedure]; !ok {
			t.Errorf("%s has no row in access.go: say which role may call it", procedure)
		}
	}
	for procedure := range api.Access {
		require.Contains(t, known, procedure, "the table names a method that does not exist")
	}
}

func TestAccess_MethodsServeExactlyTheirRoles(t *testing.T) {
	w := setup(t)
	keys := map[windlassv1.Role]string{
		windlassv1.Role_ROLE_VIEWER: w.viewer, windlassv1.Role_ROLE_DEPLOYER: w.deployer,
		windlassv1.Role_ROLE_OWNER: w.owner, windlassv1.Role_ROLE_OPERATOR: w.operator,
	}
	for procedure, method := range methods() {
		if method.IsStreamingServer() {
			continue // WatchApp has its own test
		}
		status, body := w.post("", procedure, map[string]any{})
		require.Equal(t, 401, status, procedure)
		require.Equal(t, "unauthenticated", body["code"], procedure)
		for role, key := range keys {
			// The request is empty, so a caller with the right role gets an error about a missing field.
			_, body := w.post(key, procedure, map[string]any{})
			if api.Access[procedure].Allows(role) {
				require.NotContains(t, []any{"permission_denied", "unauthenticated", "unimplemented", "internal"}, body["code"],
					"%s by %s: %v", procedure, role, body)
			} else {
				require.Equal(t, "permission_denied", body["code"], "%s by %s: %v", procedure, role, body)
			}
		}
	}
}

func TestReads_AreMarkedForGetRequests(t *testing.T) {
	for procedure, method := range methods() {
		mutation := method.Input().Fields().ByName("mutation") != nil
		options, ok := method.Options().(*descriptorpb.MethodOptions)
		require.True(t, ok)
		read := options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
		require.NotEqual(t, mutation, read, procedure)
	}
}

func TestKey_RefusalSaysWhy(t *testing.T) {
	w := setup(t)
	expired := "wl_" + "expiredexpiredexpiredexpiredexpiredexpired1"
	w.update(func(tx store.Tx) error {
		return tx.InsertAPIKey(model.APIKey{
			ID: ident.New("key"), WorkspaceID: w.workspace, Name: "expired", Role: windlassv1.Role_ROLE_OWNER,
			Prefix: "wl_expir", Hash: model.HashToken(expired), CreatedAt: 1, ExpiresAt: time.Now().Add(-time.Second).UnixMilli(),
		})
	})
	for name, c := range map[string]struct{ key, message string }{
		"none":    {"", "needs an API key"},
		"garbage": {"wl_short", "not an API key"},
		"agent's": {"wla_" + "expiredexpiredexpiredexpiredexpiredexpired1", "not an API key"},
		"unknown": {"wl_" + "unknownunknownunknownunknownunknownunknown1", "unknown"},
		"expired": {expired, "expired"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.access(c.key).WhoAmI(t.Context(), &windlassv1.WhoAmIRequest{})
			refused(t, err, connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "")
			require.ErrorContains(t, err, c.message)
		})
	}
}

func TestRevocation_CountsAtOnceInTheSameProcess(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	made, err := w.access(w.owner).CreateApiKey(ctx, &windlassv1.CreateApiKeyRequest{Name: "ci", Role: windlassv1.Role_ROLE_VIEWER})
	require.NoError(t, err)
	who, err := w.access(made.GetValue()).WhoAmI(ctx, &windlassv1.WhoAmIRequest{})
	require.NoError(t, err)
	require.Equal(t, "acme", who.GetWorkspaceName())
	require.Equal(t, "ci", who.GetKey().GetName())

	_, err = w.access(w.owner).RevokeApiKey(ctx, &windlassv1.RevokeApiKeyRequest{Key: "ci"})
	require.NoError(t, err)
	_, err = w.access(made.GetValue()).WhoAmI(ctx, &windlassv1.WhoAmIRequest{})
	refused(t, err, connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "")
	require.ErrorContains(t, err, "revoked")
}

func TestRevocation_InAnotherProcessCountsWhenTheCacheExpires(t *testing.T) {
	w := setup(t, func(c *api.Config) { c.KeyCacheTTL = 20 * time.Millisecond })
	made, err := w.access(w.owner).CreateApiKey(t.Context(), &windlassv1.CreateApiKeyRequest{Name: "ci", Role: windlassv1.Role_ROLE_VIEWER})
	require.NoError(t, err)
	_, err = w.access(made.GetValue()).WhoAmI(t.Context(), &windlassv1.WhoAmIRequest{})
	require.NoError(t, err)
	w.update(func(tx store.Tx) error {
		return tx.RevokeAPIKey(w.workspace, made.GetKey().GetId(), time.Now().UnixMilli())
	})
	require.Eventually(t, func() bool {
		_, err := w.access(made.GetValue()).WhoAmI(t.Context(), &windlassv1.WhoAmIRequest{})
		return connect.CodeOf(err) == connect.CodeUnauthenticated
	}, time.Minute, 5*time.Millisecond)
}

func TestKeys_LastOwnerKeyCannotBeRevoked(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	_, err := w.access(w.owner).RevokeApiKey(ctx, &windlassv1.RevokeApiKeyRequest{Key: "owner"})
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_IN_USE, "")
	next, err := w.access(w.owner).CreateApiKey(ctx, &windlassv1.CreateApiKeyRequest{Name: "next", Role: windlassv1.Role_ROLE_OWNER})
	require.NoError(t, err)
	_, err = w.access(w.owner).RevokeApiKey(ctx, &windlassv1.RevokeApiKeyRequest{Key: "owner"})
	require.NoError(t, err)
	list, err := w.access(next.GetValue()).ListApiKeys(ctx, &windlassv1.ListApiKeysRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetKeys(), 4)
}
