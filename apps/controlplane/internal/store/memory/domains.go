package memory

import (
	"cmp"
	"errors"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func (t *tx) InsertDomain(d model.Domain) error {
	d.VerifiedAt = 0
	return domainTable.overlayIn(t).insert(d)
}

func (t *tx) VerifyDomain(appID, name string, at int64) error {
	d, ok, err := domainTable.overlayIn(t).lock(pair{appID, name})
	if err != nil {
		return err
	}
	if !ok {
		return notFound("domain", name)
	}
	d.VerifiedAt, d.CheckedAt, d.MissingSince, d.LapsedAt = at, at, 0, 0
	return domainTable.overlayIn(t).put(d)
}

func (t *tx) ReleaseDomain(appID, name string) error {
	d, ok, err := domainTable.overlayIn(t).lock(pair{appID, name})
	if err != nil {
		return err
	}
	if !ok {
		return notFound("domain", name)
	}
	d.VerifiedAt, d.CheckedAt, d.MissingSince, d.LapsedAt = 0, 0, 0, 0
	return domainTable.overlayIn(t).put(d)
}

func (t *tx) DomainsToCheck(before int64, limit int) ([]model.Domain, error) {
	due := domainTable.overlayIn(t).list(func(d model.Domain) bool { return d.VerifiedAt != 0 && d.CheckedAt < before })
	slices.SortFunc(due, func(a, b model.Domain) int {
		return cmp.Or(cmp.Compare(a.CheckedAt, b.CheckedAt), cmp.Compare(a.Name, b.Name))
	})
	return due[:min(len(due), limit)], nil
}

func (t *tx) LockHeldDomains(names []string) ([]model.Domain, error) {
	var out []model.Domain
	for _, name := range slices.Sorted(slices.Values(names)) {
		d, ok := domainTable.overlayIn(t).find(0, name)
		if !ok {
			continue
		}
		d, ok, err := domainTable.overlayIn(t).lock(pair{d.AppID, name})
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, d)
		}
	}
	return out, nil
}

func (t *tx) NoteDomainChecks(c model.DomainChecks, at int64) error {
	var errs []error
	note := func(names []string, change func(*model.Domain)) {
		for _, name := range names {
			if d, ok := domainTable.overlayIn(t).find(0, name); ok {
				change(&d)
				errs = append(errs, domainTable.overlayIn(t).put(d))
			}
		}
	}
	note(c.Found, func(d *model.Domain) { d.CheckedAt, d.MissingSince, d.LapsedAt = at, 0, 0 })
	note(c.Missing, func(d *model.Domain) { d.CheckedAt, d.MissingSince = at, cmp.Or(d.MissingSince, at) })
	note(c.Unanswered, func(d *model.Domain) { d.CheckedAt = at })
	note(c.Lapsed, func(d *model.Domain) { d.LapsedAt = at })
	return errors.Join(errs...)
}

func (t *tx) HolderOfDomain(name string) (model.Domain, error) {
	d, ok := domainTable.overlayIn(t).find(0, name)
	return oneRow(d, ok, "holder of domain", name)
}

func (t *tx) DeleteDomain(appID, name string) error {
	key := pair{appID, name}
	if _, ok, err := domainTable.overlayIn(t).lock(key); err != nil {
		return err
	} else if !ok {
		return notFound("domain", name)
	}
	return domainTable.overlayIn(t).delete(key)
}

func (t *tx) DeleteDomainsOf(appID string) error {
	var errs []error
	for _, d := range domainTable.overlayIn(t).list(func(d model.Domain) bool { return d.AppID == appID }) {
		errs = append(errs, domainTable.overlayIn(t).delete(pair{d.AppID, d.Name}))
	}
	return errors.Join(errs...)
}

func (t *tx) ListDomains(workspaceID, appID string, p store.Page) ([]model.Domain, error) {
	rows := domainTable.overlayIn(t).list(func(d model.Domain) bool {
		return d.WorkspaceID == workspaceID && (appID == "" || d.AppID == appID)
	})
	return pageOf(rows, p, func(d model.Domain) string { return d.Name + "\x00" + d.AppID }), nil
}

func (t *tx) DomainsOfApps(appIDs []string) ([]model.Domain, error) {
	return domainTable.overlayIn(t).list(func(d model.Domain) bool { return slices.Contains(appIDs, d.AppID) }), nil
}
