package measure_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
)

func TestDiskProbe_RecordsTheLongestSyncAndRemovesItsFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, err := measure.ProbeDisk(dir)
	require.NoError(t, err)
	longest, err := p.Stop()
	require.NoError(t, err)
	require.Positive(t, longest)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)

	_, err = measure.ProbeDisk(dir + "/missing")
	require.ErrorIs(t, err, os.ErrNotExist)
}
