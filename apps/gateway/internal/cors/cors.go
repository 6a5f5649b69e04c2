// Package cors makes the CORS headers of a route. They tell browsers which pages of other
// origins may use the app.
//
// github.com/rs/cors implements the protocol. This package differs from it in three ways:
//   - It matches origins itself. The wildcard of rs/cors stands for any text, so that
//     "https://*.example.com" matches "https://user@evil.test:x.example.com". Here it stands for
//     labels of a host name.
//   - It returns the headers instead of writing them, because they are set in two places. On the
//     gateway's own answers they let a page read an error. On an instance's answers they
//     replace the instance's CORS headers.
//   - It allows nothing to a request with headers that no browser sends, and does not copy
//     anything from it into the answer.
package cors

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	rs "github.com/rs/cors"
)

// prefix begins the names of all CORS headers.
const prefix = "Access-Control-"

// Config holds the CORS settings of a route.
type Config struct {
	// Origins are the allowed origins: "*", "https://chat.example.com", or "https://*.example.com"
	// for all its subdomains.
	Origins []string
	// Methods and Headers are the methods and headers that requests may use. Exposed are the headers of answers that
	// pages may read. Headers may be "*".
	Methods, Headers, Exposed []string
	// Credentials allows requests with cookies and other credentials.
	Credentials bool
	// MaxAge is how long a browser may cache the answer to a preflight; nil: the browser's default.
	MaxAge *time.Duration
}

// Policy makes the CORS headers of a route. It is safe for concurrent use.
type Policy struct{ rs *rs.Cors }

// New returns the Policy, or an error that names the invalid origin.
func New(cfg Config) (*Policy, error) {
	options := rs.Options{
		AllowedMethods: cfg.Methods, AllowedHeaders: cfg.Headers, ExposedHeaders: cfg.Exposed,
		AllowCredentials: cfg.Credentials,
	}
	if len(options.AllowedHeaders) == 0 {
		options.AllowedHeaders = []string{"Accept", "Authorization", "Content-Type"}
	}
	if cfg.MaxAge != nil {
		if options.MaxAge = int(*cfg.MaxAge / time.Second); options.MaxAge == 0 {
			options.MaxAge = -1 // rs/cors sends 0 for -1, and no header for 0
		}
	}
	if slices.Contains(cfg.Origins, "*") {
		if cfg.Credentials {
			return nil, errors.New(`cors: origin "*" with credentials: browsers refuse the combination, name the origins`)
		}
		options.AllowedOrigins = []string{"*"}
		return &Policy{rs: rs.New(options)}, nil
	}
	exact, wildcards := map[string]bool{}, []pattern(nil)
	for _, o := range cfg.Origins {
		scheme, host, ok := strings.Cut(o, "://")
		if !ok || host == "" {
			return nil, fmt.Errorf("cors: origin %q is not scheme://host", o)
		}
		if suffix, isWildcard := strings.CutPrefix(host, "*"); isWildcard {
			if !strings.HasPrefix(suffix, ".") {
				return nil, fmt.Errorf("cors: origin %q: * stands for whole labels of a host name, write *.example.com", o)
			}
			wildcards = append(wildcards, pattern{strings.ToLower(scheme + "://"), strings.ToLower(suffix)})
			continue
		}
		exact[strings.ToLower(o)] = true
	}
	options.AllowOriginFunc = func(origin string) bool {
		return exact[origin] || slices.ContainsFunc(wildcards, func(p pattern) bool { return p.matchesOrigin(origin) })
	}
	return &Policy{rs: rs.New(options)}, nil
}

// pattern is an origin with a wildcard: scheme is "https://", suffix is ".example.com".
type pattern struct{ scheme, suffix string }

func (p pattern) matchesOrigin(origin string) bool {
	host, ok := strings.CutPrefix(origin, p.scheme)
	if !ok {
		return false
	}
	labels, ok := strings.CutSuffix(host, p.suffix)
	if !ok || labels == "" {
		return false
	}
	for label := range strings.SplitSeq(labels, ".") {
		if label == "" || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// Preflight reports whether the request is a CORS preflight.
func Preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get(prefix+"Request-Method") != ""
}

// Headers returns the CORS headers of the answer to the request. The answer to a preflight has no
// other headers and no body.
func (p *Policy) Headers(r *http.Request) http.Header {
	w := &headerRecorder{h: http.Header{}}
	if !canBeFromBrowser(r) {
		// Nothing is allowed. Vary makes caches keep this answer apart from the answers to other origins.
		w.h.Set("Vary", "Origin")
		return w.h
	}
	p.rs.HandlerFunc(w, r)
	return w.h
}

// canBeFromBrowser reports whether a browser can have sent the headers that Headers copies into the
// answer.
func canBeFromBrowser(r *http.Request) bool {
	if len(r.Header["Origin"]) > 1 || len(r.Header[prefix+"Request-Method"]) > 1 {
		return false
	}
	if origin := r.Header.Get("Origin"); origin != "" && origin != "null" {
		if u, err := url.Parse(origin); err != nil || u.Scheme+"://"+u.Host != origin || u.Host == "" {
			return false
		}
	}
	for _, list := range r.Header[prefix+"Request-Headers"] {
		if len(list) > maxNameList || strings.Trim(list, nameListChars) != "" {
			return false
		}
	}
	return true
}

const (
	// nameListChars are the characters of a list of header names.
	nameListChars = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ, \t"
	// maxNameList is the longest list of header names that is copied into an answer, in bytes.
	maxNameList = 4096
)

// Replace removes the CORS headers from an instance's headers, and sets ours in answer, the headers
// of the gateway's answer.
func Replace(answer, instance, ours http.Header) {
	for name := range instance {
		if strings.HasPrefix(name, prefix) {
			delete(instance, name)
		}
	}
	Set(answer, ours)
}

// Set sets the headers in answer. It adds to Vary what is missing there, and replaces other headers.
func Set(answer, ours http.Header) {
	for name, values := range ours {
		if name != "Vary" {
			answer[name] = slices.Clone(values)
			continue
		}
		for _, v := range values {
			if !slices.Contains(answer["Vary"], v) {
				answer["Vary"] = append(slices.Clip(answer["Vary"]), v)
			}
		}
	}
}

// headerRecorder is a ResponseWriter that keeps the headers and drops the rest.
type headerRecorder struct{ h http.Header }

func (w *headerRecorder) Header() http.Header         { return w.h }
func (w *headerRecorder) Write(p []byte) (int, error) { return len(p), nil }
func (w *headerRecorder) WriteHeader(int)             {}
