package disk

import (
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWriteFile_ReplacesTheWholeFileAndLeavesNoOther(t *testing.T) { //nolint:tparallel // the test reads the directory after its subtests
	t.Parallel()
	dir := t.TempDir()
	for name, files := range map[string]Files{"dir": Dir(dir), "memory": NewMemory()} {
		t.Run(name, func(t *testing.T) {
			_, err := files.Read("a")
			require.ErrorIs(t, err, fs.ErrNotExist)
			require.NoError(t, files.Remove("a"))
			require.NoError(t, files.Replace("a", []byte("one, and long")))
			require.NoError(t, files.Replace("a", []byte("two")))
			data, err := files.Read("a")
			require.NoError(t, err)
			require.Equal(t, "two", string(data))
			data[0] = 'x'
			again, err := files.Read("a")
			require.NoError(t, err)
			require.Equal(t, "two", string(again))
		})
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Error(t, Dir(dir+"/none").Replace("a", nil))
}

func TestMemory_CloneIsIndependent(t *testing.T) {
	t.Parallel()
	m := NewMemory()
	require.NoError(t, m.Replace("a", []byte("one")))
	c := m.Clone()
	require.NoError(t, m.Replace("a", []byte("two")))
	data, err := c.Read("a")
	require.NoError(t, err)
	require.Equal(t, "one", string(data))
}
