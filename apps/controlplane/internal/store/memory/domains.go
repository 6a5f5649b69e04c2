package memory

import (
	"errors"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func (t *tx) InsertDomain(d model.Domain) error {
	d.VerifiedAt = 0
	return t.domains.insert(d)
}

func (t *tx) VerifyDomain(appID, name string, at int64) error {
	d, ok, err := t.domains.lock(pair{appID, name})
	if err != nil {
		return err
	}
	if !ok {
		return notFound("domain", name)
	}
	d.VerifiedAt = at
	return t.domains.put(d)
}

func (t *tx) HolderOfDomain(name string) (model.Domain, error) {
	d, ok := t.domains.find(0, name)
	return one(d, ok, "holder of domain", name)
}

func (t *tx) DeleteDomain(appID, name string) error {
	key := pair{appID, name}
	if _, ok, err := t.domains.lock(key); err != nil {
		return err
	} else if !ok {
		return notFound("domain", name)
	}
	return t.domains.delete(key)
}

func (t *tx) DeleteDomainsOf(appID string) error {
	var errs []error
	for _, d := range t.domains.list(func(d model.Domain) bool { return d.AppID == appID }) {
		errs = append(errs, t.domains.delete(pair{d.AppID, d.Name}))
	}
	return errors.Join(errs...)
}

func (t *tx) ListDomains(workspaceID, appID string, p store.Page) ([]model.Domain, error) {
	rows := t.domains.list(func(d model.Domain) bool {
		return d.WorkspaceID == workspaceID && (appID == "" || d.AppID == appID)
	})
	return page(rows, p, func(d model.Domain) string { return d.Name + "\x00" + d.AppID }), nil
}

func (t *tx) DomainsOfApps(appIDs []string) ([]model.Domain, error) {
	return t.domains.list(func(d model.Domain) bool { return slices.Contains(appIDs, d.AppID) }), nil
}
