package storetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// newEndpoint makes an endpoint of the workspace for the scope. Without kinds, it asks for all kinds.
func (w *fixture) newEndpoint(name, scopeID string, kinds ...model.NotificationKind) model.NotificationEndpoint {
	w.t.Helper()
	e := model.NotificationEndpoint{
		ID: ident.New("nte"), WorkspaceID: w.ws, Name: name, ScopeID: scopeID, Format: model.FormatCloudEvents,
		Origin: "https://example.com", CreatedBy: "suite", CreatedAt: now, UpdatedAt: now,
	}
	for _, k := range kinds {
		e.Kinds |= k.Bit()
	}
	if len(kinds) == 0 {
		e.Kinds = model.AllNotificationKinds()
	}
	w.update(func(tx store.Tx) error { return tx.InsertNotificationEndpoint(e) })
	return e
}

// deliveriesOf returns the deliveries of the endpoint, newest first.
func (w *fixture) deliveriesOf(e model.NotificationEndpoint) []model.Delivery {
	w.t.Helper()
	return read(w, func(tx store.Tx) ([]model.Delivery, error) { return tx.ListDeliveries(e.ID, -1, store.Page{}) })
}

func testNotifications(t *testing.T, setup setup) {
	failed := func(w *fixture, app model.App, n int) model.History {
		return model.History{
			ID: fmt.Sprintf("hst_%032d", n), WorkspaceID: w.ws, AppID: app.ID, At: now + int64(n), What: "RolloutFailed", Why: "it's \"ü\"?",
			Who: "windlass", RolloutID: "rol_1", DeploymentID: "dep_1", Version: 7,
		}
	}
	due := func(w *fixture, at int64, busy ...string) []model.Delivery {
		return read(w, func(tx store.Tx) ([]model.Delivery, error) { return tx.DueDeliveries(at, busy, 0) })
	}
	ids := func(rows []model.Delivery) (out []string) {
		for _, d := range rows {
			out = append(out, d.MessageID)
		}
		return out
	}

	t.Run("an endpoint is what was stored, found by its name", func(t *testing.T) {
		w := setup(t)
		e := filledRow[model.NotificationEndpoint]()
		e.WorkspaceID = w.ws
		w.update(func(tx store.Tx) error { return tx.InsertNotificationEndpoint(e) })
		list := func() []model.NotificationEndpoint {
			return read(w, func(tx store.Tx) ([]model.NotificationEndpoint, error) { return tx.ListNotificationEndpoints(w.ws) })
		}
		require.Equal(t, []model.NotificationEndpoint{e}, list())
		w.requireFails(model.ErrExists, func(tx store.Tx) error {
			again := e
			again.ID = "nte_other"
			return tx.InsertNotificationEndpoint(again)
		})
		changed := filledRow[model.NotificationEndpoint]()
		changed.ID, changed.WorkspaceID, changed.ScopeID, changed.Kinds, changed.Disabled = e.ID, w.ws, "app_1", 2, false
		w.update(func(tx store.Tx) error { return tx.UpdateNotificationEndpoint(changed) })
		require.Equal(t, []model.NotificationEndpoint{changed}, list())
		require.Equal(t, changed, write(w, func(tx store.Tx) (model.NotificationEndpoint, error) {
			return tx.LockNotificationEndpoint(w.ws, e.Name)
		}))
		require.Equal(t, []model.NotificationEndpoint{changed}, read(w, func(tx store.Tx) ([]model.NotificationEndpoint, error) {
			return tx.GetNotificationEndpoints([]string{e.ID, "nte_none"})
		}))
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error {
			_, err := tx.LockNotificationEndpoint("ws_other", e.Name)
			return err
		})
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.DeleteNotificationEndpoint("ws_other", e.ID) })
	})

	t.Run("a history entry is notified with it, to the endpoints that it concerns", func(t *testing.T) {
		w := setup(t)
		app, other := w.insertApp("chat"), w.insertApp("other")
		region := w.newRegion("eu")
		whole, project, ofApp := w.newEndpoint("whole", ""), w.newEndpoint("project", w.prj), w.newEndpoint("app", app.ID)
		none := []model.NotificationEndpoint{
			w.newEndpoint("elsewhere", other.ID), w.newEndpoint("another", "prj_other"), w.newEndpoint("kinds", "", model.NotifyRegionBack, model.NotifyTest),
		}
		disabled := w.newEndpoint("disabled", "")
		disabled.Disabled = true
		stranger := whole
		stranger.ID, stranger.WorkspaceID = "nte_stranger", "ws_other"
		w.update(func(tx store.Tx) error {
			if err := tx.UpdateNotificationEndpoint(disabled); err != nil {
				return err
			}
			return tx.InsertNotificationEndpoint(stranger)
		})
		h := failed(w, app, 1)
		h.RegionID = region
		silent := failed(w, app, 2)
		silent.What = "StepReached"
		unknown := failed(w, model.App{ID: "app_none"}, 3)
		w.update(func(tx store.Tx) error { return tx.InsertHistory([]model.History{silent, h, unknown}) })
		for _, e := range []model.NotificationEndpoint{whole, project, ofApp} {
			require.Equal(t, []model.Delivery{{
				EndpointID: e.ID, MessageID: "ntf_" + h.ID[4:], WorkspaceID: w.ws, Kind: model.NotifyRolloutFailed, At: h.At, What: h.What,
				Why: h.Why, Who: h.Who, Workspace: "acme", Project: "default", Environment: "production", App: "chat", AppID: app.ID,
				Version: 7, RolloutID: "rol_1", DeploymentID: "dep_1", Region: "eu", RegionID: region, Events: 1, Apps: 1,
				AppNames: "default/production/chat", DueAt: h.At, TriesSince: h.At,
			}}, w.deliveriesOf(e))
		}
		for _, e := range append(none, disabled, stranger) {
			require.Empty(t, w.deliveriesOf(e), e.Name)
		}
	})

	t.Run("a transaction that fails notifies of nothing", func(t *testing.T) {
		w := setup(t)
		app, e := w.insertApp("chat"), w.newEndpoint("whole", "")
		w.update(func(tx store.Tx) error { return tx.InsertHistory([]model.History{failed(w, app, 1)}) })
		w.requireFails(model.ErrExists, func(tx store.Tx) error {
			return tx.InsertHistory([]model.History{failed(w, app, 2), failed(w, app, 1)})
		})
		require.Len(t, w.deliveriesOf(e), 1)
	})

	t.Run("many requests of a batch are notified, each with its own entry", func(t *testing.T) {
		w := setup(t)
		e := w.newEndpoint("whole", "")
		const n = 40
		errs := runTogether(n, func(i int) error {
			app := w.newApp(fmt.Sprintf("app-%02d", i))
			return w.s.UpdateBatched(w.t.Context(), "key", app.Name, func(tx store.Tx) (func() error, error) {
				if err := tx.InsertApp(app); err != nil {
					return nil, err
				}
				return func() error { return tx.InsertHistory([]model.History{failed(w, app, i)}) }, nil
			})
		})
		for _, err := range errs {
			require.NoError(t, err)
		}
		var apps []string
		for _, d := range w.deliveriesOf(e) {
			apps = append(apps, d.App)
		}
		require.Len(t, apps, n)
		slices.Sort(apps)
		require.Equal(t, "app-00", apps[0])
		require.Len(t, slices.Compact(apps), n)
	})

	t.Run("a region that becomes unreachable is one notification for each endpoint", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		var apps []model.App
		for i := range 30 {
			a := w.insertApp(fmt.Sprintf("app-%02d", i))
			w.put(newTopology(w.insertDeployment(a, 1), region, 1))
			apps = append(apps, a)
		}
		idle := w.insertApp("idle")
		whole, one, none := w.newEndpoint("whole", ""), w.newEndpoint("one", apps[3].ID), w.newEndpoint("none", idle.ID)
		deaf := w.newEndpoint("deaf", "", model.NotifyRolloutFailed)
		notice := model.RegionNotice{MessageID: "ntf_1", RegionID: region, Kind: model.NotifyRegionUnreachable, At: now}
		notify := func(n model.RegionNotice) { w.update(func(tx store.Tx) error { return tx.NotifyRegion(n) }) }
		notify(notice)
		require.Empty(t, w.deliveriesOf(whole), "the region is not the workspace's, and not granted")
		w.update(func(tx store.Tx) error { return tx.GrantRegion(region, w.ws, now) })
		notify(notice)
		got := w.deliveriesOf(whole)
		require.Len(t, got, 1)
		require.Equal(t, []any{"eu", region, int32(30), int32(1), "RegionUnreachable", "acme", "", now},
			[]any{got[0].Region, got[0].RegionID, got[0].Apps, got[0].Events, got[0].What, got[0].Workspace, got[0].App, got[0].DueAt})
		require.Contains(t, got[0].AppNames, "default/production/app-00 default/production/app-01 ")
		require.NotContains(t, got[0].AppNames, "app-20")
		require.Equal(t, "default/production/app-03", w.deliveriesOf(one)[0].AppNames)
		require.Empty(t, w.deliveriesOf(none))
		require.Empty(t, w.deliveriesOf(deaf))

		// A region of the workspace's own counts while it is empty, too.
		own := model.Region{ID: ident.New("reg"), WorkspaceID: w.ws, Name: "own", Status: windlassv1.RegionStatus_REGION_STATUS_PENDING}
		w.update(func(tx store.Tx) error { return tx.InsertRegion(own) })
		notify(model.RegionNotice{MessageID: "ntf_2", RegionID: own.ID, Kind: model.NotifyRegionBack, At: now})
		require.Equal(t, "RegionReturned", w.deliveriesOf(whole)[0].What)
		require.Empty(t, w.deliveriesOf(none))
	})

	t.Run("a delivery is claimed once, and the last claim stores the outcome", func(t *testing.T) {
		w := setup(t)
		app, e, slow := w.insertApp("chat"), w.newEndpoint("a", ""), w.newEndpoint("slow", "")
		w.update(func(tx store.Tx) error {
			return tx.InsertHistory([]model.History{failed(w, app, 1), failed(w, app, 2)})
		})
		require.Empty(t, due(w, now))
		require.Len(t, due(w, now+1), 2)
		require.Equal(t, []string{"ntf_" + failed(w, app, 1).ID[4:], "ntf_" + failed(w, app, 2).ID[4:]}, ids(due(w, now+10, slow.ID)))
		d := due(w, now+10, slow.ID)[0]
		claim := func(tx store.Tx) error { return tx.ClaimDelivery(d, now+60, nil) }
		w.update(claim)
		w.requireFails(model.ErrConflict, claim)
		require.Len(t, due(w, now+10, slow.ID), 1)
		again := due(w, now+60, slow.ID)
		require.Len(t, again, 2, "a claim without an outcome ends")
		stored := again[1]
		require.Equal(t, []any{d.MessageID, int32(1)}, []any{stored.MessageID, stored.Attempts})

		first := stored
		w.update(func(tx store.Tx) error { return tx.ClaimDelivery(stored, now+120, nil) })
		first.State, first.DoneAt, first.DueAt = model.DeliveryDelivered, now+61, now+100
		w.requireFails(model.ErrConflict, func(tx store.Tx) error { return tx.NoteDelivery(first) })
		first.Attempts, first.Problem = 2, "it was slow"
		w.update(func(tx store.Tx) error { return tx.NoteDelivery(first) })
		require.Equal(t, first, w.deliveriesOf(e)[1])
		w.requireFails(model.ErrConflict, func(tx store.Tx) error { return tx.NoteDelivery(first) })
		delivered := read(w, func(tx store.Tx) ([]model.Delivery, error) {
			return tx.ListDeliveries(e.ID, model.DeliveryDelivered, store.Page{Limit: 1})
		})
		require.Equal(t, []model.Delivery{first}, delivered)
		newest := w.deliveriesOf(e)[0].MessageID
		require.Equal(t, []string{first.MessageID}, ids(read(w, func(tx store.Tx) ([]model.Delivery, error) {
			return tx.ListDeliveries(e.ID, -1, store.Page{After: newest, Limit: 5})
		})))

		n, since := 0, int64(0)
		require.NoError(t, w.s.View(t.Context(), func(tx store.Tx) (err error) {
			n, since, err = tx.PendingDeliveries()
			return err
		}))
		require.Equal(t, []int64{3, now + 1}, []int64{int64(n), since})
		require.Equal(t, []model.DeliveryCount{{EndpointID: e.ID, Count: 1}, {EndpointID: slow.ID, Count: 2}},
			read(w, func(tx store.Tx) ([]model.DeliveryCount, error) { return tx.CountDeliveries(w.ws) }))
		require.Zero(t, write(w, func(tx store.Tx) (int, error) { return tx.ForgetDeliveries(now+99, 10) }))
		require.Equal(t, 1, write(w, func(tx store.Tx) (int, error) { return tx.ForgetDeliveries(now+100, 10) }))
		require.Len(t, w.deliveriesOf(e), 1)
	})

	t.Run("deliveries are merged as a whole or not at all", func(t *testing.T) {
		w := setup(t)
		app, e := w.insertApp("chat"), w.newEndpoint("a", "")
		w.update(func(tx store.Tx) error {
			return tx.InsertHistory([]model.History{failed(w, app, 1), failed(w, app, 2), failed(w, app, 3)})
		})
		rows := due(w, now+10)
		require.Len(t, rows, 3)
		w.update(func(tx store.Tx) error { return tx.ClaimDelivery(rows[2], now+60, nil) })
		lead := rows[0]
		lead.Events, lead.Apps, lead.AppNames = 2, 1, "default/production/chat"
		w.requireFails(model.ErrConflict, func(tx store.Tx) error { return tx.ClaimDelivery(lead, now+60, ids(rows[1:])) })
		require.Len(t, w.deliveriesOf(e), 3)
		w.update(func(tx store.Tx) error { return tx.ClaimDelivery(lead, now+60, ids(rows[1:2])) })
		left := w.deliveriesOf(e)
		require.Len(t, left, 2)
		require.Equal(t, []int32{2, 1}, []int32{left[1].Events, left[1].Attempts})
	})

	t.Run("dead deliveries are replayed with the ids that they had", func(t *testing.T) {
		w := setup(t)
		app, e, other := w.insertApp("chat"), w.newEndpoint("a", ""), w.newEndpoint("b", "")
		w.update(func(tx store.Tx) error {
			return tx.InsertHistory([]model.History{failed(w, app, 1), failed(w, app, 2)})
		})
		for _, d := range due(w, now+10) {
			w.update(func(tx store.Tx) error {
				if err := tx.ClaimDelivery(d, now+60, nil); err != nil {
					return err
				}
				d.Attempts, d.State, d.DoneAt, d.DueAt, d.Problem = 1, model.DeliveryDead, now+20, now+90, "refused"
				return tx.NoteDelivery(d)
			})
		}
		first := w.deliveriesOf(e)[1].MessageID
		require.Equal(t, 1, write(w, func(tx store.Tx) (int, error) { return tx.ReplayDeliveries(e.ID, first, now+30) }))
		require.Zero(t, write(w, func(tx store.Tx) (int, error) { return tx.ReplayDeliveries(e.ID, first, now+31) }))
		again := due(w, now+30)
		require.Equal(t, []string{first}, ids(again))
		require.Equal(t, []any{now + 30, int32(1), int64(0), "refused"}, []any{again[0].TriesSince, again[0].Attempts, again[0].DoneAt, again[0].Problem})
		require.Equal(t, 1, write(w, func(tx store.Tx) (int, error) { return tx.ReplayDeliveries(e.ID, "", now+30) }))
		require.Equal(t, []model.DeliveryState{model.DeliveryDead, model.DeliveryDead}, []model.DeliveryState{w.deliveriesOf(other)[0].State, w.deliveriesOf(other)[1].State})
	})

	t.Run("endpoints are deleted with their scope, with their secrets and deliveries", func(t *testing.T) {
		w := setup(t)
		app := w.insertApp("chat")
		whole, project, ofApp := w.newEndpoint("whole", ""), w.newEndpoint("project", w.prj), w.newEndpoint("app", app.ID)
		w.update(func(tx store.Tx) error {
			for _, e := range []model.NotificationEndpoint{whole, project, ofApp} {
				s := model.Secret{WorkspaceID: w.ws, EnvironmentID: e.ID, Name: model.EndpointSecret, Version: 1, Ciphertext: []byte{1}, CreatedAt: now, UpdatedAt: now}
				if err := tx.InsertSecretVersion(s); err != nil {
					return err
				}
			}
			return tx.InsertHistory([]model.History{failed(w, app, 1)})
		})
		gone := func(e model.NotificationEndpoint) {
			t.Helper()
			require.Empty(t, w.deliveriesOf(e))
			requireMissing(w, func(tx store.Tx) (model.Secret, error) { return tx.GetSecret(w.ws, e.ID, model.EndpointSecret) })
			require.Empty(t, read(w, func(tx store.Tx) ([]model.NotificationEndpoint, error) {
				return tx.GetNotificationEndpoints([]string{e.ID})
			}))
		}
		w.update(func(tx store.Tx) error { return tx.DeleteNotificationEndpointsOf(w.ws, w.prj) })
		gone(project)
		require.Len(t, w.deliveriesOf(ofApp), 1)
		w.update(func(tx store.Tx) error {
			a, err := tx.LockApp(w.ws, app.ID)
			if err != nil {
				return err
			}
			a.DeletedAt = now
			if err := tx.UpdateApp(a); err != nil {
				return err
			}
			_, err = tx.DeleteApps(now+1, 10)
			return err
		})
		gone(ofApp)
		require.Len(t, w.deliveriesOf(whole), 1)
		w.update(func(tx store.Tx) error { return tx.DeleteWorkspace(w.ws) })
		gone(whole)
		require.Empty(t, read(w, func(tx store.Tx) (map[uint32]int64, error) { return tx.CountSealedValues() }))
	})
}
