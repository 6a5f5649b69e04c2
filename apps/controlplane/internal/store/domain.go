package store

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// DomainTx keeps users' own hosts.
type DomainTx interface {
	// InsertDomain makes the app wait for a domain. model.ErrExists: the app waits for it already, or has it.
	InsertDomain(model.Domain) error
	// VerifyDomain gives it to the app. model.ErrExists: another app has it.
	VerifyDomain(appID, name string, at int64) error
	// ReleaseDomain takes it from the app, which waits for it again.
	ReleaseDomain(appID, name string) error
	// DomainsToCheck returns those that an app has and whose record was not looked for since
	// before, the longest ago first, then by name.
	DomainsToCheck(before int64, limit int) ([]model.Domain, error)
	// LockHeldDomains returns, by name, those that an app has, and keeps them to the end.
	LockHeldDomains(names []string) ([]model.Domain, error)
	// NoteDomainChecks notes what was found at that time of domains that an app has.
	NoteDomainChecks(checks model.DomainChecks, at int64) error
	// HolderOfDomain is the domain as the app has it that does.
	HolderOfDomain(name string) (model.Domain, error)
	DeleteDomain(appID, name string) error
	// DeleteDomainsOf forgets all of an app.
	DeleteDomainsOf(appID string) error
	// ListDomains is by name and app, of one app or, if appID is empty, of all of the
	// workspace. Page.After is the last name, a zero byte and the last app's id.
	ListDomains(workspaceID, appID string, p Page) ([]model.Domain, error)
	// DomainsOfApps returns those that the apps have and those that they wait for, by (app,
	// name).
	DomainsOfApps(appIDs []string) ([]model.Domain, error)
}
