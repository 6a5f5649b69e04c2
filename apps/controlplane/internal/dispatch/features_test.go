package dispatch

import (
	"crypto/sha256"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestFeatures_OfAnItemFollowItsDeployment(t *testing.T) {
	gpu := func(g *windlassv1.Gpu) *windlassv1.DeploymentSpec {
		return &windlassv1.DeploymentSpec{Resources: &windlassv1.Resources{Gpu: g}}
	}
	uses := map[agentv1.Feature]*windlassv1.DeploymentSpec{
		agentv1.Feature_FEATURE_GPU_POOL:           gpu(&windlassv1.Gpu{Count: 1, Pool: "h100"}),
		agentv1.Feature_FEATURE_GPU_MIN_MEMORY:     gpu(&windlassv1.Gpu{Count: 1, MinMemoryMib: 80_000}),
		agentv1.Feature_FEATURE_GPU_RESOURCE_NAME:  gpu(&windlassv1.Gpu{Count: 1, ResourceName: "amd.com/gpu"}),
		agentv1.Feature_FEATURE_IMAGE_PULL_SECRETS: {Secrets: []*windlassv1.SecretReference{{EnvName: "A", Secret: "a"}, {Secret: "b", ImagePull: true}}},
		agentv1.Feature_FEATURE_MODEL_CACHE:        {ModelCache: &windlassv1.ModelCache{MountPath: "/models", HostPath: "/var/models"}},
		agentv1.Feature_FEATURE_KUBERNETES_OPTIONS: {Kubernetes: &windlassv1.KubernetesOptions{PriorityClass: "high"}},
		agentv1.Feature_FEATURE_SCALE_TO_ZERO:      {Routing: &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{}}},
		agentv1.Feature_FEATURE_MODELS:             {Model: &windlassv1.LoadedModel{}},
		agentv1.Feature_FEATURE_MODEL_ARTIFACTS:    {Model: &windlassv1.LoadedModel{Artifact: &windlassv1.ModelArtifact{}}},
		agentv1.Feature_FEATURE_POOLED_ROLES:       {Layout: windlassv1.Layout_LAYOUT_POOLED},
		agentv1.Feature_FEATURE_UNIT_HOSTS:         {Roles: []*windlassv1.RoleSpec{{Name: "main", Hosts: 2}}},
		agentv1.Feature_FEATURE_GANG:               {Gang: &windlassv1.Gang{Of: windlassv1.Gang_OF_GROUP}},
		agentv1.Feature_FEATURE_TOPOLOGY:           {Topology: &windlassv1.Topology{Pack: "rack"}},
		agentv1.Feature_FEATURE_STABLE_SLOTS:       {Roles: []*windlassv1.RoleSpec{{Name: "main", Slots: windlassv1.RoleSpec_SLOTS_STABLE}}},
		agentv1.Feature_FEATURE_PAIRING:            {Pairing: &windlassv1.Pairing{Engine: windlassv1.Pairing_ENGINE_NIXL}},
		agentv1.Feature_FEATURE_ROLES:              {Roles: []*windlassv1.RoleSpec{{Name: "prefill"}, {Name: "decode"}}},
		agentv1.Feature_FEATURE_EXPECTED_CODES:     {HealthCheck: &windlassv1.HealthCheck{ExpectedCodes: []string{"204"}}},
	}
	for n, name := range agentv1.Feature_name {
		if n == 0 {
			continue
		}
		if agentv1.Feature(n) == agentv1.Feature_FEATURE_IN_PLACE {
			continue // set by the row, not by the deployment
		}
		if agentv1.Feature(n) == agentv1.Feature_FEATURE_INSTANCE_ISOLATION {
			continue // set by the region, for every workspace
		}
		if agentv1.Feature(n) == agentv1.Feature_FEATURE_FOLLOW_LOGS {
			continue // about answers to readers of logs
		}
		if agentv1.Feature(n) == agentv1.Feature_FEATURE_SERIES {
			continue // about answers to readers of series
		}
		if agentv1.Feature(n) == agentv1.Feature_FEATURE_SESSION_PROOF {
			continue // about calls of the agent
		}
		if agentv1.Feature(n) == agentv1.Feature_FEATURE_POOL_ORDERS {
			continue // set by the row: without this feature, a row does not take over a pool in which several roles differ
		}
		if agentv1.Feature(n) == agentv1.Feature_FEATURE_POOL_YIELDS {
			continue // only plans read it: without this feature, a new instance waits for room
		}
		spec := uses[agentv1.Feature(n)]
		require.NotNil(t, spec, "add a spec that uses %s", name)
		item := encoded(t, func(it *model.DesiredItem) { it.Deployment.Spec = spec })
		state := item.GetDeployment()
		want := []string{name}
		if agentv1.Feature(n) == agentv1.Feature_FEATURE_MODEL_ARTIFACTS {
			want = []string{agentv1.Feature_FEATURE_MODELS.String(), name}
		}
		require.Equal(t, want, state.GetRequiredFeatures())

		// Another release may require other features for the same deployment, and hosts may be below another domain.
		// That must not count as drift.
		state.RequiredFeatures, state.Traceparent, state.WorkloadVersion = nil, "", 0
		state.Deployment.PreviewHost = ""
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(state)
		require.NoError(t, err)
		hash := sha256.Sum256(data)
		require.Equal(t, hash[:specHashSize], item.SpecHash)
	}
}

func TestFeatures_OfARoleFollowItsResources(t *testing.T) {
	role := &windlassv1.RoleSpec{Name: "main", Resources: &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 1, Pool: "h100"}}}
	require.Equal(t, []string{"FEATURE_GPU_POOL"}, requiredFeatures(&windlassv1.DeploymentSpec{Roles: []*windlassv1.RoleSpec{role}}))
}

func TestFeatures_SpecsOfEarlierReleasesNeedNone(t *testing.T) {
	plain := &windlassv1.DeploymentSpec{
		Image: "registry.example/echo:v1", Command: []string{"serve"}, Env: map[string]string{"A": "1"},
		Secrets:     []*windlassv1.SecretReference{{EnvName: "TOKEN", Secret: "token"}},
		Resources:   &windlassv1.Resources{CpuMillicores: 100, MemoryMib: 64, ShmMib: 16, Gpu: &windlassv1.Gpu{Count: 2, Product: "NVIDIA-L4"}},
		Ports:       []*windlassv1.Port{{Name: "http", Port: 8000}},
		HealthCheck: &windlassv1.HealthCheck{Path: "/health", Method: "HEAD"},
	}
	item := encoded(t, func(it *model.DesiredItem) { it.Deployment.Spec = plain })
	require.Empty(t, item.GetDeployment().GetRequiredFeatures())

	// Every agent can stop its instances.
	item = encoded(t, func(it *model.DesiredItem) {
		it.Delete, it.Deployment.Spec = true, &windlassv1.DeploymentSpec{ModelCache: &windlassv1.ModelCache{}}
	})
	require.Empty(t, item.GetDeployment().GetRequiredFeatures())
}
