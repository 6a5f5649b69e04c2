package gateway

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/ident"
)

func TestIdentity_IsTakenOnlyFromAnEndedGateway(t *testing.T) {
	dir := t.TempDir()
	take := func() identity {
		t.Helper()
		p, err := takeIdentity(dir)
		require.NoError(t, err)
		require.True(t, ident.Valid("gw", p.id), p.id)
		return p
	}
	old := take()
	successor := take()
	require.NotEqual(t, old.id, successor.id, "both processes serve")
	old.release() // as the kernel does for a crashed process
	next := take()
	require.Equal(t, old.id, next.id)
	successor.release()
	again := take()
	require.Equal(t, successor.id, again.id)
	again.release()
	next.release()

	// An invalid id is replaced.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "gateway-0"), []byte("gw_"), 0o600))
	fresh := take()
	require.NotEqual(t, old.id, fresh.id)
	fresh.release()
	fresh = take()
	kept, err := os.ReadFile(filepath.Join(dir, "gateway-0"))
	require.NoError(t, err)
	require.Equal(t, fresh.id+"\n", string(kept))
	fresh.release()

	_, err = takeIdentity(filepath.Join(dir, "gateway-0"))
	require.Error(t, err, "the data directory is a file")
}
