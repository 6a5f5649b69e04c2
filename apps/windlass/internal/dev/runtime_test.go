package dev

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRuntime_UnknownIsRefused(t *testing.T) {
	r := &run{layout: layout{root: "/tmp/dev"}}
	require.ErrorContains(t, r.settleKubernetes(State{Runtime: "docker"}), `the last run in /tmp/dev had the runtime "docker"`)
	_, err := r.runtimeArgs("here", true)
	require.ErrorContains(t, err, `unknown runtime "docker"`)

	r = &run{opts: options{runtime: runtimeProcess, gpus: "auto"}}
	require.NoError(t, r.settleKubernetes(State{Runtime: "docker"}), "the flag replaces the last run's")
	args, err := r.runtimeArgs("here", true)
	require.NoError(t, err)
	require.Contains(t, args, "--runtime=process")

	r = &run{}
	require.NoError(t, r.settleKubernetes(State{}), "an earlier dev stored none")
	require.Equal(t, runtimeProcess, r.runtime)
}
