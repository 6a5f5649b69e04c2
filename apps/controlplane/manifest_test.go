package controlplane

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// Kubernetes takes any variable, and a program that does not know one ignores it.
func TestManifest_NamesFlagsThatServeHas(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "deployments", "kubernetes", "controlplane.yaml"))
	require.NoError(t, err)
	set := regexp.MustCompile(`\{name: (WINDLASS_\w+), value: "?([^"}]*)"?\}`).FindAllStringSubmatch(string(data), -1)
	require.Greater(t, len(set), 10)
	var flags cli
	parser, err := newParser(&flags)
	require.NoError(t, err)
	known := map[string]bool{}
	for _, command := range parser.Model.Leaves(false) {
		for _, flag := range command.Flags {
			for _, env := range flag.Envs {
				known[env] = true
			}
		}
	}
	for _, flag := range parser.Model.Flags {
		for _, env := range flag.Envs {
			known[env] = true
		}
	}
	for _, s := range set {
		require.True(t, known[s[1]], "%s is no flag's", s[1])
		t.Setenv(s[1], s[2])
	}
	t.Setenv("WINDLASS_MYSQL_DSN", "user:password@tcp(db:3306)/windlass")
	_, err = parser.Parse([]string{"serve"})
	require.NoError(t, err)
	require.Equal(t, "/keyset/keyset.json", flags.Serve.KeyFile)
	require.Contains(t, string(data), "secret: {secretName: windlass-keyset, defaultMode: 0400}", "the default mode is 0644, which is refused")
	require.Contains(t, string(data), "fsGroup: 65532")
}
