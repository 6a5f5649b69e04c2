package memory

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

func (t *tx) GetFeatures(workspaceID string) (model.WorkspaceFeatures, error) {
	if _, err := t.GetWorkspace(workspaceID); err != nil {
		return model.WorkspaceFeatures{}, err
	}
	f, ok := featuresTable.overlayIn(t).get(workspaceID)
	if !ok {
		f = model.WorkspaceFeatures{WorkspaceID: workspaceID, Tier: model.DefaultTier}
	}
	if tier, ok := tierTable.overlayIn(t).get(f.Tier); ok {
		f.TierFeatures = tier.Features
	} else if f.Tier == model.DefaultTier {
		f.TierFeatures = model.AllFeatures
	}
	return f, nil
}

func (t *tx) PutFeatures(f model.WorkspaceFeatures) error {
	f.TierFeatures = 0
	return featuresTable.overlayIn(t).put(f)
}

func (t *tx) InsertTier(tier model.Tier) error { return tierTable.overlayIn(t).insert(tier) }

func (t *tx) LockTier(name string) (model.Tier, error) {
	tier, ok, err := tierTable.overlayIn(t).lock(name)
	if err != nil {
		return tier, err
	}
	return oneRow(tier, ok, "tier", name)
}

func (t *tx) UpdateTier(tier model.Tier) error {
	if _, err := t.LockTier(tier.Name); err != nil {
		return err
	}
	return tierTable.overlayIn(t).put(tier)
}

func (t *tx) DeleteTier(name string) error {
	if _, err := t.LockTier(name); err != nil {
		return err
	}
	return tierTable.overlayIn(t).delete(name)
}

func (t *tx) ListTiers() ([]model.Tier, error) {
	return firstRows(tierTable.overlayIn(t).list(func(model.Tier) bool { return true }), model.MaxTiers), nil
}

func (t *tx) CountWorkspacesOfTier(name string) (int, error) {
	return len(featuresTable.overlayIn(t).list(func(f model.WorkspaceFeatures) bool { return f.Tier == name })), nil
}
