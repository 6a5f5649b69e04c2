package kubelab

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/etcdmain"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"

	"github.com/windlass-run/windlass/apps/kubelab/internal/component"
)

// asAsset is the environment variable that makes this test binary run as etcd or kube-apiserver, without
// kubelab's changes.
const asAsset = "KUBELAB_TEST_AS_ASSET"

func asset(name string) int {
	if name == component.Etcd {
		etcdmain.Main(os.Args)
		return 0
	}
	return cli.Run(apiserver.NewAPIServerCommand())
}

func TestAssets_ReplaceTheBuiltInComponents(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	assets := t.TempDir()
	names := []string{component.Etcd, component.APIServer}
	for _, name := range names {
		script := fmt.Sprintf("#!/bin/sh\necho used >%q\n%s=%s exec %q \"$@\"\n", filepath.Join(assets, name+".used"), asAsset, name, self)
		require.NoError(t, os.WriteFile(filepath.Join(assets, name), []byte(script), 0o755))
	}
	t.Setenv("KUBEBUILDER_ASSETS", assets)
	l, err := launch(t.Context(), t.TempDir(), "--cidr=127.93.0.0/16", "--group=name=h100,nodes=1,gpu=nvidia.com/gpu=8")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.stop()) }()
	for _, name := range names {
		require.FileExists(t, filepath.Join(assets, name+".used"))
	}
	ns := l.namespace(t, nil)
	l.create(t, ns, serve("model", 1, gpus("4")))
	l.ready(t, ns, "model", 1)
	status, err := httpGet(t.Context(), "http://"+l.pods(t, ns)[0].Status.PodIP+":8000/health")
	require.NoError(t, err)
	require.Equal(t, 200, status)
	_, err = l.client.DiscoveryV1().EndpointSlices(ns).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err, "the foreign API server serves its own EndpointSlices")
}
