package api

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestAudit_HasNoSecretFields(t *testing.T) {
	doc, err := auditJSON(&windlassv1.SetSecretRequest{Environment: "e", Name: "n", Value: "hunter2"})
	require.NoError(t, err)
	require.JSONEq(t, `{"environment":"e","name":"n","value":"[redacted]"}`, doc)
	doc, err = auditJSON((*windlassv1.Secret)(nil))
	require.NoError(t, err)
	require.Empty(t, doc)
}

func TestRequestHash_CoversAllFieldsExceptTheKey(t *testing.T) {
	hash := func(procedure, key, name, value string) string {
		h, err := requestHash(procedure, &windlassv1.SetSecretRequest{
			Mutation: &windlassv1.Mutation{IdempotencyKey: key}, Name: name, Value: value,
		})
		require.NoError(t, err)
		return string(h)
	}
	require.Equal(t, hash("p", "k", "n", "v"), hash("p", "k", "n", "v"))
	for _, other := range []string{hash("q", "k", "n", "v"), hash("p", "k", "m", "v"), hash("p", "k", "n", "w")} {
		require.NotEqual(t, hash("p", "k", "n", "v"), other)
	}
}

func TestVariables_OwnAndInheritedMakeDifferentVersions(t *testing.T) {
	s := &windlassv1.DeploymentSpec{Secrets: []*windlassv1.SecretReference{{EnvName: "TOKEN", Secret: "t"}}}
	own := map[string]string{"A": "own", "B": "own"}
	appspec.InheritEnv(s, map[string]string{"A": "shared", "C": "shared", "TOKEN": "shared"}, own)
	require.Equal(t, map[string]string{"A": "own", "B": "own", "C": "shared"}, s.GetEnv())
	require.Equal(t, []string{"C"}, s.GetInheritedEnv())
	require.Equal(t, own, appspec.OwnEnv(s))
}

func TestSpec_EqualsASpecOfTheSameVersion(t *testing.T) {
	base := func() *windlassv1.DeploymentSpec {
		return appspec.WithDefaults(&windlassv1.DeploymentSpec{Command: []string{"x"}, Regions: []string{"a", "b"}, InheritedEnv: []string{"forged"}})
	}
	require.Empty(t, base().GetInheritedEnv(), "callers cannot set inherited variables")
	for name, c := range map[string]struct {
		edit func(*windlassv1.DeploymentSpec)
		same bool
	}{
		"replicas": {func(s *windlassv1.DeploymentSpec) { s.Replicas = new(int32(7)) }, true},
		"label":    {func(s *windlassv1.DeploymentSpec) { s.VersionLabel = "v2" }, true},
		"message":  {func(s *windlassv1.DeploymentSpec) { s.Message = "why" }, true},
		"commit":   {func(s *windlassv1.DeploymentSpec) { s.SourceCommit = "abc" }, true},
		"order":    {func(s *windlassv1.DeploymentSpec) { s.Regions = []string{"b", "a"} }, true},
		"regions":  {func(s *windlassv1.DeploymentSpec) { s.Regions = []string{"a"} }, false},
		"command":  {func(s *windlassv1.DeploymentSpec) { s.Command = []string{"y"} }, false},
		"memory":   {func(s *windlassv1.DeploymentSpec) { s.Resources.MemoryMib++ }, false},
		"env":      {func(s *windlassv1.DeploymentSpec) { s.Env = map[string]string{"A": "1"} }, false},
	} {
		other := base()
		c.edit(other)
		same, err := appspec.Same(base(), other)
		require.NoError(t, err)
		require.Equal(t, c.same, same, name)
	}
	before := base()
	before.Regions = []string{"b", "a"}
	_, err := appspec.Hash(before)
	require.NoError(t, err)
	require.Equal(t, []string{"b", "a"}, before.GetRegions(), "the hash does not change the spec")
}
