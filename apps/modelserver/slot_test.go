package modelserver

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSlot_CountsStartsOfAllServers(t *testing.T) {
	dir := t.TempDir()
	for _, want := range []string{"1", "2"} {
		e := startReady(t, Config{SlotDir: dir})
		res, err := e.client.Get(e.url + "/health")
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, want, res.Header.Get("X-Model-Slot-Starts"))
		e.stop()
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, slotFile), []byte("many"), 0o600))
	broken, err := New(Config{SlotDir: dir})
	require.NoError(t, err)
	require.ErrorContains(t, broken.Run(t.Context()), filepath.Join(dir, slotFile))

	e := startReady(t, Config{})
	res, err := e.client.Get(e.url + "/health")
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Empty(t, res.Header.Get("X-Model-Slot-Starts"))
}
