package appspec

import (
	"testing"

	"github.com/stretchr/testify/require"

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
	require.ErrorContains(t, check(func(s *windlassv1.DeploymentSpec) {
		s.Model, s.Models = nil, &windlassv1.ModelServer{}
		s.Roles = []*windlassv1.RoleSpec{{Name: "prefill", Command: []string{"a"}}, {Name: "decode", Command: []string{"a"}}}
	}), "servers of models have one role")
}
