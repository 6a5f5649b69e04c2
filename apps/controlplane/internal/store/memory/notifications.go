package memory

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func (t *tx) InsertNotificationEndpoint(e model.NotificationEndpoint) error {
	return endpointTable.overlayIn(t).insert(e)
}

func (t *tx) UpdateNotificationEndpoint(e model.NotificationEndpoint) error {
	stored, ok, err := endpointTable.overlayIn(t).lock(e.ID)
	if err != nil {
		return err
	}
	if !ok || stored.WorkspaceID != e.WorkspaceID {
		return notFound("notification endpoint", e.Name)
	}
	e.Name, e.CreatedBy, e.CreatedAt = stored.Name, stored.CreatedBy, stored.CreatedAt
	return endpointTable.overlayIn(t).put(e)
}

func (t *tx) LockNotificationEndpoint(workspaceID, name string) (model.NotificationEndpoint, error) {
	e, ok := endpointTable.overlayIn(t).find(0, workspaceID+"\x00"+name)
	if !ok {
		if t.readOnly {
			return e, errReadOnly
		}
		return e, notFound("notification endpoint", name)
	}
	e, ok, err := endpointTable.overlayIn(t).lock(e.ID)
	if err != nil {
		return e, err
	}
	return oneRow(e, ok, "notification endpoint", name)
}

func (t *tx) ListNotificationEndpoints(workspaceID string) ([]model.NotificationEndpoint, error) {
	rows := endpointTable.overlayIn(t).list(func(e model.NotificationEndpoint) bool { return e.WorkspaceID == workspaceID })
	return pageOf(rows, store.Page{Limit: model.ListedNotificationEndpoints}, func(e model.NotificationEndpoint) string { return e.Name }), nil
}

func (t *tx) GetNotificationEndpoints(ids []string) (rows []model.NotificationEndpoint, err error) {
	for _, id := range sortDistinct(ids) {
		if e, ok := endpointTable.overlayIn(t).get(id); ok {
			rows = append(rows, e)
		}
	}
	return rows, nil
}

func (t *tx) NotificationEndpointsOfRegion(regionID string, k model.NotificationKind) ([]model.NotificationEndpoint, error) {
	region, ok := regionTable.overlayIn(t).get(regionID)
	rows := endpointTable.overlayIn(t).list(func(e model.NotificationEndpoint) bool {
		return e.Wants(k) && (ok && e.WorkspaceID == region.WorkspaceID)
	})
	for _, e := range endpointTable.overlayIn(t).list(func(e model.NotificationEndpoint) bool { return e.Wants(k) }) {
		if _, granted := grantTable.overlayIn(t).get(pair{regionID, e.WorkspaceID}); granted {
			rows = append(rows, e)
		}
	}
	slices.SortFunc(rows, func(a, b model.NotificationEndpoint) int {
		return cmp.Or(cmp.Compare(a.WorkspaceID, b.WorkspaceID), cmp.Compare(a.Name, b.Name))
	})
	return rows, nil
}

func (t *tx) DeleteNotificationEndpoint(workspaceID, id string) error {
	e, ok, err := endpointTable.overlayIn(t).lock(id)
	if err != nil {
		return err
	}
	if !ok || e.WorkspaceID != workspaceID {
		return notFound("notification endpoint", id)
	}
	if err := t.deleteSecretsOf(id); err != nil {
		return err
	}
	for _, d := range deliveryTable.overlayIn(t).list(func(d model.Delivery) bool { return d.EndpointID == id }) {
		if err := deliveryTable.overlayIn(t).delete(keyOfDelivery(d)); err != nil {
			return err
		}
	}
	return endpointTable.overlayIn(t).delete(id)
}

func (t *tx) DeleteNotificationEndpointsOf(workspaceID, scopeID string) error {
	return t.deleteEndpoints(func(e model.NotificationEndpoint) bool { return e.WorkspaceID == workspaceID && e.ScopeID == scopeID })
}

func (t *tx) deleteEndpoints(which func(model.NotificationEndpoint) bool) error {
	for _, e := range endpointTable.overlayIn(t).list(which) {
		if err := t.DeleteNotificationEndpoint(e.WorkspaceID, e.ID); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) NotifyRegion(n model.RegionNotice) error { return store.NotifyRegion(t, n) }

func keyOfDelivery(d model.Delivery) pair { return pair{d.EndpointID, d.MessageID} }

func (t *tx) InsertDeliveries(rows []model.Delivery) error {
	for _, d := range rows {
		if err := deliveryTable.overlayIn(t).insert(d); err != nil {
			return err
		}
	}
	return nil
}

// notifyHistory inserts deliveries of the entries that are sent to endpoints.
func (t *tx) notifyHistory(rows []model.History) error {
	for _, h := range rows {
		k, ok := model.NotificationOf(h.What)
		if !ok {
			continue
		}
		app, ok := appTable.overlayIn(t).get(h.AppID)
		if !ok || app.WorkspaceID != h.WorkspaceID {
			continue
		}
		d := model.DeliveryOf(h, k)
		w, _ := workspaceTable.overlayIn(t).get(app.WorkspaceID)
		p, _ := projectTable.overlayIn(t).get(app.ProjectID)
		e, _ := environmentTable.overlayIn(t).get(app.EnvironmentID)
		r, _ := regionTable.overlayIn(t).get(h.RegionID)
		d.Workspace, d.Project, d.Environment, d.App, d.Region = w.Name, p.Name, e.Name, app.Name, r.Name
		d.AppNames = d.AppPath()
		for _, e := range endpointTable.overlayIn(t).list(func(e model.NotificationEndpoint) bool {
			return e.WorkspaceID == app.WorkspaceID && e.Wants(k) && e.Concerns(app.ID, app.ProjectID)
		}) {
			d.EndpointID = e.ID
			if err := deliveryTable.overlayIn(t).insert(d); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *tx) DueDeliveries(at int64, busy []string, limit int) ([]model.Delivery, error) {
	except := setOf(busy)
	rows := deliveryTable.overlayIn(t).list(func(d model.Delivery) bool {
		return d.State == model.DeliveryPending && d.DueAt <= at && !except[d.EndpointID]
	})
	slices.SortStableFunc(rows, func(a, b model.Delivery) int { return cmp.Compare(a.DueAt, b.DueAt) })
	return firstRows(rows, limit), nil
}

func (t *tx) ClaimDelivery(d model.Delivery, until int64, merged []string) error {
	stored, ok, err := deliveryTable.overlayIn(t).lock(keyOfDelivery(d))
	if err != nil {
		return err
	}
	if !ok || stored.State != model.DeliveryPending || stored.Attempts != d.Attempts || stored.DueAt != d.DueAt {
		return conflictError("notification", d.MessageID)
	}
	stored.Attempts, stored.DueAt = stored.Attempts+1, until
	stored.Events, stored.Apps, stored.AppNames = d.Events, d.Apps, d.AppNames
	if err := deliveryTable.overlayIn(t).put(stored); err != nil {
		return err
	}
	for _, id := range merged {
		m, ok, err := deliveryTable.overlayIn(t).lock(pair{d.EndpointID, id})
		if err != nil {
			return err
		}
		if !ok || m.State != model.DeliveryPending || m.Attempts != 0 {
			return conflictError("notification", id)
		}
		if err := deliveryTable.overlayIn(t).delete(keyOfDelivery(m)); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) NoteDelivery(d model.Delivery) error {
	stored, ok, err := deliveryTable.overlayIn(t).lock(keyOfDelivery(d))
	if err != nil {
		return err
	}
	if !ok || stored.State != model.DeliveryPending || stored.Attempts != d.Attempts {
		return conflictError("notification", d.MessageID)
	}
	stored.State, stored.DueAt, stored.DoneAt, stored.Problem = d.State, d.DueAt, d.DoneAt, d.Problem
	return deliveryTable.overlayIn(t).put(stored)
}

func (t *tx) ListDeliveries(endpointID string, state model.DeliveryState, p store.Page) ([]model.Delivery, error) {
	rows := deliveryTable.overlayIn(t).list(func(d model.Delivery) bool {
		return d.EndpointID == endpointID && (state < 0 || d.State == state)
	})
	return pageDown(rows, p, func(d model.Delivery) string { return d.MessageID }), nil
}

func (t *tx) CountDeliveries(workspaceID string) ([]model.DeliveryCount, error) {
	counts := map[model.DeliveryCount]int64{}
	for _, d := range deliveryTable.overlayIn(t).list(func(d model.Delivery) bool {
		return d.WorkspaceID == workspaceID && d.State != model.DeliveryDelivered
	}) {
		counts[model.DeliveryCount{EndpointID: d.EndpointID, State: d.State}]++
	}
	var out []model.DeliveryCount
	for c, n := range counts {
		c.Count = n
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b model.DeliveryCount) int {
		return cmp.Or(cmp.Compare(a.EndpointID, b.EndpointID), cmp.Compare(a.State, b.State))
	})
	return out, nil
}

func (t *tx) ReplayDeliveries(endpointID, messageID string, at int64) (int, error) {
	rows, err := deliveryTable.overlayIn(t).lockList(func(d model.Delivery) bool {
		return d.EndpointID == endpointID && d.State == model.DeliveryDead && (messageID == "" || d.MessageID == messageID)
	})
	if err != nil {
		return 0, err
	}
	for _, d := range rows {
		d.State, d.Attempts, d.DueAt, d.TriesSince, d.DoneAt = model.DeliveryPending, 1, at, at, 0
		if err := deliveryTable.overlayIn(t).put(d); err != nil {
			return 0, err
		}
	}
	return len(rows), nil
}

func (t *tx) PendingDeliveries() (n int, since int64, err error) {
	for _, d := range deliveryTable.overlayIn(t).list(func(d model.Delivery) bool { return d.State == model.DeliveryPending }) {
		if n == 0 || d.TriesSince < since {
			since = d.TriesSince
		}
		n++
	}
	return n, since, nil
}

func (t *tx) ForgetDeliveries(at int64, limit int) (int, error) {
	rows, err := deliveryTable.overlayIn(t).lockList(func(d model.Delivery) bool {
		return d.State != model.DeliveryPending && d.DueAt <= at
	})
	if err != nil {
		return 0, err
	}
	slices.SortStableFunc(rows, func(a, b model.Delivery) int { return cmp.Compare(a.DueAt, b.DueAt) })
	rows = firstRows(rows, limit)
	for _, d := range rows {
		if err := deliveryTable.overlayIn(t).delete(keyOfDelivery(d)); err != nil {
			return 0, err
		}
	}
	return len(rows), nil
}
