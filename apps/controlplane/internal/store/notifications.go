package store

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// NotificationTx is where notifications are sent, and what is sent. A delivery is inserted with the history
// entry that it tells of (InsertHistory), for each endpoint that the entry concerns. Entries that no endpoint
// is notified of cost nothing; the others cost one statement together.
type NotificationTx interface {
	// InsertNotificationEndpoint fails with model.ErrExists when the workspace has one of that name.
	InsertNotificationEndpoint(model.NotificationEndpoint) error
	// UpdateNotificationEndpoint stores all but the name and who made it.
	UpdateNotificationEndpoint(model.NotificationEndpoint) error
	// LockNotificationEndpoint finds one by name and locks it to the end of the transaction.
	LockNotificationEndpoint(workspaceID, name string) (model.NotificationEndpoint, error)
	// ListNotificationEndpoints is by name.
	ListNotificationEndpoints(workspaceID string) ([]model.NotificationEndpoint, error)
	// GetNotificationEndpoints returns those of the ids that exist, in no order.
	GetNotificationEndpoints(ids []string) ([]model.NotificationEndpoint, error)
	// NotificationEndpointsOfRegion returns endpoints of the workspaces that own the region or were
	// granted it, if they are sent that kind.
	NotificationEndpointsOfRegion(regionID string, k model.NotificationKind) ([]model.NotificationEndpoint, error)
	// DeleteNotificationEndpoint forgets it with its secret and deliveries.
	DeleteNotificationEndpoint(workspaceID, id string) error
	// DeleteNotificationEndpointsOf forgets those of a project or an app.
	DeleteNotificationEndpointsOf(workspaceID, scopeID string) error

	// NotifyRegion inserts a delivery for each endpoint that the notice concerns.
	NotifyRegion(model.RegionNotice) error
	InsertDeliveries([]model.Delivery) error
	// DueDeliveries returns pending deliveries that are due, longest due first, but for those of
	// endpoints that are busy.
	DueDeliveries(at int64, busy []string, limit int) ([]model.Delivery, error)
	// ClaimDelivery counts one more attempt and stores DueAt until and the events and apps that d
	// tells of; it fails with model.ErrConflict when the row is not as d was read. merged are
	// deliveries of the endpoint that d tells of now, and that were never tried: they are deleted.
	ClaimDelivery(d model.Delivery, until int64, merged []string) error
	// NoteDelivery stores state, times and problem of a delivery that was claimed with that number of attempts;
	// it fails with model.ErrConflict when it was claimed again.
	NoteDelivery(model.Delivery) error
	// ListDeliveries is newest first by message id. A negative state is any. Page.After is the last id.
	ListDeliveries(endpointID string, state model.DeliveryState, p Page) ([]model.Delivery, error)
	// CountDeliveries counts the workspace's pending and dead deliveries by endpoint.
	CountDeliveries(workspaceID string) ([]model.DeliveryCount, error)
	// ReplayDeliveries makes dead deliveries of the endpoint pending again, all or the one of that id,
	// and returns how many.
	ReplayDeliveries(endpointID, messageID string, at int64) (int, error)
	// PendingDeliveries counts those of all workspaces, and returns since when the oldest is tried.
	PendingDeliveries() (n int, since int64, err error)
	// ForgetDeliveries deletes those that are over and due to be forgotten.
	ForgetDeliveries(at int64, limit int) (int, error)
}

// NotifyRegion implements NotificationTx with what else the transaction can do.
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
