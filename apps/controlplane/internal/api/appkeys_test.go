package api_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestAppKey_IsSentToItsRegions(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		w.deploy("chat", args("a"))
		app := w.settle("chat")
		create := func(name string, expires int64) (*windlassv1.CreateAppKeyResponse, error) {
			return w.routes(w.deployer).CreateAppKey(t.Context(), &windlassv1.CreateAppKeyRequest{App: "chat", Name: name, ExpiresAt: expires})
		}
		// told returns the names and hashes of the app's keys. All regions must have the same.
		keysInRoutes := func() (names []string, hashes [][]byte) {
			t.Helper()
			w.update(func(tx store.Tx) error {
				routes, err := tx.ListRoutes([]string{app.GetId()})
				require.NoError(t, err)
				require.Len(t, routes, 2)
				require.Equal(t, routes[0].Keys, routes[1].Keys)
				keys, err := routes[0].AppKeys()
				for _, k := range keys {
					names, hashes = append(names, k.Name), append(hashes, k.Hash)
				}
				return err
			})
			return names, hashes
		}
		stable := func() *windlassv1.Route {
			for _, r := range w.routesOf("chat") {
				if r.GetKind() == windlassv1.Route_KIND_STABLE {
					return r
				}
			}
			return nil
		}
		made, err := create("mobile", 0)
		require.NoError(t, err)
		require.Regexp(t, "^wlk_[-_0-9A-Za-z]{43}$", made.GetValue())
		require.Equal(t, []string{"mobile", "default/production/chat", made.GetValue()[:8]},
			[]string{made.GetKey().GetName(), made.GetKey().GetApp(), made.GetKey().GetPrefix()})
		require.Equal(t, windlassv1.RouteState_ROUTE_STATE_PROVISIONING, stable().GetState())
		generation := stable().GetRegions()[0].GetGeneration()
		w.settle("chat")
		require.Equal(t, windlassv1.RouteState_ROUTE_STATE_RUNNING, stable().GetState())
		require.Equal(t, generation+1, stable().GetRegions()[0].GetGeneration())
		names, hashes := keysInRoutes()
		require.Equal(t, []string{"mobile"}, names)
		require.Equal(t, [][]byte{model.HashToken(made.GetValue())}, hashes)

		_, err = create("mobile", 0)
		refused(t, err, connect.CodeAlreadyExists, windlassv1.ErrorReason_ERROR_REASON_ALREADY_EXISTS, "name")
		_, err = create("Mobile", 0)
		refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "name")
		_, err = create("late", 1)
		refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "expiresAt")
		_, err = w.routes(w.viewer).CreateAppKey(t.Context(), &windlassv1.CreateAppKeyRequest{App: "chat", Name: "b"})
		require.Equal(t, connect.CodePermissionDenied, connect.CodeOf(err))
		_, err = create("batch", time.Now().Add(time.Hour).UnixMilli())
		require.NoError(t, err)
		w.settle("chat")
		names, _ = keysInRoutes()
		require.Equal(t, []string{"batch", "mobile"}, names)
		list, err := w.routes(w.viewer).ListAppKeys(t.Context(), &windlassv1.ListAppKeysRequest{App: "chat"})
		require.NoError(t, err)
		require.Len(t, list.GetKeys(), 2)
		require.NotZero(t, list.GetKeys()[0].GetExpiresAt())

		// The keys stay when the version changes, and are revoked one by one.
		w.versions("chat", "b")
		names, _ = keysInRoutes()
		require.Equal(t, []string{"batch", "mobile"}, names)
		revoke := func(name string) error {
			_, err := w.routes(w.deployer).RevokeAppKey(t.Context(), &windlassv1.RevokeAppKeyRequest{App: "chat", Name: name})
			return err
		}
		require.NoError(t, revoke("mobile"))
		require.Equal(t, windlassv1.RouteState_ROUTE_STATE_PROVISIONING, stable().GetState())
		w.settle("chat")
		names, _ = keysInRoutes()
		require.Equal(t, []string{"batch"}, names)
		refused(t, revoke("mobile"), connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "name")
		require.NoError(t, revoke("batch"))
		w.settle("chat")
		names, _ = keysInRoutes()
		require.Empty(t, names)
		require.Equal(t, windlassv1.RouteState_ROUTE_STATE_RUNNING, stable().GetState())
	})
}

func TestAppKeys_NumberIsLimited(t *testing.T) {
	w := setup(t)
	w.deploy("chat", args("a"))
	app := w.settle("chat")
	w.update(func(tx store.Tx) error {
		for i := range model.MaxAppKeys {
			k := model.AppKey{AppID: app.GetId(), Name: "k" + string(rune('a'+i/26)) + string(rune('a'+i%26)), WorkspaceID: app.GetWorkspaceId(), Hash: []byte{byte(i)}}
			if err := tx.InsertAppKey(k); err != nil {
				return err
			}
		}
		return nil
	})
	_, err := w.routes(w.deployer).CreateAppKey(t.Context(), &windlassv1.CreateAppKeyRequest{App: "chat", Name: "more"})
	refused(t, err, connect.CodeResourceExhausted, windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "app key")
}
