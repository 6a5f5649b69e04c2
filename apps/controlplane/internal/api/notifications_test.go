package api_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/notification"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const hookURL = "https://hooks.example/services/T0/hunter2"

// setEndpoint sets an endpoint, whether or not it exists.
func (h *harness) setEndpoint(req *windlassv1.SetNotificationEndpointRequest) *windlassv1.SetNotificationEndpointResponse {
	h.t.Helper()
	res, err := h.notifications(h.owner).SetNotificationEndpoint(h.t.Context(), req)
	require.NoError(h.t, err)
	return res
}

// targetOf returns the opened target of the endpoint.
func (h *harness) targetOf(id string) (t notification.Target) {
	h.t.Helper()
	h.update(func(tx store.Tx) error {
		s, err := tx.GetSecret(h.workspace, id, model.EndpointSecret)
		if err != nil {
			return err
		}
		plain, err := h.box.Open(s.Ciphertext, model.SecretContext(id, model.EndpointSecret, s.Version))
		if err != nil {
			return err
		}
		t, err = notification.ParseTarget(plain)
		return err
	})
	return t
}

func (h *harness) deliveriesOf(name string, state windlassv1.NotificationDelivery_State) []*windlassv1.NotificationDelivery {
	h.t.Helper()
	res, err := h.notifications(h.viewer).ListNotificationDeliveries(h.t.Context(), &windlassv1.ListNotificationDeliveriesRequest{Endpoint: name, State: state})
	require.NoError(h.t, err)
	return res.GetDeliveries()
}

func TestNotificationEndpoint_IsSetChangedAndRemoved(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		made := w.setEndpoint(&windlassv1.SetNotificationEndpointRequest{Name: "pager", Url: hookURL, Mutation: &windlassv1.Mutation{IdempotencyKey: "k"}})
		require.True(t, strings.HasPrefix(made.GetSecret(), "whsec_"))
		require.Equal(t, "https://hooks.example", made.GetEndpoint().GetOrigin())
		require.Len(t, made.GetEndpoint().GetKinds(), len(model.NotificationKinds()))
		require.Equal(t, windlassv1.NotificationFormat_NOTIFICATION_FORMAT_CLOUDEVENTS, made.GetEndpoint().GetFormat())
		again := w.setEndpoint(&windlassv1.SetNotificationEndpointRequest{Name: "pager", Url: hookURL, Mutation: &windlassv1.Mutation{IdempotencyKey: "k"}})
		require.Equal(t, []any{made.GetEndpoint().GetId(), ""}, []any{again.GetEndpoint().GetId(), again.GetSecret()}, "a repeated call shows no secret")

		target := w.targetOf(made.GetEndpoint().GetId())
		require.Equal(t, notification.Target{URL: hookURL, Secrets: []notification.SigningSecret{{Value: made.GetSecret()}}}, target)
		for _, secret := range []string{"hunter2", made.GetSecret()} {
			require.NotContains(t, w.dump(), secret, "no row, audit or idempotency record has the secret in the clear")
		}

		// First without a change, then with changes of everything except the secret and the URL.
		require.True(t, w.setEndpoint(&windlassv1.SetNotificationEndpointRequest{Name: "pager"}).GetUnchanged())
		w.deploy("chat")
		changed := w.setEndpoint(&windlassv1.SetNotificationEndpointRequest{
			Name: "pager", App: "chat", Format: windlassv1.NotificationFormat_NOTIFICATION_FORMAT_SLACK, Disabled: true,
			Kinds: []windlassv1.NotificationKind{windlassv1.NotificationKind_NOTIFICATION_KIND_REGION_BACK},
		})
		require.Empty(t, changed.GetSecret())
		require.Equal(t, "default/production/chat", changed.GetEndpoint().GetApp())
		require.Equal(t, target, w.targetOf(made.GetEndpoint().GetId()))
		w.setEndpoint(&windlassv1.SetNotificationEndpointRequest{Name: "pager", Url: "http://other.example/x", Project: "default"})
		list, err := w.notifications(w.viewer).ListNotificationEndpoints(ctx, &windlassv1.ListNotificationEndpointsRequest{})
		require.NoError(t, err)
		require.Len(t, list.GetEndpoints(), 1)
		require.Equal(t, []any{"http://other.example", "default", "", false},
			[]any{list.GetEndpoints()[0].GetOrigin(), list.GetEndpoints()[0].GetProject(), list.GetEndpoints()[0].GetApp(), list.GetEndpoints()[0].GetDisabled()})
		require.Equal(t, target.Secrets, w.targetOf(made.GetEndpoint().GetId()).Secrets)

		audit, err := w.history(w.owner).ListAudit(ctx, &windlassv1.ListAuditRequest{})
		require.NoError(t, err)
		require.Equal(t, "notification_endpoint", audit.GetEntries()[0].GetResourceKind())

		_, err = w.notifications(w.owner).RemoveNotificationEndpoint(ctx, &windlassv1.RemoveNotificationEndpointRequest{Name: "pager"})
		require.NoError(t, err)
		_, err = w.notifications(w.owner).RemoveNotificationEndpoint(ctx, &windlassv1.RemoveNotificationEndpointRequest{Name: "pager"})
		require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, rpc.DetailOf(err).GetReason())
	})
}

func TestNotificationEndpoint_InvalidIsRefusedByField(t *testing.T) {
	w := setup(t, func(cfg *api.Config) { cfg.AllowsHookAt = func(a netip.Addr) bool { return !a.IsLoopback() } })
	ctx := t.Context()
	w.deploy("chat")
	for name, c := range map[string]struct {
		req   *windlassv1.SetNotificationEndpointRequest
		field string
	}{
		"no url":            {&windlassv1.SetNotificationEndpointRequest{Name: "a"}, "url"},
		"no http":           {&windlassv1.SetNotificationEndpointRequest{Name: "a", Url: "ftp://example.com"}, "url"},
		"a password":        {&windlassv1.SetNotificationEndpointRequest{Name: "a", Url: "https://u:hunter2@example.com"}, "url"},
		"a private address": {&windlassv1.SetNotificationEndpointRequest{Name: "a", Url: "http://127.0.0.1:8080/"}, "url"},
		"two scopes":        {&windlassv1.SetNotificationEndpointRequest{Name: "a", Url: hookURL, Project: "default", App: "chat"}, "app"},
		"an unknown app":    {&windlassv1.SetNotificationEndpointRequest{Name: "a", Url: hookURL, App: "none"}, "app"},
		"the test kind": {&windlassv1.SetNotificationEndpointRequest{
			Name: "a", Url: hookURL, Kinds: []windlassv1.NotificationKind{windlassv1.NotificationKind_NOTIFICATION_KIND_TEST},
		}, "kinds"},
		"a bad name": {&windlassv1.SetNotificationEndpointRequest{Name: "A", Url: hookURL}, "name"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.notifications(w.owner).SetNotificationEndpoint(ctx, c.req)
			require.Error(t, err)
			require.Contains(t, rpc.DetailOf(err).GetField(), c.field)
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
	for i := range model.MaxNotificationEndpoints {
		w.setEndpoint(&windlassv1.SetNotificationEndpointRequest{Name: fmt.Sprintf("e-%d", i), Url: hookURL})
	}
	_, err := w.notifications(w.owner).SetNotificationEndpoint(ctx, &windlassv1.SetNotificationEndpointRequest{Name: "more", Url: hookURL})
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, rpc.DetailOf(err).GetReason())
	w.setEndpoint(&windlassv1.SetNotificationEndpointRequest{Name: "e-0", Disabled: true})

	// Another workspace sees no endpoint, and a deployer cannot change endpoints.
	list, err := w.notifications(w.rival).ListNotificationEndpoints(ctx, &windlassv1.ListNotificationEndpointsRequest{})
	require.NoError(t, err)
	require.Empty(t, list.GetEndpoints())
	_, err = w.notifications(w.rival).ListNotificationDeliveries(ctx, &windlassv1.ListNotificationDeliveriesRequest{Endpoint: "e-1"})
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, rpc.DetailOf(err).GetReason())
	_, err = w.notifications(w.deployer).SetNotificationEndpoint(ctx, &windlassv1.SetNotificationEndpointRequest{Name: "e-1"})
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, rpc.DetailOf(err).GetReason())
}

func TestNotificationSecret_Rotates(t *testing.T) {
	w := setup(t)
	made := w.setEndpoint(&windlassv1.SetNotificationEndpointRequest{Name: "pager", Url: hookURL})
	rotate := func(keep int64) *windlassv1.RotateNotificationSecretResponse {
		res, err := w.notifications(w.owner).RotateNotificationSecret(t.Context(), &windlassv1.RotateNotificationSecretRequest{Name: "pager", KeepPreviousSeconds: keep})
		require.NoError(t, err)
		return res
	}
	second := rotate(0)
	require.NotEqual(t, made.GetSecret(), second.GetSecret())
	until := second.GetEndpoint().GetPreviousSecretUntil()
	require.InDelta(t, time.Now().Add(24*time.Hour).UnixMilli(), until, 60_000)
	require.Equal(t, []notification.SigningSecret{{Value: second.GetSecret()}, {Value: made.GetSecret(), Until: until}}, w.targetOf(made.GetEndpoint().GetId()).Secrets)
	third := rotate(-1)
	require.Zero(t, third.GetEndpoint().GetPreviousSecretUntil())
	require.Equal(t, []notification.SigningSecret{{Value: third.GetSecret()}}, w.targetOf(made.GetEndpoint().GetId()).Secrets)
}

func TestNotificationTest_IsSentAndLimited(t *testing.T) {
	w := setup(t)
	w.setEndpoint(&windlassv1.SetNotificationEndpointRequest{Name: "pager", Url: hookURL})
	test := func() (*windlassv1.TestNotificationEndpointResponse, error) {
		return w.notifications(w.owner).TestNotificationEndpoint(t.Context(), &windlassv1.TestNotificationEndpointRequest{Name: "pager"})
	}
	sent, err := test()
	require.NoError(t, err)
	got := w.deliveriesOf("pager", windlassv1.NotificationDelivery_STATE_UNSPECIFIED)
	require.Len(t, got, 1)
	require.Equal(t, []any{sent.GetDelivery().GetId(), windlassv1.NotificationKind_NOTIFICATION_KIND_TEST, windlassv1.NotificationDelivery_STATE_PENDING},
		[]any{got[0].GetId(), got[0].GetKind(), got[0].GetState()})
	_, err = test()
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED, rpc.DetailOf(err).GetReason())
	w.setEndpoint(&windlassv1.SetNotificationEndpointRequest{Name: "pager", Disabled: true})
	_, err = test()
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, rpc.DetailOf(err).GetReason())
}

func TestNotifications_AreReplayed(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	e := w.setEndpoint(&windlassv1.SetNotificationEndpointRequest{Name: "pager", Url: hookURL}).GetEndpoint()
	var ids []string
	w.update(func(tx store.Tx) error {
		var rows []model.Delivery
		for range 3 {
			d := model.Delivery{
				EndpointID: e.GetId(), MessageID: ident.New("ntf"), WorkspaceID: w.workspace, Kind: model.NotifyRolloutFailed, Why: "CrashLoop", Events: 1,
				Apps: 1, Attempts: 9, State: model.DeliveryDead, Problem: "the connection is refused", DueAt: 9e15,
			}
			rows, ids = append(rows, d), append(ids, d.MessageID)
		}
		return tx.InsertDeliveries(rows)
	})
	replay := func(id string) (*windlassv1.ReplayNotificationsResponse, error) {
		return w.notifications(w.owner).ReplayNotifications(ctx, &windlassv1.ReplayNotificationsRequest{Endpoint: "pager", Id: id})
	}
	list, err := w.notifications(w.viewer).ListNotificationEndpoints(ctx, &windlassv1.ListNotificationEndpointsRequest{})
	require.NoError(t, err)
	require.Equal(t, []int64{3, 0}, []int64{list.GetEndpoints()[0].GetDead(), list.GetEndpoints()[0].GetPending()})
	page, err := w.notifications(w.viewer).ListNotificationDeliveries(ctx, &windlassv1.ListNotificationDeliveriesRequest{
		Endpoint: "pager", State: windlassv1.NotificationDelivery_STATE_DEAD, Page: &windlassv1.PageRequest{Size: 2},
	})
	require.NoError(t, err)
	require.Equal(t, []string{ids[2], ids[1]}, []string{page.GetDeliveries()[0].GetId(), page.GetDeliveries()[1].GetId()})
	require.NotEmpty(t, page.GetPage().GetNext())

	// Another workspace finds neither the endpoint nor, through its own endpoint of the same name, the notification.
	theirs := w.notifications(w.rival)
	calls := map[string]func() error{
		"replay": func() error {
			_, err := theirs.ReplayNotifications(ctx, &windlassv1.ReplayNotificationsRequest{Endpoint: "pager", Id: ids[0]})
			return err
		},
		"deliveries": func() error {
			_, err := theirs.ListNotificationDeliveries(ctx, &windlassv1.ListNotificationDeliveriesRequest{Endpoint: "pager"})
			return err
		},
		"rotate": func() error {
			_, err := theirs.RotateNotificationSecret(ctx, &windlassv1.RotateNotificationSecretRequest{Name: "pager"})
			return err
		},
		"test": func() error {
			_, err := theirs.TestNotificationEndpoint(ctx, &windlassv1.TestNotificationEndpointRequest{Name: "pager"})
			return err
		},
		"remove": func() error {
			_, err := theirs.RemoveNotificationEndpoint(ctx, &windlassv1.RemoveNotificationEndpointRequest{Name: "pager"})
			return err
		},
	}
	for name, call := range calls {
		require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, rpc.DetailOf(call()).GetReason(), name)
	}
	_, err = theirs.SetNotificationEndpoint(ctx, &windlassv1.SetNotificationEndpointRequest{Name: "pager", Url: "https://hooks.example/rival"})
	require.NoError(t, err)
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, rpc.DetailOf(calls["replay"]()).GetReason(), "through its own endpoint")
	require.Equal(t, hookURL, w.targetOf(e.GetId()).URL)

	_, err = replay("ntf_none")
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, rpc.DetailOf(err).GetReason())
	one, err := replay(ids[0])
	require.NoError(t, err)
	require.Equal(t, int32(1), one.GetReplayed())
	require.Equal(t, ids[0], w.deliveriesOf("pager", windlassv1.NotificationDelivery_STATE_PENDING)[0].GetId())
	rest, err := replay("")
	require.NoError(t, err)
	require.Equal(t, int32(2), rest.GetReplayed())
	none, err := replay("")
	require.NoError(t, err)
	require.Zero(t, none.GetReplayed())
}
