package mysql

import (
	"database/sql"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
)

func domain(r gen.Domain) (model.Domain, error) {
	return model.Domain{
		Name: r.Name, WorkspaceID: r.WorkspaceID, AppID: r.AppID, Token: r.Token,
		CreatedBy: r.CreatedBy, CreatedAt: r.CreatedAt, VerifiedAt: r.VerifiedAt,
	}, nil
}

func (t *tx) InsertDomain(d model.Domain) error {
	return t.err(t.q.InsertDomain(t.ctx, gen.InsertDomainParams{
		AppID: d.AppID, Name: d.Name, WorkspaceID: d.WorkspaceID, Token: d.Token,
		CreatedBy: clip(d.CreatedBy, maxName), CreatedAt: d.CreatedAt,
	}), "insert domain", d.Name)
}

func (t *tx) VerifyDomain(appID, name string, at int64) error {
	n, err := t.q.VerifyDomain(t.ctx, gen.VerifyDomainParams{VerifiedAt: at, AppID: appID, Name: name})
	return t.found(n, err, "verify domain", name)
}

func (t *tx) HolderOfDomain(name string) (model.Domain, error) {
	return get(t, "get holder of domain", name, domain)(t.q.HolderOfDomain(t.ctx, sql.NullString{String: name, Valid: true}))
}

func (t *tx) DeleteDomain(appID, name string) error {
	n, err := t.q.DeleteDomain(t.ctx, gen.DeleteDomainParams{AppID: appID, Name: name})
	return t.found(n, err, "delete domain", name)
}

func (t *tx) DeleteDomainsOf(appID string) error {
	return t.err(t.q.DeleteDomainsOfApps(t.ctx, []string{appID}), "delete domains of", appID)
}

func (t *tx) ListDomains(workspaceID, appID string, p store.Page) ([]model.Domain, error) {
	name, id, _ := strings.Cut(p.After, "\x00")
	return list(t, "list domains of", workspaceID, domain)(t.q.ListDomains(t.ctx, gen.ListDomainsParams{
		WorkspaceID: workspaceID, AppID: appID, AfterName: name, AfterID: id, Limit: limit(p.Limit),
	}))
}

func (t *tx) DomainsOfApps(appIDs []string) ([]model.Domain, error) {
	return list(t, "list domains", "", domain)(inChunks(distinct(appIDs), func(ids []string) ([]gen.Domain, error) {
		return t.q.DomainsOfApps(t.ctx, ids)
	}))
}
