package store

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// DomainTx has the queries of apps' domains. Several apps may wait for a domain. The app that verified it holds it.
type DomainTx interface {
	// InsertDomain makes the app wait for a domain. model.ErrExists: the app already waits for it or holds it.
	InsertDomain(model.Domain) error
	// VerifyDomain makes the app hold the domain. model.ErrExists: another app holds it.
	VerifyDomain(appID, name string, at int64) error
	// ReleaseDomain makes the app that holds the domain wait for it again.
	ReleaseDomain(appID, name string) error
	// DomainsToCheck returns held domains whose DNS record was last checked before that time, the
	// oldest check first, then by name.
	DomainsToCheck(before int64, limit int) ([]model.Domain, error)
	// LockHeldDomains returns the given domains that an app holds, by name, locked to the end of the transaction.
	LockHeldDomains(names []string) ([]model.Domain, error)
	// NoteDomainChecks stores the results of checks of held domains at that time.
	NoteDomainChecks(checks model.DomainChecks, at int64) error
	// HolderOfDomain returns the domain's row of the app that holds it.
	HolderOfDomain(name string) (model.Domain, error)
	DeleteDomain(appID, name string) error
	// DeleteDomainsOf deletes all domains of an app.
	DeleteDomainsOf(appID string) error
	// ListDomains returns domains by name and app: those of one app or, if appID is empty, of the workspace.
	// Page.After is the last name, a zero byte and the last app's id.
	ListDomains(workspaceID, appID string, p Page) ([]model.Domain, error)
	// DomainsOfApps returns the domains that the apps hold or wait for, by (app, name).
	DomainsOfApps(appIDs []string) ([]model.Domain, error)
}
