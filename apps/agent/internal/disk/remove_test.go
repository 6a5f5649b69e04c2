package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRemoveAll(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "outside")
	require.NoError(t, os.MkdirAll(filepath.Join(outside, "kept"), 0o700))
	dir := filepath.Join(t.TempDir(), "dir")
	deep := filepath.Join(dir, strings.Repeat("d/", 2*removeDepth))
	require.NoError(t, os.MkdirAll(deep, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(deep, "file"), nil, 0o600))
	for i := range removeBatch + 10 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
	}
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "link")))

	gone := errors.New("the agent ends")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	require.ErrorIs(t, RemoveAll(ended, dir), gone)
	require.DirExists(t, dir)

	require.NoError(t, RemoveAll(t.Context(), dir))
	require.NoDirExists(t, dir)
	require.DirExists(t, filepath.Join(outside, "kept"), "behind a link")
	require.NoError(t, RemoveAll(t.Context(), dir), "it is gone")

	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(outside, link))
	require.NoError(t, RemoveAll(t.Context(), link))
	require.DirExists(t, filepath.Join(outside, "kept"))
}
