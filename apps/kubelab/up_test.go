package kubelab

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFlags_BadValuesAreRefusedBeforeTheStart(t *testing.T) {
	dir := t.TempDir()
	for flag, want := range map[string]string{
		"--cidr=10.0.0.0/16":           "--cidr: 10.0.0.0/16 must be a part of 127.0.0.0/8",
		"--cidr=127.0.0.0/8":           "--cidr: 127.0.0.0/8 contains 127.0.0.1",
		"--cidr=127.64.0.1":            "--cidr: netip.ParsePrefix",
		"--group=name=a,nodes=-1":      "--group: group \"a\": nodes must be 0 to 2000",
		"--gpu=8":                      `--gpu: "8" must be resource=count`,
		"--cpu=lots":                   "--cpu: quantities must match",
		"--api-port=70000":             "--api-port must be 0 to 65535",
		"--crash-backoff=0s":           "--crash-backoff must be more than 0",
		"--node-grace=1s":              "the grace period of nodes must be at least 2s",
		"--evict-after=-1s":            "the time until eviction must not be negative",
		"--gpu-product=no/such/label!": "gpu-product: ",
	} {
		var out bytes.Buffer
		err := run(t.Context(), []string{"up", "--data-dir", dir, flag}, &out, &out)
		require.ErrorContains(t, err, want, flag)
	}
}

func TestAssets_MissingBinaryIsNamed(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", t.TempDir())
	var out bytes.Buffer
	err := run(t.Context(), []string{"up", "--data-dir", t.TempDir()}, &out, &out)
	require.ErrorContains(t, err, "KUBEBUILDER_ASSETS has no etcd")
}

func TestCommands_WithoutAClusterSayHowToStartOne(t *testing.T) {
	for _, command := range [][]string{{"kubeconfig"}, {"node", "list"}, {"node", "lose", "a"}} {
		var out bytes.Buffer
		err := run(t.Context(), append(command, "--data-dir", t.TempDir()), &out, &out)
		require.ErrorContains(t, err, "start a cluster with kubelab up, or say where it is with --data-dir")
	}
}
