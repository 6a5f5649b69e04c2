package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/ci/tools/layout"
)

// write writes files into dir, by path.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
}

func fileURL(dir string) string {
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(dir)}).String()
}

// entry is a vulnerability of weak.Unsafe in versions of example.test/weak before 1.2.0.
const entry = `{
	"schema_version": "1.3.1", "id": "GO-2026-9999", "modified": "2026-11-01T00:00:00Z", "published": "2026-11-01T00:00:00Z",
	"summary": "Unsafe is not safe", "details": "Made for a test.",
	"affected": [{
		"package": {"name": "example.test/weak", "ecosystem": "Go"},
		"ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}, {"fixed": "1.2.0"}]}],
		"ecosystem_specific": {"imports": [{"path": "example.test/weak", "symbols": ["Unsafe"]}]}
	}]
}`

// fixture makes a module that vendors the vulnerable module, so that nothing is downloaded.
func fixture(t *testing.T, name, call string) module {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"go.mod":                           "module " + layout.Prefix + name + "\n\ngo 1.26.0\n\nrequire example.test/weak v1.1.0\n",
		"caller.go":                        "package caller\n\nimport \"example.test/weak\"\n\nfunc Run() { weak." + call + "() }\n",
		"vendor/modules.txt":               "# example.test/weak v1.1.0\n## explicit; go 1.26.0\nexample.test/weak\n",
		"vendor/example.test/weak/weak.go": "package weak\n\nfunc Unsafe() {}\n\nfunc Safe() {}\n",
	})
	return module{name: name, dir: dir, env: []string{"GOWORK=off", "CGO_ENABLED=0", "GOFLAGS="}}
}

func TestVulncheck_FailsForCalledVulnerabilities(t *testing.T) {
	root, err := layout.Root(".")
	require.NoError(t, err)
	scanner, err := command(t.Context(), root, nil, filepath.Join(root, ".ci", "tool"), "govulncheck")
	require.NoError(t, err)
	tool := strings.TrimSpace(string(scanner))
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"full/index/db.json":        `{"modified": "2026-11-01T00:00:00Z"}`,
		"full/index/modules.json":   `[{"path": "example.test/weak", "vulns": [{"id": "GO-2026-9999", "modified": "2026-11-01T00:00:00Z", "fixed": "1.2.0"}]}]`,
		"full/ID/GO-2026-9999.json": entry,
		"empty/index/db.json":       `{"modified": "2026-11-01T00:00:00Z"}`,
		"empty/index/modules.json":  `[]`,
		"broken/index/modules.json": `[{"path": 1}]`,
		"broken/index/db.json":      `{`,
	})
	unsafe, safe := fixture(t, "apps/unsafe", "Unsafe"), fixture(t, "apps/safe", "Safe")
	for name, c := range map[string]struct {
		db       string
		modules  []module
		says     []string
		fails    string
		accepted map[string]string
	}{
		"called": {"full", []module{safe, unsafe}, []string{
			"apps/safe: no known vulnerability is called",
			"apps/unsafe: GO-2026-9999 in example.test/weak v1.1.0: Unsafe is not safe", "fix: use v1.2.0",
			"called: example.test/weak.Unsafe by " + layout.Prefix + "apps/unsafe.Run, caller.go:5",
		}, "failed for apps/unsafe", nil},
		"only imported":      {"full", []module{safe}, []string{"no known vulnerability is called"}, "", nil},
		"no vulnerabilities": {"empty", []module{unsafe}, []string{"apps/unsafe: no known vulnerability is called"}, "", nil},
		"broken":             {"broken", []module{unsafe}, []string{"apps/unsafe: govulncheck: exit status"}, "failed for apps/unsafe", nil},
		"accepted": {
			"full",
			[]module{unsafe},
			[]string{"apps/unsafe: GO-2026-9999 is accepted: it is never reached"},
			"",
			map[string]string{"GO-2026-9999": "it is never reached"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := check{scanner: tool, db: fileURL(filepath.Join(dir, c.db)), accepted: c.accepted}.all(t.Context(), &out, c.modules)
			if c.fails == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.fails)
			}
			for _, text := range c.says {
				require.Contains(t, out.String(), text)
			}
		})
	}
}

// serve serves the answer at the index of a database.
func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func index(t *testing.T, text string) []byte {
	t.Helper()
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, err := w.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return zipped.Bytes()
}

func TestDatabase_IsReachedOrGivesAReason(t *testing.T) {
	good := serve(t, func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "/index/db.json.gz", r.URL.Path)
		_, _ = w.Write(index(t, `{"modified": "2026-11-01T10:00:00Z"}`))
	})
	refusing := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	portal := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>Sign in</html>")) })
	timeless := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(index(t, `{}`)) })
	silent := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	folder := t.TempDir()
	for name, c := range map[string]struct {
		address string
		want    database
		says    string
	}{
		"an index":                {good, database{good, "2026-11-01"}, ""},
		"a URL with a slash":      {good + "/", database{good, "2026-11-01"}, ""},
		"refused":                 {refusing, database{}, "403 Forbidden"},
		"a page of a proxy":       {portal, database{}, "is not the index of a database"},
		"an index without a time": {timeless, database{}, "the field modified is missing"},
		"a silent database":       {silent, database{}, "has not answered within 5s"},
		"no such port":            {"http://127.0.0.1:1", database{}, "connection refused"},
		"a folder":                {fileURL(folder), database{fileURL(folder), ""}, ""},
		"no such folder":          {fileURL(folder) + "/gone", database{}, "no such file"},
		"no URL":                  {"vuln.go.dev", database{}, "use a URL with https or file"},
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			var db database
			u, err := parse(c.address)
			if err == nil {
				db, err = reach(t.Context(), u)
			}
			if c.says != "" {
				require.ErrorContains(t, err, c.says)
				require.NotContains(t, err.Error(), "\n", "the error has one line")
				require.Less(t, time.Since(begin), 4*reachTimeout)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, db)
		})
	}
}

func TestVulncheck_WrongAddressFails(t *testing.T) {
	t.Setenv("GOVULNDB", "ftp://example.com")
	require.ErrorContains(t, run(t.Context(), nil, &bytes.Buffer{}), "GOVULNDB: ftp://example.com does not have a supported scheme")
}

func TestVulncheck_MissingDatabaseFailsOnlyIfRequired(t *testing.T) {
	t.Setenv("GOVULNDB", fileURL(t.TempDir())+"/gone")
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), nil, &out))
	require.Regexp(t, `^vulncheck: skipped, the database of vulnerabilities cannot be reached: .*\n$`, out.String())
	require.ErrorContains(t, run(t.Context(), []string{"--require"}, &out), "cannot be reached")
}

func TestVulncheck_HelpIsNotAFailure(t *testing.T) {
	require.NoError(t, run(t.Context(), []string{"--help"}, io.Discard))
	require.Error(t, run(t.Context(), []string{"--requires"}, io.Discard))
}

func TestModuleFolders_AreAllOfTheRepository(t *testing.T) {
	root, err := layout.Root(".")
	require.NoError(t, err)
	modules, err := moduleFolders(t.Context(), root)
	require.NoError(t, err)
	alone := map[string]bool{}
	for _, m := range modules {
		require.FileExists(t, filepath.Join(m.dir, "go.mod"))
		alone[m.name] = len(m.env) == 2
	}
	require.Contains(t, alone, "pkg")
	for name, want := range map[string]bool{"apps/gateway": false, ".ci/tools": false, "apps/kubelab": true, ".ci/peers": true} {
		require.Equal(t, want, alone[name], name)
	}
}
