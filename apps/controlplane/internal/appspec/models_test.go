package appspec

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestModels(t *testing.T) {
	check := func(change func(*windlassv1.DeploymentSpec)) error {
		s := &windlassv1.DeploymentSpec{Model: &windlassv1.LoadedModel{}}
		change(s)
		return Check(WithDefaults(s), "spec")
	}
	require.NoError(t, check(func(*windlassv1.DeploymentSpec) {}))
	require.NoError(t, check(func(s *windlassv1.DeploymentSpec) { s.Env = map[string]string{"A": "of the environment"} }))
	for field, change := range map[string]func(*windlassv1.DeploymentSpec){
		"image":   func(s *windlassv1.DeploymentSpec) { s.Image = "registry.test/echo:v1" },
		"command": func(s *windlassv1.DeploymentSpec) { s.Command = []string{"modelserver"} },
		"args":    func(s *windlassv1.DeploymentSpec) { s.Args = []string{"--model"} },
		"roles": func(s *windlassv1.DeploymentSpec) {
			s.Roles = []*windlassv1.RoleSpec{{Name: "decode", Command: []string{"a"}}}
		},
		"secrets": func(s *windlassv1.DeploymentSpec) {
			s.Secrets = []*windlassv1.SecretReference{{EnvName: "TOKEN", Secret: "token"}}
		},
		"ports":     func(s *windlassv1.DeploymentSpec) { s.Ports = []*windlassv1.Port{{Name: "http", Port: 80}} },
		"resources": func(s *windlassv1.DeploymentSpec) { s.Resources = &windlassv1.Resources{MemoryMib: 1} },
		"modelCache": func(s *windlassv1.DeploymentSpec) {
			s.ModelCache = &windlassv1.ModelCache{MountPath: "/m", HostPath: "/m"}
		},
		"serve":  func(s *windlassv1.DeploymentSpec) { s.Serve = &windlassv1.Serve{} },
		"models": func(s *windlassv1.DeploymentSpec) { s.Models = &windlassv1.ModelServer{} },
	} {
		require.ErrorContains(t, check(change), field+" has no effect", field)
	}
	artifact := func(url string, secrets ...*windlassv1.SecretReference) func(*windlassv1.DeploymentSpec) {
		return func(s *windlassv1.DeploymentSpec) {
			s.Model.Artifact, s.Secrets = &windlassv1.ModelArtifact{Url: url}, secrets
		}
	}
	variable := func(name string) *windlassv1.SecretReference {
		return &windlassv1.SecretReference{EnvName: name, Secret: "key"}
	}
	pull := &windlassv1.SecretReference{Secret: "registry", ImagePull: true}
	require.NoError(t, check(artifact("s3://models/fraud/", variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"))))
	require.NoError(t, check(artifact("https://models.test/fraud.tgz", variable("ARTIFACT_TOKEN"))))
	require.NoError(t, check(artifact("oci://registry.test/fraud", pull)))
	require.ErrorContains(t, check(artifact("s3://models/fraud/", variable("KEY"))), "no use for the variable KEY")
	require.ErrorContains(t, check(artifact("s3://models/fraud/", pull)), "imagePull has an effect on oci URLs only")
	require.ErrorContains(t, check(artifact("oci://registry.test/fraud", variable("TOKEN"))), "no use for a variable")
	require.ErrorContains(t, check(func(s *windlassv1.DeploymentSpec) {
		s.Model.Path, s.Model.Artifact = "/adapters/sql", &windlassv1.ModelArtifact{Url: "oci://registry.test/sql"}
	}), "path has no effect")
	require.ErrorContains(t, check(func(s *windlassv1.DeploymentSpec) {
		s.Model.Artifact = &windlassv1.ModelArtifact{Url: "oci://registry.test/sql", Endpoint: "https://s3.test"}
	}), "an endpoint has an effect on s3 URLs only")
	require.ErrorContains(t, check(func(s *windlassv1.DeploymentSpec) {
		s.Model, s.Models = nil, &windlassv1.ModelServer{}
		s.Roles = []*windlassv1.RoleSpec{{Name: "prefill", Command: []string{"a"}}, {Name: "decode", Command: []string{"a"}}}
	}), "servers of models have one role")
}

func TestModels_ScaleServersThatSayTheirRoom(t *testing.T) {
	check := func(servers *windlassv1.ModelServer, metrics ...*windlassv1.ScalingMetric) error {
		return CheckScalingSignals(&windlassv1.ScalingPolicy{Metrics: metrics}, &windlassv1.DeploymentSpec{Models: servers}, "scaling")
	}
	queries, models := &windlassv1.ScalingMetric{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT}, &windlassv1.ScalingMetric{Type: windlassv1.ScalingMetric_TYPE_MODELS}
	require.NoError(t, check(&windlassv1.ModelServer{Slots: 4}, queries, models))
	require.NoError(t, check(&windlassv1.ModelServer{MemoryMib: 4}, models))
	require.NoError(t, check(nil, queries))
	err := check(nil, queries, models)
	require.ErrorContains(t, err, "instances of the app load no models")
	require.Equal(t, "scaling.metrics[1].type", rpc.DetailOf(err).GetField())
	require.ErrorContains(t, check(&windlassv1.ModelServer{}, models), "does not say how many models")
	require.ErrorContains(t, CheckScalingSignals(&windlassv1.ScalingPolicy{Roles: []*windlassv1.RoleScaling{{Metrics: []*windlassv1.ScalingMetric{models}}}},
		&windlassv1.DeploymentSpec{}, "scaling"), "roles of a pool load no models")
}
