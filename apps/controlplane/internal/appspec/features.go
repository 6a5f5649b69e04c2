package appspec

import (
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// features is the table of features, in the order of the enum. used returns how much an app uses the feature: 0
// if it does not use it, 1 if it does, or a count, such as the number of regions.
var features = []struct {
	feature windlassv1.Feature
	field   string
	used    func(*windlassv1.DeploymentSpec, *windlassv1.RolloutPolicy, *windlassv1.ScalingPolicy) int
}{
	{
		windlassv1.Feature_FEATURE_MULTI_REGION, "spec.regions",
		func(s *windlassv1.DeploymentSpec, _ *windlassv1.RolloutPolicy, _ *windlassv1.ScalingPolicy) int {
			return RegionUse(len(s.GetRegions()))
		},
	},
	{
		windlassv1.Feature_FEATURE_AUTOSCALING, "scaling",
		func(_ *windlassv1.DeploymentSpec, _ *windlassv1.RolloutPolicy, p *windlassv1.ScalingPolicy) int {
			return useIf(p != nil)
		},
	},
	{
		windlassv1.Feature_FEATURE_SCALE_TO_ZERO, "spec.routing.coldStart",
		func(s *windlassv1.DeploymentSpec, _ *windlassv1.RolloutPolicy, _ *windlassv1.ScalingPolicy) int {
			return useIf(s.GetRouting().GetColdStart() != nil)
		},
	},
	{
		windlassv1.Feature_FEATURE_CROSS_REGION, "spec.routing.crossRegion",
		func(s *windlassv1.DeploymentSpec, _ *windlassv1.RolloutPolicy, _ *windlassv1.ScalingPolicy) int {
			return useIf(s.GetRouting().GetCrossRegion() > windlassv1.RoutingPolicy_CROSS_REGION_OFF)
		},
	},
	{
		windlassv1.Feature_FEATURE_CANARY, "rollout.strategy",
		func(_ *windlassv1.DeploymentSpec, p *windlassv1.RolloutPolicy, _ *windlassv1.ScalingPolicy) int {
			return useIf(p.GetStrategy() == windlassv1.RolloutPolicy_STRATEGY_CANARY)
		},
	},
	{
		windlassv1.Feature_FEATURE_BLUE_GREEN, "rollout.strategy",
		func(_ *windlassv1.DeploymentSpec, p *windlassv1.RolloutPolicy, _ *windlassv1.ScalingPolicy) int {
			return useIf(p.GetStrategy() == windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN)
		},
	},
	{
		windlassv1.Feature_FEATURE_ANALYSIS, "rollout.analysis",
		func(_ *windlassv1.DeploymentSpec, p *windlassv1.RolloutPolicy, _ *windlassv1.ScalingPolicy) int {
			return useIf(len(p.GetAnalysis()) > 0)
		},
	},
	{
		windlassv1.Feature_FEATURE_SERVE, "spec.serve",
		func(s *windlassv1.DeploymentSpec, _ *windlassv1.RolloutPolicy, _ *windlassv1.ScalingPolicy) int {
			return useIf(s.GetServe() != nil)
		},
	},
	{
		windlassv1.Feature_FEATURE_ROLES, "spec.roles",
		func(s *windlassv1.DeploymentSpec, _ *windlassv1.RolloutPolicy, _ *windlassv1.ScalingPolicy) int {
			return useIf(len(s.GetRoles()) > 1 || model.HasSeveralHosts(s))
		},
	},
}

// useIf returns 1 for an app that uses a feature, and 0 for one that does not.
func useIf(used bool) int {
	if used {
		return 1
	}
	return 0
}

// RegionUse returns how much an app in n regions uses FEATURE_MULTI_REGION.
func RegionUse(n int) int {
	if n < 2 {
		return 0
	}
	return n
}

// Uses is how much an app uses each feature. It leaves out features that the app does not use.
type Uses map[windlassv1.Feature]int

// UsesOf returns the features that an app with the spec and the policies uses. Each argument may be nil.
func UsesOf(spec *windlassv1.DeploymentSpec, policy *windlassv1.RolloutPolicy, scaling *windlassv1.ScalingPolicy) Uses {
	out := Uses{}
	for _, f := range features {
		if n := f.used(spec, policy, scaling); n > 0 {
			out[f.feature] = n
		}
	}
	return out
}

// Or returns all features of u and v, each with the greater of its two uses.
func (u Uses) Or(v Uses) Uses {
	out := maps.Clone(u)
	for f, n := range v {
		out[f] = max(out[f], n)
	}
	return out
}

// List returns the features in the order of the enum.
func (u Uses) List() []windlassv1.Feature { return slices.Sorted(maps.Keys(u)) }

// FieldOfFeature returns the field of a deploy that uses the feature.
func FieldOfFeature(f windlassv1.Feature) string {
	for _, row := range features {
		if row.feature == f {
			return row.field
		}
	}
	return ""
}
