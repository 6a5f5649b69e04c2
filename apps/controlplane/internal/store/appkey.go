package store

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// AppKeyTx has the queries of app keys, which requests at gateways may have.
type AppKeyTx interface {
	// InsertAppKey fails with model.ErrExists if the app has a key of that name.
	InsertAppKey(model.AppKey) error
	DeleteAppKey(appID, name string) error
	// ListAppKeys returns keys by (app, name): those of one app or, if appID is empty, of the workspace. Page.After is
	// the last app's id, a zero byte and the last name.
	ListAppKeys(workspaceID, appID string, p Page) ([]model.AppKey, error)
	// KeysOfApps returns the keys of the apps, by (app, name).
	KeysOfApps(appIDs []string) ([]model.AppKey, error)
}
