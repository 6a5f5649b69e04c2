package console

import (
	"compress/gzip"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

var built = fstest.MapFS{
	"placeholder.html":           {Data: []byte("no dashboard")},
	"dist/index.html":            {Data: []byte("<!doctype html>the page")},
	"dist/assets/app-1a2b.js":    {Data: []byte("plain")},
	"dist/assets/app-1a2b.js.gz": {Data: []byte("gzipped")},
	"dist/assets/app-1a2b.js.br": {Data: []byte("brotli")},
	"dist/assets/app-1a2b.css":   {Data: []byte("body{}")},
}

func get(t *testing.T, files fs.FS, method, target, encoding string) *http.Response {
	t.Helper()
	s, err := newSite(files, "apps.example")
	require.NoError(t, err)
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, target, http.NoBody)
	r.Header.Set("Accept-Encoding", encoding)
	s.ServeHTTP(w, r)
	return w.Result()
}

func text(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return string(b)
}

func TestPage_ServesEveryPathAndLoadsOnlyOwnFiles(t *testing.T) {
	for _, target := range []string{"/ui/", "/ui/apps", "/ui/apps/default/production/echo", "/ui/%2e%2e/secret"} {
		r := get(t, built, http.MethodGet, target, "br")
		require.Equal(t, http.StatusOK, r.StatusCode)
		require.Equal(t, "<!doctype html>the page", text(t, r), target)
		require.Equal(t, "no-cache", r.Header.Get("Cache-Control"))
		require.Equal(t, "nosniff", r.Header.Get("X-Content-Type-Options"))
		csp := strings.Replace(r.Header.Get("Content-Security-Policy"), " http://*.apps.example:* https://*.apps.example:*", "", 1)
		require.Contains(t, csp, "default-src 'none'")
		require.Contains(t, csp, "frame-ancestors 'none'")
		require.NotRegexp(t, `unsafe|\*|https?:`, csp)
	}
}

func TestAssets_AreCachedForeverAndInTheBrowsersEncoding(t *testing.T) {
	for encoding, want := range map[string][2]string{
		"gzip, deflate, br": {"br", "brotli"}, "gzip": {"gzip", "gzipped"}, "": {"", "plain"}, "br;q=0, gzip;q=0.5": {"gzip", "gzipped"},
	} {
		r := get(t, built, http.MethodGet, "/ui/assets/app-1a2b.js", encoding)
		require.Equal(t, want[0], r.Header.Get("Content-Encoding"), encoding)
		require.Equal(t, want[1], text(t, r))
		require.Contains(t, r.Header.Get("Content-Type"), "javascript")
		require.Equal(t, "public, max-age=31536000, immutable", r.Header.Get("Cache-Control"))
		require.Equal(t, "Accept-Encoding", r.Header.Get("Vary"))
	}
	require.Equal(t, "body{}", text(t, get(t, built, http.MethodGet, "/ui/assets/app-1a2b.css", "br")))
	for _, target := range []string{"/ui/assets/gone-1.js", "/ui/assets/", "/ui/assets/../index.html", "/ui/assets/app-1a2b.js.gz"} {
		r := get(t, built, http.MethodGet, target, "br")
		require.Equal(t, http.StatusNotFound, r.StatusCode, target)
		require.NotContains(t, r.Header.Get("Cache-Control"), "immutable")
	}
	require.Equal(t, http.StatusMethodNotAllowed, get(t, built, http.MethodPost, "/ui/apps", "").StatusCode)
	require.Empty(t, text(t, get(t, built, http.MethodHead, "/ui/assets/app-1a2b.js", "")))
}

func TestPage_WithoutNodeSaysHowToBuildIt(t *testing.T) {
	page, err := fs.ReadFile(embedded, "assets/placeholder.html")
	require.NoError(t, err)
	r := get(t, fstest.MapFS{"placeholder.html": {Data: page}}, http.MethodGet, "/ui/", "")
	require.Contains(t, text(t, r), "go tool task build")
}

// maxFirstView is the limit on the scripts of the first view, in bytes with gzip.
const maxFirstView = 300 << 10

func TestPage_FirstViewIsSmallWithoutInlineScripts(t *testing.T) {
	page, err := fs.ReadFile(embedded, "assets/dist/index.html")
	if err != nil {
		t.Skip("built without the dashboard: .ci/dashboard builds it")
	}
	require.NotRegexp(t, `<script(?:[^>]*)>[^<]|<style|\son[a-z]+=|style=|https?://`, string(page))
	sum := 0
	for _, m := range regexp.MustCompile(`(?:src|href)="`+Path+`(assets/[^"]+\.js)"`).FindAllStringSubmatch(string(page), -1) {
		data, err := fs.ReadFile(embedded, path.Join("assets/dist", m[1]+".gz"))
		require.NoError(t, err)
		_, err = gzip.NewReader(strings.NewReader(string(data)))
		require.NoError(t, err)
		sum += len(data)
	}
	require.Positive(t, sum)
	require.Less(t, sum, maxFirstView)
	t.Logf("first view: %d KiB of script with gzip", sum>>10)
}

func TestPage_MaySendRequestsToAppsOnly(t *testing.T) {
	answered := func(target string) string {
		return get(t, built, http.MethodGet, target, "").Header.Get("Content-Security-Policy")
	}
	require.Contains(t, answered("/ui/apps"), "; connect-src 'self' http://*.apps.example:* https://*.apps.example:*; ")
	require.Contains(t, answered("/ui/apps"), "script-src 'self'; ")
	require.Equal(t, policy, answered("/ui/assets/app-1a2b.js"))
}
