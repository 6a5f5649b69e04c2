package agent

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/certfile"
)

func TestListenerFlags(t *testing.T) {
	t.Run("what cannot be meant is refused with the flag's name", func(t *testing.T) {
		for want, f := range map[string]certfile.ServerFlags{
			"--listen-insecure: leave --listen-tls-cert":                                      {Insecure: true, PairFlags: certfile.PairFlags{Cert: "a"}},
			"--listen-tls-cert, --listen-tls-key and --listen-client-ca: give all three":      {PairFlags: certfile.PairFlags{Cert: "a", Key: "b"}},
			"--listen-tls-cert: certificate " + filepath.Join("no", "cert") + " with key b: ": {PairFlags: certfile.PairFlags{Cert: filepath.Join("no", "cert"), Key: "b"}, ClientCA: "c"},
		} {
			_, err := openListeners(f, nil)
			require.ErrorContains(t, err, want)
		}
	})
	t.Run("without any flag, gateways of other hosts prove who they are", func(t *testing.T) {
		l, err := openListeners(certfile.ServerFlags{}, nil)
		require.NoError(t, err)
		require.False(t, l.Insecure)
	})
}
