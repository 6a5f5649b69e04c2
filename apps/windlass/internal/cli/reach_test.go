package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// selfSigned returns a certificate that is its own CA, and the path of its PEM file.
func selfSigned(t *testing.T, change func(*x509.Certificate)) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	change(c)
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, path
}

func TestExplain_UnreachableServerHasAFix(t *testing.T) {
	serve := func(secure bool, change func(*x509.Certificate)) (*httptest.Server, string) {
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		t.Cleanup(s.Close)
		if !secure {
			s.Start()
			return s, ""
		}
		cert, ca := selfSigned(t, change)
		s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
		s.StartTLS()
		return s, ca
	}
	usual := func(*x509.Certificate) {}
	for name, tc := range map[string]struct {
		secure, trusted bool
		change          func(*x509.Certificate)
		scheme          string
		says            string
	}{
		"a CA that is not known":        {true, false, usual, "https", "--server-ca"},
		"an expired certificate":        {true, true, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-24 * time.Hour) }, "https", "not valid at this time"},
		"a future certificate":          {true, true, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(24 * time.Hour) }, "https", "not valid at this time"},
		"a certificate of another name": {true, true, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 9)} }, "https", "for other names"},
		"a certificate of a client": {true, true, func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		}, "https", "not for a server"},
		"TLS to a port without":    {false, false, usual, "https", "write http://"},
		"plaintext to a TLS port":  {true, false, usual, "http", "write https://"},
		"a port that nothing owns": {false, false, usual, "", "Is it running?"},
	} {
		t.Run(name, func(t *testing.T) {
			server, ca := serve(tc.secure, tc.change)
			_, address, _ := strings.Cut(server.URL, "://")
			target := tc.scheme + "://" + address
			if tc.scheme == "" {
				server.Close()
				target = "http://" + address
			}
			env := map[string]string{"WINDLASS_SERVER": target, "WINDLASS_API_KEY": "wl_x", "HOME": t.TempDir(), "WINDLASS_INSECURE": "true"}
			if tc.trusted {
				env["WINDLASS_SERVER_CA"] = ca
			}
			root := New(Config{
				Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, IsTerminal: func(io.Writer) bool { return false },
				Getenv: func(name string) string { return env[name] },
			})
			root.SetArgs([]string{"list", "apps", "--timeout", "2s"})
			err := root.ExecuteContext(t.Context())
			require.Error(t, err)
			require.Contains(t, Explain(err), "cannot reach the control plane")
			require.Contains(t, Explain(err), tc.says)
		})
	}
}
