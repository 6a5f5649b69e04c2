package gateway

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

// TestTheManifestSaysWhatTheProgramUnderstands: Kubernetes takes any variable, and a
// program that does not know one ignores it.
func TestTheManifestSaysWhatTheProgramUnderstands(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "deployments", "kubernetes", "gateway.yaml"))
	require.NoError(t, err)
	set := regexp.MustCompile(`\{name: (WINDLASS_\w+), value: "?([^"}]*)"?\}`).FindAllStringSubmatch(string(data), -1)
	require.Greater(t, len(set), 6)
	var f flags
	parser, err := kong.New(&f, kong.Vars{"version": "test"})
	require.NoError(t, err)
	known := map[string]bool{}
	for _, flag := range parser.Model.Flags {
		for _, env := range flag.Envs {
			known[env] = true
		}
	}
	for _, s := range set {
		require.True(t, known[s[1]], "%s is no flag's", s[1])
		t.Setenv(s[1], s[2]) // those that are commented out, too
	}
	_, err = parser.Parse(nil)
	require.NoError(t, err)
	require.NoError(t, f.check())
	require.Equal(t, []string{":8080"}, f.Listen)
	grace, err := strconv.Atoi(regexp.MustCompile(`terminationGracePeriodSeconds: (\d+)`).FindStringSubmatch(string(data))[1])
	require.NoError(t, err)
	require.Less(t, f.DrainDelay+f.DrainTimeout, time.Duration(grace)*time.Second, "the drain fits into the grace")
}
