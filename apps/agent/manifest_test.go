package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/windlass-run/windlass/pkg/charttest"
)

// This must be tested, because Kubernetes sets any variable, and the program ignores a variable
// that it does not know.
func TestManifest_NamesFlagsThatTheAgentHas(t *testing.T) {
	all := charttest.Containers(t, filepath.Join("..", ".."), "Deployment", "agent")
	require.Len(t, all, 3)
	configs := charttest.Containers(t, filepath.Join("..", ".."), "ConfigMap", "agent")
	for file, c := range all {
		t.Run(file, func(t *testing.T) {
			require.Greater(t, len(c.Env), 10)
			var config struct{ Data map[string]string }
			require.NoError(t, yaml.Unmarshal([]byte(configs[file].Text), &config))
			dir := t.TempDir()
			for name, text := range config.Data {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			for name, value := range c.Env {
				c.Env[name] = strings.Replace(value, "/config/", dir+"/", 1)
			}
			var f flags
			parser, err := newParser(&f)
			require.NoError(t, err)
			c.SetEnv(t)
			_, err = parser.Parse(c.Args)
			require.NoError(t, err)
			require.NoError(t, f.TLS.CheckURL(f.Server))
			require.Equal(t, "kubernetes", f.Runtime)
			require.NotEmpty(t, f.Cluster.CredentialSecret)
			runtime, err := f.Cluster.runtimeConfig()
			require.NoError(t, err)
			if strings.Contains(file, ".full.") {
				require.Contains(t, runtime.Pools, "h100")
				require.True(t, runtime.Policy.RunAsRoot)
				require.Equal(t, 2, f.Gateways)
			}
		})
	}
}
