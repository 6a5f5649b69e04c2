// Package console serves the dashboard, a web page that uses the user API.
//
// The page and its files are embedded. The build names each file, except the page, by a hash of its content, so that
// browsers can cache the file for ever. It adds compressed copies. A control plane that was built without Node serves
// a page that says how to build the dashboard.
//
// By its Content-Security-Policy, the page may run and load only files from this server, and no other page may show
// it in a frame. It may also send requests to hosts of apps, for the page Chat. It contains no data: all data comes
// from the API, which authenticates each call. See package api for sessions.
package console

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"
)

//go:embed all:assets
var embedded embed.FS

// Path is the URL path below which the dashboard is served.
const Path = "/ui/"

// policy is the Content-Security-Policy of the page. Styles that scripts set on elements do not count as inline
// styles.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; " +
	"manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// encodings are the encodings of compressed copies with their file extensions, the best first.
var encodings = []struct{ name, ending string }{{"br", ".br"}, {"gzip", ".gz"}}

// kinds has the content type of each file extension of a build. The host's MIME table is not used.
var kinds = map[string]string{
	".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
}

// ownServer is the part of the policy that says to which servers the page may send requests.
const ownServer = "connect-src 'self'"

type site struct {
	files fs.FS
	page  []byte
	// policy is the Content-Security-Policy of the page.
	policy string
}

// New returns the handler of the dashboard. domain is the parent domain of apps' hosts, to which the page may send
// requests at any port, because only the regions know the ports of their gateways.
func New(domain string) (http.Handler, error) {
	files, err := fs.Sub(embedded, "assets")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	return newSite(files, domain)
}

// newSite returns a site that serves dist of files, or the placeholder if there is no dist.
func newSite(files fs.FS, domain string) (*site, error) {
	page, err := fs.ReadFile(files, "dist/index.html")
	if errors.Is(err, fs.ErrNotExist) {
		page, err = fs.ReadFile(files, "placeholder.html")
	}
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	dist, err := fs.Sub(files, "dist")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	allowed := fmt.Sprintf("%s http://*.%s:* https://*.%s:*", ownServer, domain, domain)
	return &site{files: dist, page: page, policy: strings.Replace(policy, ownServer, allowed, 1)}, nil
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "the dashboard only accepts GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, Path)
	if strings.HasPrefix(name, "assets/") {
		s.serveAsset(w, r, name)
		return
	}
	// Every other path is a view of the page, which the page's script selects.
	h.Set("Content-Security-Policy", s.policy)
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Type", "text/html; charset=utf-8")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(s.page))
}

// serveAsset serves a file whose name has a hash of its content.
func (s *site) serveAsset(w http.ResponseWriter, r *http.Request, name string) {
	h := w.Header()
	kind, ok := kinds[path.Ext(name)]
	if !ok || !fs.ValidPath(name) {
		http.NotFound(w, r)
		return
	}
	h.Set("Vary", "Accept-Encoding")
	for _, e := range encodings {
		if !acceptsEncoding(r.Header.Get("Accept-Encoding"), e.name) {
			continue
		}
		if data, err := fs.ReadFile(s.files, name+e.ending); err == nil {
			h.Set("Content-Encoding", e.name)
			send(w, r, kind, data)
			return
		}
	}
	data, err := fs.ReadFile(s.files, name)
	if err != nil {
		// A page from before an upgrade may request files that no longer exist. The answer must not be cached.
		http.NotFound(w, r)
		return
	}
	send(w, r, kind, data)
}

func send(w http.ResponseWriter, r *http.Request, kind string, data []byte) {
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(data) // a client that closed the connection needs no answer
	}
}

// acceptsEncoding reports whether a header Accept-Encoding allows the encoding. Quality 0 means that it does not.
func acceptsEncoding(header, encoding string) bool {
	for part := range strings.SplitSeq(header, ",") {
		name, quality, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.TrimSpace(name) != encoding {
			continue
		}
		q, found := strings.CutPrefix(strings.TrimSpace(quality), "q=")
		value, err := strconv.ParseFloat(q, 64)
		return !found || err == nil && value > 0
	}
	return false
}
