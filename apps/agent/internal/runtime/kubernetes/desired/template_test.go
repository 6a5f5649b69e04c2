package desired

import (
	"testing"

	"github.com/stretchr/testify/require"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
)

func TestTemplate_IsKeptAsSent(t *testing.T) {
	want := coreac.PodTemplateSpec().WithSpec(coreac.PodSpec().
		WithContainers(coreac.Container().WithName("main").WithImage("x").
			WithEnvFrom(coreac.EnvFromSource().WithSecretRef(coreac.SecretEnvSource().WithName("vars")))).
		WithImagePullSecrets(coreac.LocalObjectReference().WithName("pull")))
	packed, err := packTemplate(want)
	require.NoError(t, err)
	got, err := unpackTemplate(packed)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, []string{"pull", "vars"}, secretsNamed(got))
	_, err = unpackTemplate("nonsense")
	require.ErrorContains(t, err, "kept pod template")
}
