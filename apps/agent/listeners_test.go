package agent

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestListenerFlags(t *testing.T) {
	t.Run("what cannot be meant is refused with the flag's name", func(t *testing.T) {
		for want, f := range map[string]listenerFlags{
			"--listen-insecure: leave --listen-tls-cert":                                      {Insecure: true, Cert: "a"},
			"--listen-tls-cert, --listen-tls-key and --listen-client-ca: give all three":      {Cert: "a", Key: "b"},
			"--listen-tls-cert: certificate " + filepath.Join("no", "cert") + " with key b: ": {Cert: filepath.Join("no", "cert"), Key: "b", ClientCA: "c"},
		} {
			_, err := f.open(nil)
			require.ErrorContains(t, err, want)
		}
	})
	t.Run("without any flag, gateways of other hosts prove who they are", func(t *testing.T) {
		l, err := listenerFlags{}.open(nil)
		require.NoError(t, err)
		require.False(t, l.Insecure)
	})
}
