package seal

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
)

func TestDerive(t *testing.T) {
	manager := keyset.NewManager()
	add := func(primary bool) {
		id, err := manager.Add(aead.AES256GCMKeyTemplate())
		require.NoError(t, err)
		if primary {
			require.NoError(t, manager.SetPrimary(id))
		}
	}
	box := func() *Box {
		handle, err := manager.Handle()
		require.NoError(t, err)
		var data bytes.Buffer
		require.NoError(t, insecurecleartextkeyset.Write(handle, keyset.NewJSONWriter(&data)))
		b, err := New(data.Bytes())
		require.NoError(t, err)
		return b
	}
	derive := func(purpose string) [][]byte {
		keys, err := box().Derive(purpose)
		require.NoError(t, err)
		return keys
	}
	add(true)
	first := derive("peers")
	require.Len(t, first, 1)
	require.Equal(t, first, derive("peers"), "all processes that read the file have the same keys")
	require.NotEqual(t, first, derive("agents"), "each purpose has its own key")
	add(false)
	both := derive("peers")
	require.Len(t, both, 2)
	require.Equal(t, first[0], both[0], "the new key does not change the keys of processes without it")
	add(true)
	three := derive("peers")
	require.Contains(t, three, first[0])
	require.NotContains(t, both, three[0], "the primary is the first")
}
