package store

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// NotificationTx has the queries of the endpoints of notifications, and of their deliveries. InsertHistory also
// inserts a delivery for each endpoint that a history entry concerns. It does so with one statement for all entries of
// a call, or none if no endpoint is concerned.
type NotificationTx interface {
	// InsertNotificationEndpoint fails with model.ErrExists if the workspace has an endpoint of that name.
	InsertNotificationEndpoint(model.NotificationEndpoint) error
	// UpdateNotificationEndpoint stores all fields except the name and the creator.
	UpdateNotificationEndpoint(model.NotificationEndpoint) error
	// LockNotificationEndpoint finds an endpoint by name and locks it to the end of the transaction.
	LockNotificationEndpoint(workspaceID, name string) (model.NotificationEndpoint, error)
	// ListNotificationEndpoints returns endpoints by name.
	ListNotificationEndpoints(workspaceID string) ([]model.NotificationEndpoint, error)
	// GetNotificationEndpoints returns the endpoints with these ids that exist, in no order.
	GetNotificationEndpoints(ids []string) ([]model.NotificationEndpoint, error)
	// NotificationEndpointsOfRegion returns the endpoints that ask for the kind, of workspaces that own the region or
	// were granted it.
	NotificationEndpointsOfRegion(regionID string, k model.NotificationKind) ([]model.NotificationEndpoint, error)
	// DeleteNotificationEndpoint deletes the endpoint with its secret and deliveries.
	DeleteNotificationEndpoint(workspaceID, id string) error
	// DeleteNotificationEndpointsOf deletes the endpoints of a project or an app.
	DeleteNotificationEndpointsOf(workspaceID, scopeID string) error

	// NotifyRegion inserts a delivery for each endpoint that the notice concerns.
	NotifyRegion(model.RegionNotice) error
	InsertDeliveries([]model.Delivery) error
	// DueDeliveries returns pending deliveries that are due, the longest due first. It leaves out
	// deliveries of the busy endpoints.
	DueDeliveries(at int64, busy []string, limit int) ([]model.Delivery, error)
	// ClaimDelivery adds one attempt, sets DueAt to until, and stores the events and apps of d. It
	// fails with model.ErrConflict when the row has changed since d was read. merged are deliveries
	// of the same endpoint without an attempt, whose events d now contains: they are deleted.
	ClaimDelivery(d model.Delivery, until int64, merged []string) error
	// NoteDelivery stores state, times and problem of a claimed delivery. It fails with model.ErrConflict
	// when the number of attempts differs, because the delivery was claimed again.
	NoteDelivery(model.Delivery) error
	// ListDeliveries returns the newest first by message id. A negative state means any. Page.After is the last id.
	ListDeliveries(endpointID string, state model.DeliveryState, p Page) ([]model.Delivery, error)
	// CountDeliveries counts the workspace's pending and dead deliveries by endpoint.
	CountDeliveries(workspaceID string) ([]model.DeliveryCount, error)
	// ReplayDeliveries makes dead deliveries of the endpoint pending again: the delivery with messageID, or all
	// deliveries if messageID is empty. It returns their number.
	ReplayDeliveries(endpointID, messageID string, at int64) (int, error)
	// PendingDeliveries counts the pending deliveries of all workspaces. since is when the tries of the oldest one
	// began.
	PendingDeliveries() (n int, since int64, err error)
	// ForgetDeliveries deletes deliveries that are delivered or dead and whose retention has passed.
	ForgetDeliveries(at int64, limit int) (int, error)
}

// NotifyRegion implements NotificationTx.NotifyRegion with other methods of the transaction.
func NotifyRegion(tx Tx, n model.RegionNotice) error {
	endpoints, err := tx.NotificationEndpointsOfRegion(n.RegionID, n.Kind)
	if err != nil || len(endpoints) == 0 {
		return err
	}
	region, err := tx.GetRegion(n.RegionID)
	if err != nil {
		return err
	}
	ids, err := tx.AppsInRegion(n.RegionID)
	if err != nil {
		return err
	}
	apps, err := tx.GetApps(ids)
	if err != nil {
		return err
	}
	apps = slices.DeleteFunc(apps, func(a model.App) bool { return a.DeletedAt != 0 })
	var owners []string
	for _, e := range endpoints {
		owners = append(owners, e.WorkspaceID)
	}
	found, err := tx.GetWorkspaces(owners)
	if err != nil {
		return err
	}
	names, workspaces := map[string]model.AppPlace{}, map[string]string{}
	for _, w := range found {
		workspaces[w.ID] = w.Name
		if err := nameApps(tx, w.ID, apps, names); err != nil {
			return err
		}
	}
	return tx.InsertDeliveries(n.Deliveries(region, endpoints, apps, names, workspaces))
}

// nameApps adds the names of projects and environments of the workspace's apps.
func nameApps(tx Tx, workspaceID string, apps []model.App, names map[string]model.AppPlace) error {
	var projectIDs, environmentIDs []string
	for _, a := range apps {
		if a.WorkspaceID == workspaceID {
			projectIDs, environmentIDs = append(projectIDs, a.ProjectID), append(environmentIDs, a.EnvironmentID)
		}
	}
	if len(projectIDs) == 0 {
		return nil
	}
	projects, err := tx.GetProjects(workspaceID, projectIDs)
	if err != nil {
		return err
	}
	environments, err := tx.GetEnvironments(workspaceID, environmentIDs)
	if err != nil {
		return err
	}
	byID := map[string]string{}
	for _, p := range projects {
		byID[p.ID] = p.Name
	}
	for _, e := range environments {
		byID[e.ID] = e.Name
	}
	for _, a := range apps {
		if a.WorkspaceID == workspaceID {
			names[a.ID] = model.AppPlace{Project: byID[a.ProjectID], Environment: byID[a.EnvironmentID]}
		}
	}
	return nil
}
