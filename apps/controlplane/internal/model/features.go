package model

import windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"

// Features is a set of features: bit n is windlassv1.Feature n.
type Features int64

// AllFeatures has every feature, also those of later releases.
const AllFeatures Features = -1

// FeaturesOf returns the set of the features.
func FeaturesOf(all []windlassv1.Feature) (f Features) {
	for _, one := range all {
		f |= 1 << one
	}
	return f
}

// Has reports whether the feature is in the set.
func (f Features) Has(feature windlassv1.Feature) bool { return f&(1<<feature) != 0 }

// List returns the features of the set that this release knows, by number.
func (f Features) List() (out []windlassv1.Feature) {
	for n := int32(1); n < 63; n++ {
		if feature := windlassv1.Feature(n); windlassv1.Feature_name[n] != "" && f.Has(feature) {
			out = append(out, feature)
		}
	}
	return out
}

// DefaultTier is the tier of workspaces without another tier. It has all features until an operator sets it.
const DefaultTier = "default"

// MaxTiers is how many tiers there may be.
const MaxTiers = 200

// Tier is a set of features with a name.
type Tier struct {
	Name            string
	Features        Features
	UpdatedAt       int64
	ResourceVersion int64
}

// WorkspaceFeatures are the features of a workspace: the features of its tier, plus Allowed, minus Denied.
type WorkspaceFeatures struct {
	WorkspaceID string
	Tier        string
	// TierFeatures are the features of the tier. They are not stored with the workspace.
	TierFeatures    Features
	Allowed, Denied Features
	UpdatedAt       int64
	// ResourceVersion is 0 before any were set.
	ResourceVersion int64
}

// InForce returns the features that the workspace may use.
func (w WorkspaceFeatures) InForce() Features { return (w.TierFeatures | w.Allowed) &^ w.Denied }
