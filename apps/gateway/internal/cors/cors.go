// Package cors tells browsers which pages of other origins may use an app, as its route
// says.
//
// What a preflight asks and what answers say is github.com/rs/cors. Ours are three things
// around it. Origins are matched here: its wildcard is any text between a prefix and a
// suffix, "https://user@evil.test:x.example.com" included, and ours is labels of a host
// name. Headers are made apart from the answer, as they are set twice: on what the gateway
// answers itself, so that a page may read why it was refused, and on an instance's answer,
// in the place of what that says. And a request with headers that no browser sends is given
// no leave, and nothing of it is repeated.
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

// prefix of all headers that are about CORS.
const prefix = "Access-Control-"

// Config of a route.
type Config struct {
	// Origins: "*", "https://chat.example.com", or "https://*.example.com" for all below.
	Origins []string
	// Methods, Headers of requests and Exposed headers of answers. Headers may be "*".
	Methods, Headers, Exposed []string
	Credentials               bool
	// MaxAge of what a preflight tells; nil: not told.
	MaxAge *time.Duration
}

// Policy of a route. It is safe for concurrent use.
type Policy struct{ rs *rs.Cors }

// New returns the policy, or an error that names what of it cannot be.
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
			options.MaxAge = -1 // its word for 0
		}
	}
	if slices.Contains(cfg.Origins, "*") {
		if cfg.Credentials {
			return nil, errors.New(`cors: origin "*" with credentials: browsers refuse the two together`)
		}
		options.AllowedOrigins = []string{"*"}
		return &Policy{rs: rs.New(options)}, nil
	}
	exact, below := map[string]bool{}, []pattern(nil)
	for _, o := range cfg.Origins {
		scheme, host, ok := strings.Cut(o, "://")
		if !ok || host == "" {
			return nil, fmt.Errorf("cors: origin %q is not scheme://host", o)
		}
		if suffix, wild := strings.CutPrefix(host, "*"); wild {
			if !strings.HasPrefix(suffix, ".") {
				return nil, fmt.Errorf("cors: origin %q: * stands for whole labels", o)
			}
			below = append(below, pattern{strings.ToLower(scheme + "://"), strings.ToLower(suffix)})
			continue
		}
		exact[strings.ToLower(o)] = true
	}
	options.AllowOriginFunc = func(origin string) bool {
		return exact[origin] || slices.ContainsFunc(below, func(p pattern) bool { return p.matches(origin) })
	}
	return &Policy{rs: rs.New(options)}, nil
}

// pattern is a wildcard's.
type pattern struct{ scheme, suffix string }

func (p pattern) matches(origin string) bool {
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

// Preflight reports whether the request asks for leave and nothing else.
func Preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get(prefix+"Request-Method") != ""
}

// Headers returns the CORS fields of the answer to the request. Of a preflight they are the whole
// answer.
func (p *Policy) Headers(r *http.Request) http.Header {
	w := &headers{h: http.Header{}}
	if !sane(r) {
		// No leave. Caches must keep this answer apart from those to other origins.
		w.h.Set("Vary", "Origin")
		return w.h
	}
	p.rs.HandlerFunc(w, r)
	return w.h
}

// sane tells that what is repeated to the client is what a browser may have sent.
func sane(r *http.Request) bool {
	if len(r.Header["Origin"]) > 1 || len(r.Header[prefix+"Request-Method"]) > 1 {
		return false
	}
	if origin := r.Header.Get("Origin"); origin != "" && origin != "null" {
		if u, err := url.Parse(origin); err != nil || u.Scheme+"://"+u.Host != origin || u.Host == "" {
			return false
		}
	}
	for _, list := range r.Header[prefix+"Request-Headers"] {
		if len(list) > maxNames || strings.Trim(list, names) != "" {
			return false
		}
	}
	return true
}

// names are the characters of names of headers, and of lists of them. maxNames is how long a
// list may be that is repeated.
const (
	names    = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ, \t"
	maxNames = 4096
)

// Replace puts the gateway's headers in the place of an instance's: to, which are those of
// the answer so far, get ours, and from lose theirs.
func Replace(to, from, ours http.Header) {
	for name := range from {
		if strings.HasPrefix(name, prefix) {
			delete(from, name)
		}
	}
	Set(to, ours)
}

// Set the headers; of Vary, add what it lacks.
func Set(to, ours http.Header) {
	for name, values := range ours {
		if name != "Vary" {
			to[name] = slices.Clone(values)
			continue
		}
		for _, v := range values {
			if !slices.Contains(to["Vary"], v) {
				to["Vary"] = append(slices.Clip(to["Vary"]), v)
			}
		}
	}
}

// headers is a ResponseWriter of which nothing but the headers count.
type headers struct{ h http.Header }

func (w *headers) Header() http.Header         { return w.h }
func (w *headers) Write(p []byte) (int, error) { return len(p), nil }
func (w *headers) WriteHeader(int)             {}
