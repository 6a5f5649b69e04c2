package dev

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCertificates(t *testing.T) {
	l := layout{root: t.TempDir()}
	begin := time.Now()
	c, err := openCertificates(l, begin)
	require.NoError(t, err)
	parts := []string{partMariaDB, partGateway("here")}
	serial := func(part string) string {
		pair, err := tls.LoadX509KeyPair(c.pairFile(part), c.pairFile(part))
		require.NoError(t, err)
		return pair.Leaf.SerialNumber.String()
	}
	renewed, err := c.renewPairs(parts, begin)
	require.NoError(t, err)
	require.Equal(t, parts, renewed)
	first := serial(partMariaDB)

	t.Run("a certificate is for this machine and for apps, and clients with the CA accept it", func(t *testing.T) {
		pair, err := tls.LoadX509KeyPair(c.pairFile(partGateway("here")), c.pairFile(partGateway("here")))
		require.NoError(t, err)
		data, err := os.ReadFile(l.caFile())
		require.NoError(t, err)
		roots := x509.NewCertPool()
		require.True(t, roots.AppendCertsFromPEM(data))
		for _, host := range []string{"127.0.0.1", "localhost", "echo-0123456789ab.windlass.localhost", "v1-echo-0123456789ab.windlass.localhost"} {
			_, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host})
			require.NoError(t, err, host)
		}
	})
	t.Run("only this user can read keys", func(t *testing.T) {
		for _, file := range []string{filepath.Join(l.tlsDir(), "ca.key"), c.pairFile(partMariaDB)} {
			info, err := os.Stat(file)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), file)
		}
	})
	t.Run("a certificate is renewed in the second half of its life, and not before", func(t *testing.T) {
		renewed, err := c.renewPairs(parts, begin.Add(certificateLife-renewWithin-time.Minute))
		require.NoError(t, err)
		require.Empty(t, renewed)
		require.Equal(t, first, serial(partMariaDB))
		renewed, err = c.renewPairs(parts, begin.Add(certificateLife-renewWithin+time.Minute))
		require.NoError(t, err)
		require.Equal(t, parts, renewed)
		require.NotEqual(t, first, serial(partMariaDB))
	})
	t.Run("the next start keeps the CA, and replaces damaged certificates", func(t *testing.T) {
		again, err := openCertificates(l, begin)
		require.NoError(t, err)
		require.Equal(t, c.ca.CertPEM(), again.ca.CertPEM())
		require.NoError(t, os.WriteFile(c.pairFile(partMariaDB), []byte("half"), 0o600))
		renewed, err := again.renewPairs(parts, begin.Add(certificateLife-renewWithin))
		require.NoError(t, err)
		require.Equal(t, []string{partMariaDB}, renewed)
	})
	t.Run("certificates of another CA are replaced", func(t *testing.T) {
		require.NoError(t, os.Remove(l.caFile())) // as after a start that was killed before it wrote the file
		other, err := openCertificates(l, begin)
		require.NoError(t, err)
		renewed, err := other.renewPairs(parts, begin)
		require.NoError(t, err)
		require.Equal(t, parts, renewed)
	})
	t.Run("a CA without its key is an error with the fix", func(t *testing.T) {
		require.NoError(t, os.Remove(filepath.Join(l.tlsDir(), "ca.key")))
		_, err := openCertificates(l, begin)
		require.ErrorContains(t, err, "remove "+l.tlsDir()+" for a new CA")
	})
	t.Run("the identity key stays, too", func(t *testing.T) {
		_, public, err := c.ensureIdentity()
		require.NoError(t, err)
		_, again, err := c.ensureIdentity()
		require.NoError(t, err)
		require.Equal(t, public, again)
	})
}
