package restate

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// registry serves one package of npm, whose program is the script.
func registry(t *testing.T, script string) (url, digest string) {
	t.Helper()
	var content bytes.Buffer
	zip := gzip.NewWriter(&content)
	files := tar.NewWriter(zip)
	manifest, err := json.Marshal(map[string]string{"name": npmPackage(), "version": Version})
	require.NoError(t, err)
	for name, text := range map[string]string{"package.json": string(manifest), "bin/restate-server": script} {
		require.NoError(t, files.WriteHeader(&tar.Header{Name: "package/" + name, Size: int64(len(text)), Mode: 0o755}))
		_, err := files.Write([]byte(text))
		require.NoError(t, err)
	}
	require.NoError(t, files.Close())
	require.NoError(t, zip.Close())
	sum := sha512.Sum512(content.Bytes())
	digest = "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path.Ext(r.URL.Path) == ".tgz" {
			_, _ = w.Write(content.Bytes())
			return
		}
		// The registry confirms its own content, as one that was broken into would.
		_ = json.NewEncoder(w).Encode(map[string]any{
			"name": npmPackage(), "dist-tags": map[string]string{"latest": Version},
			"versions": map[string]any{Version: map[string]any{
				"name": npmPackage(), "version": Version,
				"dist": map[string]string{"integrity": digest, "tarball": server.URL + "/server.tgz"},
			}},
		})
	}))
	t.Cleanup(server.Close)
	return server.URL, digest
}

// A program that is not the one whose digest is known here is not installed, whatever the registry says.
func TestInstall(t *testing.T) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("npm is not installed")
	}
	url, digest := registry(t, "#!/bin/sh\nexit 3\n")
	t.Setenv("npm_config_registry", url)
	t.Setenv("npm_config_cache", t.TempDir())
	home := filepath.Join(t.TempDir(), Version)
	quiet := func(string) {}

	err = install(t.Context(), npm, home, integrity[platform()], quiet)
	require.ErrorContains(t, err, "checksum failed")
	require.NoFileExists(t, inside(home))
	require.NoFileExists(t, inside(home+".tmp"))

	// With the digest of the same content, it gets as far as the look at the program.
	err = install(t.Context(), npm, home, digest, quiet)
	require.ErrorContains(t, err, "has no server for")
	require.NoFileExists(t, inside(home))

	require.ErrorContains(t, install(t.Context(), npm, home, "", quiet), "into PATH")
}

func TestIntegrity(t *testing.T) {
	require.Equal(t, []string{"darwin-arm64", "darwin-x64", "linux-arm64", "linux-x64"}, slices.Sorted(maps.Keys(integrity)))
	for platform, digest := range integrity {
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(digest, "sha512-"))
		require.NoError(t, err, platform)
		require.Len(t, sum, sha512.Size, platform)
	}
}
