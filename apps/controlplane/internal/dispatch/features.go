package dispatch

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// features has each feature with a function that reports whether a spec uses it.
var features = []struct {
	feature agentv1.Feature
	used    func(*windlassv1.DeploymentSpec) bool
}{
	{agentv1.Feature_FEATURE_GPU_POOL, anyGPU(func(g *windlassv1.Gpu) bool { return g.GetPool() != "" })},
	{agentv1.Feature_FEATURE_GPU_MIN_MEMORY, anyGPU(func(g *windlassv1.Gpu) bool { return g.GetMinMemoryMib() > 0 })},
	{agentv1.Feature_FEATURE_GPU_RESOURCE_NAME, anyGPU(func(g *windlassv1.Gpu) bool { return g.GetResourceName() != "" })},
	{agentv1.Feature_FEATURE_IMAGE_PULL_SECRETS, func(s *windlassv1.DeploymentSpec) bool {
		return slices.ContainsFunc(s.GetSecrets(), (*windlassv1.SecretReference).GetImagePull)
	}},
	{agentv1.Feature_FEATURE_MODEL_CACHE, func(s *windlassv1.DeploymentSpec) bool { return s.GetModelCache() != nil }},
	{agentv1.Feature_FEATURE_KUBERNETES_OPTIONS, func(s *windlassv1.DeploymentSpec) bool { return s.GetKubernetes() != nil }},
	{agentv1.Feature_FEATURE_SCALE_TO_ZERO, func(s *windlassv1.DeploymentSpec) bool { return s.GetRouting().GetColdStart() != nil }},
	{agentv1.Feature_FEATURE_ROLES, func(s *windlassv1.DeploymentSpec) bool {
		return len(s.GetRoles()) > 1 || slices.ContainsFunc(s.GetRoles(), func(r *windlassv1.RoleSpec) bool {
			return r.GetEntry() || len(r.GetStartsAfter()) > 0 || len(r.GetEnv()) > 0
		})
	}},
	{agentv1.Feature_FEATURE_MODELS, func(s *windlassv1.DeploymentSpec) bool { return s.GetModel() != nil }},
	{agentv1.Feature_FEATURE_MODEL_ARTIFACTS, func(s *windlassv1.DeploymentSpec) bool { return s.GetModel().GetArtifact() != nil }},
	{agentv1.Feature_FEATURE_POOLED_ROLES, model.IsPooled},
	{agentv1.Feature_FEATURE_UNIT_HOSTS, model.HasSeveralHosts},
	{agentv1.Feature_FEATURE_GANG, model.HasGang},
	{agentv1.Feature_FEATURE_TOPOLOGY, model.HasTopology},
	{agentv1.Feature_FEATURE_STABLE_SLOTS, func(s *windlassv1.DeploymentSpec) bool { return len(model.StableRoles(s)) > 0 }},
	{agentv1.Feature_FEATURE_PAIRING, model.HasPairing},
	{agentv1.Feature_FEATURE_EXPECTED_CODES, func(s *windlassv1.DeploymentSpec) bool { return len(s.GetHealthCheck().GetExpectedCodes()) > 0 }},
}

// anyGPU returns a function that reports whether used is true for the GPU of the spec or of a role with its own
// resources.
func anyGPU(used func(*windlassv1.Gpu) bool) func(*windlassv1.DeploymentSpec) bool {
	return func(s *windlassv1.DeploymentSpec) bool {
		return used(s.GetResources().GetGpu()) || slices.ContainsFunc(s.GetRoles(), func(r *windlassv1.RoleSpec) bool {
			return used(r.GetResources().GetGpu())
		})
	}
}

// requiredFeatures returns the features that an agent needs to run the spec. See agentv1.Feature.
func requiredFeatures(s *windlassv1.DeploymentSpec) []string {
	var out []string
	for _, f := range features {
		if f.used(s) {
			out = append(out, f.feature.String())
		}
	}
	return out
}
