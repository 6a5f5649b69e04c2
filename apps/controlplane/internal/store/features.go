package store

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// FeatureTx is the features of workspaces, and tiers of them.
type FeatureTx interface {
	// GetFeatures returns the features of a workspace. They are those of model.DefaultTier before any were
	// put. Of a tier that does not exist, TierFeatures is empty; for the default tier it is all features.
	GetFeatures(workspaceID string) (model.WorkspaceFeatures, error)
	// PutFeatures stores them as they are, without TierFeatures. Call it with the workspace's row locked.
	PutFeatures(model.WorkspaceFeatures) error

	InsertTier(model.Tier) error
	// LockTier locks the tier to the end of the transaction.
	LockTier(name string) (model.Tier, error)
	// UpdateTier stores it as it is. Call it with the tier's row locked.
	UpdateTier(model.Tier) error
	DeleteTier(name string) error
	// ListTiers is by name. It returns at most model.MaxTiers.
	ListTiers() ([]model.Tier, error)
	// CountWorkspacesOfTier counts the workspaces for which the tier was put.
	CountWorkspacesOfTier(name string) (int, error)
}
