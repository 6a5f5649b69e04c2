package store

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// AppKeyTx keeps the keys that requests for apps may come with.
type AppKeyTx interface {
	// InsertAppKey fails with model.ErrExists when the app has one of the name.
	InsertAppKey(model.AppKey) error
	DeleteAppKey(appID, name string) error
	// ListAppKeys of a workspace, or of one app of it, by (app, name). After is those two with
	// a zero byte between.
	ListAppKeys(workspaceID, appID string, p Page) ([]model.AppKey, error)
	// KeysOfApps returns those of the apps, by (app, name).
	KeysOfApps(appIDs []string) ([]model.AppKey, error)
}
