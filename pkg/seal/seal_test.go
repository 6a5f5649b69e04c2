package seal

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestValue_OpensInItsContextOnly(t *testing.T) {
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

func TestKeys_ConcurrentStartsUseOne(t *testing.T) {
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

func TestKeyFile_DamagedIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(path, []byte("nonsense"), 0o600))
	_, err := LoadOrCreate(path)
	require.ErrorContains(t, err, path)
}

func TestKeyFile_IsAccessibleToItsOwnerOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	require.NoError(t, Create(path))
	require.ErrorIs(t, Create(path), os.ErrExist, "a keyset is never replaced")
	for _, mode := range []os.FileMode{0o644, 0o650, 0o604, 0o620} {
		require.NoError(t, os.Chmod(path, mode))
		_, err := Load(path)
		require.ErrorContains(t, err, "chmod 600", "%04o", mode)
	}
	require.NoError(t, os.Chmod(path, 0o400))
	_, err := Load(path)
	require.NoError(t, err)
}

func TestKeyset_IsRotatedWhileProcessesRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	require.NoError(t, Create(path))
	before, err := Load(path)
	require.NoError(t, err)
	old, err := before.Seal([]byte("x"), "c")
	require.NoError(t, err)
	_, err = Rotate(path)
	require.ErrorContains(t, err, "add a key first")

	added, err := Add(path)
	require.NoError(t, err)
	informed, err := Load(path) // a process that has restarted, unlike the others
	require.NoError(t, err)
	sealed, err := informed.Seal([]byte("y"), "c")
	require.NoError(t, err)
	_, err = before.Open(sealed, "c")
	require.NoError(t, err, "no value is sealed with the new key before it is primary")

	primary, err := Rotate(path)
	require.NoError(t, err)
	require.Equal(t, added, primary)
	after, err := Load(path)
	require.NoError(t, err)
	sealed, err = after.Seal([]byte("z"), "c")
	require.NoError(t, err)
	_, err = informed.Open(sealed, "c")
	require.NoError(t, err)
	plain, err := after.Open(old, "c")
	require.NoError(t, err, "the old key still opens")
	require.Equal(t, "x", string(plain))
	keys, err := Keys(path)
	require.NoError(t, err)
	require.Len(t, keys, 2)
	require.Equal(t, []bool{false, true}, []bool{keys[0].Primary, keys[1].Primary})
	require.Equal(t, "enabled", keys[0].Status)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestRemove_RemovesEveryKeyExceptThePrimary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	require.NoError(t, Create(path))
	before, err := Load(path)
	require.NoError(t, err)
	old := before.Primary()
	sealed, err := before.Seal([]byte("x"), "c")
	require.NoError(t, err)
	id, ok := KeyOf(sealed)
	require.True(t, ok)
	require.Equal(t, old, id)
	require.Equal(t, Prefix(old), sealed[:5])
	_, ok = KeyOf([]byte("nonsense"))
	require.False(t, ok)

	_, err = Add(path)
	require.NoError(t, err)
	require.ErrorContains(t, Remove(path, old), "make another key primary first")
	require.ErrorContains(t, Remove(path, old+1), "has no key")
	primary, err := Rotate(path)
	require.NoError(t, err)
	require.NoError(t, Remove(path, old))
	after, err := Load(path)
	require.NoError(t, err)
	require.Equal(t, []uint32{primary}, after.Keys())
	_, err = after.Open(sealed, "c")
	require.Error(t, err)
}
