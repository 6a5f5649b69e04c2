package mysql

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/db/gen"
)

func featuresFromRow(r gen.GetFeaturesRow) (model.WorkspaceFeatures, error) {
	return model.WorkspaceFeatures{
		WorkspaceID: r.ID, Tier: r.Tier, TierFeatures: model.Features(r.TierFeatures),
		Allowed: model.Features(r.Allowed), Denied: model.Features(r.Denied), UpdatedAt: r.UpdatedAt, ResourceVersion: r.ResourceVersion,
	}, nil
}

func tierFromRow(r gen.Tier) (model.Tier, error) {
	return model.Tier{Name: r.Name, Features: model.Features(r.Features), UpdatedAt: r.UpdatedAt, ResourceVersion: r.ResourceVersion}, nil
}

func (t *tx) GetFeatures(workspaceID string) (model.WorkspaceFeatures, error) {
	return get(t, "get features of workspace", workspaceID, featuresFromRow)(t.q.GetFeatures(t.ctx, workspaceID))
}

func (t *tx) PutFeatures(f model.WorkspaceFeatures) error {
	return t.queryError(t.q.PutFeatures(t.ctx, gen.PutFeaturesParams{
		WorkspaceID: f.WorkspaceID, Tier: f.Tier, Allowed: int64(f.Allowed), Denied: int64(f.Denied),
		UpdatedAt: f.UpdatedAt, ResourceVersion: f.ResourceVersion,
	}), "put features of workspace", f.WorkspaceID)
}

func (t *tx) InsertTier(m model.Tier) error {
	return t.queryError(t.q.InsertTier(t.ctx, gen.InsertTierParams{
		Name: m.Name, Features: int64(m.Features), UpdatedAt: m.UpdatedAt, ResourceVersion: m.ResourceVersion,
	}), "insert tier", m.Name)
}

func (t *tx) LockTier(name string) (model.Tier, error) {
	if err := t.requireUpdate("lock tier", name); err != nil {
		return model.Tier{}, err
	}
	return get(t, "lock tier", name, tierFromRow)(t.q.LockTier(t.ctx, name))
}

func (t *tx) UpdateTier(m model.Tier) error {
	n, err := t.q.UpdateTier(t.ctx, gen.UpdateTierParams{
		Features: int64(m.Features), UpdatedAt: m.UpdatedAt, ResourceVersion: m.ResourceVersion, Name: m.Name,
	})
	return t.requireFound(n, err, "update tier", m.Name)
}

func (t *tx) DeleteTier(name string) error {
	n, err := t.q.DeleteTier(t.ctx, name)
	return t.requireFound(n, err, "delete tier", name)
}

func (t *tx) ListTiers() ([]model.Tier, error) {
	return list(t, "list tiers", "", tierFromRow)(t.q.ListTiers(t.ctx, model.MaxTiers))
}

func (t *tx) CountWorkspacesOfTier(name string) (int, error) {
	n, err := t.q.CountWorkspacesOfTier(t.ctx, name)
	return int(n), t.queryError(err, "count workspaces of tier", name)
}
