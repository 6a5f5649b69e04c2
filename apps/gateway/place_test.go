package gateway

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/ident"
)

func TestPlace_IsTakenOnlyFromAnEndedGateway(t *testing.T) {
	dir := t.TempDir()
	take := func() place {
		t.Helper()
		p, err := takePlace(dir)
		require.NoError(t, err)
		require.True(t, ident.Valid("gw", p.id), p.id)
		return p
	}
	old := take()
	successor := take()
	require.NotEqual(t, old.id, successor.id, "both processes serve")
	old.leaveTo() // as the kernel does for a crashed process
	next := take()
	require.Equal(t, old.id, next.id)
	successor.leaveTo()
	again := take()
	require.Equal(t, successor.id, again.id)
	again.leaveTo()
	next.leaveTo()

	// An invalid id is replaced.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "gateway-0"), []byte("gw_"), 0o600))
	fresh := take()
	require.NotEqual(t, old.id, fresh.id)
	fresh.leaveTo()
	fresh = take()
	kept, err := os.ReadFile(filepath.Join(dir, "gateway-0"))
	require.NoError(t, err)
	require.Equal(t, fresh.id+"\n", string(kept))
	fresh.leaveTo()

	_, err = takePlace(filepath.Join(dir, "gateway-0"))
	require.Error(t, err, "the data directory is a file")
}
