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

// serveRegistry serves an npm registry that has only the package of the server, with the script as its program.
func serveRegistry(t *testing.T, script string) (url, digest string) {
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
		// The registry reports the digest of its own content, as a registry under an attacker's control would.
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

// A package is not installed if its digest differs from the one in integrity, even if the registry confirms it.
func TestInstall_RefusesAnotherDigest(t *testing.T) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("npm is not installed")
	}
	url, digest := serveRegistry(t, "#!/bin/sh\nexit 3\n")
	t.Setenv("npm_config_registry", url)
	t.Setenv("npm_config_cache", t.TempDir())
	installDir := filepath.Join(t.TempDir(), Version)
	noProgress := func(string) {}

	err = installPackage(t.Context(), npm, installDir, integrity[npmPlatform()], noProgress)
	require.ErrorContains(t, err, "checksum failed")
	require.NoFileExists(t, programIn(installDir))
	require.NoFileExists(t, programIn(installDir+".tmp"))

	// With the digest of that package, install goes on to check the program, which is a script.
	err = installPackage(t.Context(), npm, installDir, digest, noProgress)
	require.ErrorContains(t, err, "has no server for")
	require.NoFileExists(t, programIn(installDir))

	require.ErrorContains(t, installPackage(t.Context(), npm, installDir, "", noProgress), "into PATH")
}

func TestIntegrity_HasADigestForEachPlatform(t *testing.T) {
	require.Equal(t, []string{"darwin-arm64", "darwin-x64", "linux-arm64", "linux-x64"}, slices.Sorted(maps.Keys(integrity)))
	for platform, digest := range integrity {
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(digest, "sha512-"))
		require.NoError(t, err, platform)
		require.Len(t, sum, sha512.Size, platform)
	}
}
