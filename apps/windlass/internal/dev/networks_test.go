package dev

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/flock"
)

func silent(string) {}

func TestNetwork_BelongsToOneRegionOnly(t *testing.T) {
	claims := t.TempDir()
	first, err := assignNetworks(claims, nil, []string{"a", "b"}, silent)
	require.NoError(t, err)
	require.NotEqual(t, first["a"], first["b"])

	// This is another program of the same user, while the first one runs.
	second, err := assignNetworks(claims, nil, []string{"a"}, silent)
	require.NoError(t, err)
	require.NotContains(t, []int{first["a"], first["b"]}, second["a"])
}

func TestNetwork_InUseIsReplacedAndReservedIsKept(t *testing.T) {
	claims := t.TempDir()
	lock, err := flock.Try(filepath.Join(claims, "127.90"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lock.Unlock()) })
	var said []string
	last := map[string]int{"a": 90, "gone": 91, "b": 92}
	got, err := assignNetworks(claims, last, []string{"a", "b", "new"}, func(s string) { said = append(said, s) })
	require.NoError(t, err)
	require.Equal(t, 91, got["gone"], "a region that is left out keeps its network")
	require.Equal(t, 92, got["b"])
	require.NotContains(t, []int{90, 91, 92}, got["a"])
	require.NotContains(t, []int{90, 91, 92, got["a"]}, got["new"])
	require.Len(t, said, 1)
	require.Contains(t, said[0], "network 127.90.0.0/16 is in use")
}

func TestNetwork_WithAListenerIsInUse(t *testing.T) {
	table := filepath.Join(t.TempDir(), "tcp")
	require.NoError(t, os.WriteFile(table, []byte(`  sl  local_address rem_address   st tx_queue rx_queue
   0: 0100407F:1F90 00000000:0000 0A 00000000:00000000
   1: 0100417F:1F90 0100007F:9999 01 00000000:00000000
   2: 0100007F:0050 00000000:0000 0A 00000000:00000000
   3: 0100400A:1F90 00000000:0000 0A 00000000:00000000
`), 0o600))
	busy, err := busyNetworks(table)
	require.NoError(t, err)
	require.Equal(t, map[int]bool{64: true, 0: true}, busy)
}

func TestAgent_OnStandbyIsNotReady(t *testing.T) {
	for body, want := range map[string]string{
		`{"status":"ok"}`:                   "",
		`{"status":"ok","role":"active"}`:   "",
		`{"status":"ok","role":"stand-by"}`: "not ready: stand-by",
		`{"status":"ok","role":"starting"}`: "not ready: starting",
		``:                                  "",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
		err := checkReady(t.Context(), server.URL, "")
		server.Close()
		if want == "" {
			require.NoError(t, err, body)
		} else {
			require.EqualError(t, err, want)
		}
	}
}
