package seal

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAValueOpensOnlyInItsOwnContext(t *testing.T) {
	box, err := LoadOrCreate(filepath.Join(t.TempDir(), "key"))
	require.NoError(t, err)
	sealed, err := box.Seal([]byte("hunter2"), "env_1/db/1")
	require.NoError(t, err)
	require.NotContains(t, string(sealed), "hunter2")

	plain, err := box.Open(sealed, "env_1/db/1")
	require.NoError(t, err)
	require.Equal(t, "hunter2", string(plain))
	_, err = box.Open(sealed, "env_2/db/1")
	require.Error(t, err)
}

func TestAllWhoStartAtOnceUseOneKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	boxes := make([]*Box, 8)
	var wg sync.WaitGroup
	for i := range boxes {
		wg.Go(func() {
			box, err := LoadOrCreate(path)
			if err == nil {
				boxes[i] = box
			}
		})
	}
	wg.Wait()
	sealed, err := boxes[0].Seal([]byte("x"), "")
	require.NoError(t, err)
	for _, box := range boxes {
		_, err := box.Open(sealed, "")
		require.NoError(t, err)
	}
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestADamagedKeyFileIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(path, []byte("nonsense"), 0o600))
	_, err := LoadOrCreate(path)
	require.ErrorContains(t, err, path)
}
