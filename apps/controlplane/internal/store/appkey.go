package store

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// AppKeyTx is the app keys, which requests at gateways may have.
type AppKeyTx interface {
	// InsertAppKey fails with model.ErrExists when the app has one of the name.
	InsertAppKey(model.AppKey) error
	DeleteAppKey(appID, name string) error
	// ListAppKeys is by (app, name), of one app or, if appID is empty, of all of the workspace.
	// Page.After is the last app's id, a zero byte and the last name.
	ListAppKeys(workspaceID, appID string, p Page) ([]model.AppKey, error)
	// KeysOfApps returns the keys of the apps, by (app, name).
	KeysOfApps(appIDs []string) ([]model.AppKey, error)
}
