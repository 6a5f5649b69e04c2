package mysql

import (
	"database/sql"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
)

func domainFromRow(r gen.Domain) (model.Domain, error) {
	return model.Domain{
		Name: r.Name, WorkspaceID: r.WorkspaceID, AppID: r.AppID, Token: r.Token,
		CreatedBy: r.CreatedBy, CreatedAt: r.CreatedAt, VerifiedAt: r.VerifiedAt,
		CheckedAt: r.CheckedAt, MissingSince: r.MissingSince, LapsedAt: r.LapsedAt,
	}, nil
}

func (t *tx) InsertDomain(d model.Domain) error {
	return t.queryError(t.q.InsertDomain(t.ctx, gen.InsertDomainParams{
		AppID: d.AppID, Name: d.Name, WorkspaceID: d.WorkspaceID, Token: d.Token,
		CreatedBy: clipText(d.CreatedBy, maxName), CreatedAt: d.CreatedAt,
	}), "insert domain", d.Name)
}

func (t *tx) VerifyDomain(appID, name string, at int64) error {
	n, err := t.q.VerifyDomain(t.ctx, gen.VerifyDomainParams{At: at, AppID: appID, Name: name})
	return t.requireFound(n, err, "verify domain", name)
}

func (t *tx) ReleaseDomain(appID, name string) error {
	n, err := t.q.ReleaseDomain(t.ctx, gen.ReleaseDomainParams{AppID: appID, Name: name})
	return t.requireFound(n, err, "release domain", name)
}

func (t *tx) DomainsToCheck(before int64, n int) ([]model.Domain, error) {
	return list(t, "list domains to check", "", domainFromRow)(t.q.DomainsToCheck(t.ctx, gen.DomainsToCheckParams{Before: before, Limit: limitOrAll(n)}))
}

func (t *tx) LockHeldDomains(names []string) ([]model.Domain, error) {
	return list(t, "lock domains", "", domainFromRow)(inChunks(sortDistinct(names), func(names []string) ([]gen.Domain, error) {
		return t.q.LockHeldDomains(t.ctx, nullStrings(names))
	}))
}

func (t *tx) NoteDomainChecks(c model.DomainChecks, at int64) error {
	for _, one := range []struct {
		names []string
		note  func(names []sql.NullString) error
	}{
		{c.Found, func(names []sql.NullString) error {
			return t.q.DomainsFound(t.ctx, gen.DomainsFoundParams{CheckedAt: at, Names: names})
		}},
		{c.Missing, func(names []sql.NullString) error {
			return t.q.DomainsMissing(t.ctx, gen.DomainsMissingParams{At: at, Names: names})
		}},
		{c.Unanswered, func(names []sql.NullString) error {
			return t.q.DomainsUnanswered(t.ctx, gen.DomainsUnansweredParams{CheckedAt: at, Names: names})
		}},
		{c.Lapsed, func(names []sql.NullString) error {
			return t.q.DomainsLapsed(t.ctx, gen.DomainsLapsedParams{LapsedAt: at, Names: names})
		}},
	} {
		if len(one.names) == 0 {
			continue
		}
		if err := t.queryError(one.note(nullStrings(one.names)), "store the checks of domains", ""); err != nil {
			return err
		}
	}
	return nil
}

// nullStrings returns names in the type of the column held.
func nullStrings(names []string) []sql.NullString {
	out := make([]sql.NullString, len(names))
	for i, n := range names {
		out[i] = sql.NullString{String: n, Valid: true}
	}
	return out
}

func (t *tx) HolderOfDomain(name string) (model.Domain, error) {
	return get(t, "get holder of domain", name, domainFromRow)(t.q.HolderOfDomain(t.ctx, sql.NullString{String: name, Valid: true}))
}

func (t *tx) DeleteDomain(appID, name string) error {
	n, err := t.q.DeleteDomain(t.ctx, gen.DeleteDomainParams{AppID: appID, Name: name})
	return t.requireFound(n, err, "delete domain", name)
}

func (t *tx) DeleteDomainsOf(appID string) error {
	return t.queryError(t.q.DeleteDomainsOfApps(t.ctx, []string{appID}), "delete domains of", appID)
}

func (t *tx) ListDomains(workspaceID, appID string, p store.Page) ([]model.Domain, error) {
	name, id, _ := strings.Cut(p.After, "\x00")
	return list(t, "list domains of", workspaceID, domainFromRow)(t.q.ListDomains(t.ctx, gen.ListDomainsParams{
		WorkspaceID: workspaceID, AppID: appID, AfterName: name, AfterID: id, Limit: limitOrAll(p.Limit),
	}))
}

func (t *tx) DomainsOfApps(appIDs []string) ([]model.Domain, error) {
	return list(t, "list domains", "", domainFromRow)(inChunks(sortDistinct(appIDs), func(ids []string) ([]gen.Domain, error) {
		return t.q.DomainsOfApps(t.ctx, ids)
	}))
}
