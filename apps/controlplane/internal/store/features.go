package store

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// FeatureTx has the queries of the features of workspaces, and of tiers.
type FeatureTx interface {
	// GetFeatures returns the features of a workspace. Before any were put, it has the features of model.DefaultTier.
	// If the tier does not exist, TierFeatures is empty, or all features for the default tier.
	GetFeatures(workspaceID string) (model.WorkspaceFeatures, error)
	// PutFeatures stores the features as they are, without TierFeatures. Call it with the workspace's row locked.
	PutFeatures(model.WorkspaceFeatures) error

	InsertTier(model.Tier) error
	// LockTier locks the tier to the end of the transaction.
	LockTier(name string) (model.Tier, error)
	// UpdateTier stores the tier as it is. Call it with the tier's row locked.
	UpdateTier(model.Tier) error
	DeleteTier(name string) error
	// ListTiers returns tiers by name, at most model.MaxTiers.
	ListTiers() ([]model.Tier, error)
	// CountWorkspacesOfTier counts the workspaces for which the tier was put.
	CountWorkspacesOfTier(name string) (int, error)
}
