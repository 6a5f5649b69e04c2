package mariadb

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommand_IsShownWithoutQuietOptions(t *testing.T) {
	require.Equal(t, []string{"apt-get", "-y", "install", "--no-install-recommends", "mariadb-server"},
		withoutQuiet(managers[0].install))
}

func TestInstall_FailureHasItsFirstError(t *testing.T) {
	require.Equal(t, "E: Unable to locate package mariadb-server",
		explainFailure("Reading package lists...\nE: Unable to locate package mariadb-server\nE: and more\n"))
	require.Equal(t, "ERROR: unable to select packages:", explainFailure("fetch ...\nERROR: unable to select packages:\n  mariadb (no such package)\n"))
	require.Equal(t, "no space left on device", explainFailure("unpacking\nno space left on device\n"))
	require.Empty(t, explainFailure(""))
}

func TestError_NamesTheCommandAndTheReason(t *testing.T) {
	err := run(t.Context(), []string{"sh", "-c", "echo working; echo 'E: broken' >&2; exit 100"})
	require.EqualError(t, err, "sh: exit status 100: E: broken")
	require.NoError(t, run(t.Context(), []string{"true"}))
}
