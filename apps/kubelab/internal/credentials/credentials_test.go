package credentials

import (
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCredentials_AreCreatedOnceAndReadableOnlyByTheirUser(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "credentials")
	first, err := Ensure(dir)
	require.NoError(t, err)
	second, err := Ensure(dir)
	require.NoError(t, err)
	require.Equal(t, first, second)
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		require.NoError(t, err)
		st, err := os.Stat(path)
		require.NoError(t, err)
		require.Zero(t, st.Mode().Perm()&0o077, path)
		return nil
	}))
}

func TestCertificate_IsSignedByTheAuthority(t *testing.T) {
	c, err := Ensure(filepath.Join(t.TempDir(), "credentials"))
	require.NoError(t, err)
	pair, err := tls.LoadX509KeyPair(c.CertFile(), c.KeyFile())
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(c.ca))
	for _, name := range []string{"127.0.0.1", "localhost", "kubernetes.default.svc"} {
		_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name})
		require.NoError(t, err, name)
	}
}

func TestCredentials_UsersHaveTheirOwnTokens(t *testing.T) {
	c, err := Ensure(filepath.Join(t.TempDir(), "credentials"))
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, u := range users() {
		token := c.REST(u, "https://127.0.0.1:1").BearerToken
		require.Len(t, token, 32)
		require.False(t, seen[token])
		seen[token] = true
	}
}

func TestCredentials_IgnoreAnIncompleteFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "credentials")
	require.NoError(t, os.MkdirAll(dir+".tmp", 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir+".tmp", "ca.crt"), []byte("half"), 0o600))
	c, err := Ensure(dir)
	require.NoError(t, err)
	require.NotEqual(t, "half", string(c.ca))
	_, err = os.Stat(dir + ".tmp")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestCredentials_DamagedFilesAreAnError(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "credentials")
	c, err := Ensure(dir)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(c.TokenFile(), []byte("token,someone,someone,\n"), 0o600))
	_, err = Ensure(dir)
	require.ErrorContains(t, err, "has no token of kubelab-admin; remove "+dir)
}
