package controlplane

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/charttest"
)

// parseContainer returns the flags that the program reads from the container's environment variables and arguments.
func parseContainer(t *testing.T, c charttest.Container) *cli {
	t.Helper()
	flags := &cli{}
	parser, err := newParser(flags)
	require.NoError(t, err)
	c.SetEnv(t)
	t.Setenv("WINDLASS_MYSQL_DSN", "user:password@tcp(db:3306)/windlass")
	_, err = parser.Parse(c.Args)
	require.NoError(t, err)
	return flags
}

// The test is needed because the program ignores environment variables that it does not know.
func TestManifest_NamesFlagsThatServeHas(t *testing.T) {
	all := charttest.Containers(t, filepath.Join("..", ".."), "Deployment", "controlplane")
	require.Len(t, all, 3)
	for file, c := range all {
		t.Run(file, func(t *testing.T) {
			require.Greater(t, len(c.Env), 10)
			flags := parseContainer(t, c)
			require.Equal(t, "/keyset/keyset.json", flags.Serve.KeyFile)
			require.Contains(t, c.Text, "secretName: windlass-keyset\n            defaultMode: 0400\n", "the default mode is 0644, which the program refuses")
			require.Contains(t, c.Text, "fsGroup: 65532")
		})
	}
	t.Run("flags of values reach the program", func(t *testing.T) {
		flags := parseContainer(t, all["windlass-controlplane.full.golden.yaml"])
		require.Equal(t, int64(5_000_000), flags.Serve.Limits.Apps)
		require.True(t, flags.Serve.Pprof)
		require.Equal(t, []string{"10.0.0.0/8", "192.168.0.0/16"}, flags.Serve.TrustedProxies)
	})
}

func TestManifest_BackupNamesFlags(t *testing.T) {
	all := charttest.Containers(t, filepath.Join("..", ".."), "CronJob", "controlplane")
	require.Len(t, all, 1)
	for _, c := range all {
		create := parseContainer(t, c).Backup.Create
		require.Equal(t, 48, create.Keep)
		require.NoError(t, create.checkKeep())
		recipients, err := create.readRecipients()
		require.NoError(t, err)
		require.Len(t, recipients, 1)
	}
}
