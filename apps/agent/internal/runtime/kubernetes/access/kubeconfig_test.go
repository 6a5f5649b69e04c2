package access

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLoadClient_ErrorsNameTheFlag(t *testing.T) {
	_, _, err := LoadClient("", "")
	require.ErrorContains(t, err, "set --kubeconfig")
	_, _, err = LoadClient("", "prod")
	require.ErrorContains(t, err, "set --kubeconfig, too")
	_, _, err = LoadClient("/no/such/file", "")
	require.ErrorContains(t, err, "--kubeconfig=/no/such/file")
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(`
apiVersion: v1
kind: Config
current-context: a
clusters: [{name: c, cluster: {server: "https://one"}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: a, context: {cluster: c, user: u}}, {name: b, context: {cluster: c, user: u, namespace: agents}}]
`), 0o600))
	cfg, ns, err := LoadClient(file, "")
	require.NoError(t, err)
	require.Equal(t, "https://one", cfg.Host)
	require.Equal(t, "default", ns)
	_, ns, err = LoadClient(file, "b")
	require.NoError(t, err)
	require.Equal(t, "agents", ns)
	_, _, err = LoadClient(file, "nope")
	require.ErrorContains(t, err, "nope")
}
