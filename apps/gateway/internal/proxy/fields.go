package proxy

import (
	"bytes"
	"net"
	"net/http"
	"net/netip"

	"golang.org/x/net/http/httpguts"

	"github.com/windlass-run/windlass/apps/gateway/internal/http1"
)

// This file decides which fields pass through the gateway, and which fields the gateway adds. The long way uses it
// for an http.Header, and the short way for fields that were read in place.

// fate is what happens to a field.
type fate uint8

const (
	// plain fields are passed on.
	plain fate = iota
	// reserved fields are passed on. A field with a different name that a program may read as the reserved name is
	// not passed on.
	reserved
	// hop fields concern only one connection.
	hop
	// own are fields that only the gateway may set, or that must not reach any instance.
	own
	// forwarding fields tell instances about a client and its request. Programs may base access and answers on
	// them. So only the fields of trusted proxies are passed on.
	forwarding
)

// fates has the known fields by the length of their name.
type fates [32][]known

// known is a field's name, in lower case, with its fate.
type known struct {
	name string
	fate fate
}

func fatesOf(of map[fate][]string) *fates {
	f := new(fates)
	for fate, names := range of {
		for _, name := range names {
			f[len(name)] = append(f[len(name)], known{name, fate})
		}
	}
	return f
}

// fateOf returns the fate of fields with this name.
func (f *fates) fateOf(name []byte) fate {
	if len(name) < len(f) {
		for i := range f[len(name)] {
			if k := &f[len(name)][i]; k.name[0] == name[0]|0x20 && http1.Equal(name, k.name) {
				return k.fate
			}
		}
	}
	return plain
}

var hopFields = []string{
	"connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade",
}

// requestFates are the fates of clients' fields, except for names that begin with X-Forwarded-.
var requestFates = fatesOf(map[fate][]string{
	reserved: {"host", "content-length", "expect", "content-encoding", "authorization", "x-api-key"},
	hop:      hopFields,
	// CGI turns Proxy into the variable HTTP_PROXY.
	own: {"x-forwarded-for", "forwarded", "x-request-id", "windlass-handed-over", "proxy"},
	forwarding: {
		"x-real-ip", "x-client-ip", "x-cluster-client-ip", "x-originating-ip", "x-remote-ip", "x-remote-addr", "true-client-ip", "client-ip",
		"proxy-client-ip", "wl-proxy-client-ip", "wl-proxy-ssl", "cf-connecting-ip", "cf-connecting-ipv6", "cf-pseudo-ipv4", "cf-visitor",
		"fastly-client-ip", "fastly-ssl", "fly-client-ip", "x-appengine-user-ip", "x-azure-clientip", "x-azure-socketip", "x-envoy-external-address",
		"x-envoy-original-path", "x-envoy-original-host", "x-proxyuser-ip", "x-nf-client-connection-ip", "ali-cdn-real-ip", "cdn-src-ip", "cdn-real-ip", "incap-client-ip",
		"x-sucuri-clientip", "x-coming-from", "x-forwarded", "x-forwarder-for", "forwarded-for", "x-original-forwarded-for", "x-original-url", "x-original-uri",
		"x-original-host", "x-original-remote-addr", "x-original-method", "x-rewrite-url", "x-scheme", "x-url-scheme", "x-real-host", "x-real-port", "x-host", "x-server-name",
		"front-end-https", "x-ssl-client-cert", "x-ssl-client-verify", "x-ssl-client-dn", "ssl-client-cert", "ssl-client-verify", "x-client-cert", "x-client-verify", "client-cert", "client-cert-chain",
	},
})

// answerFates are the fates of fields of answers and of their trailers.
var answerFates = fatesOf(map[fate][]string{
	hop: hopFields,
	own: {"x-request-id", "windlass-error", "windlass-region"},
})

const forwarded = "x-forwarded-"

// requestFate returns the fate of a client's field with this name.
func requestFate(name []byte) fate {
	f := requestFates.fateOf(name)
	switch {
	case f != plain:
		return f
	case len(name) >= len(forwarded) && http1.Equal(name[:len(forwarded)], forwarded):
		return forwarding
	case isLookalike(name):
		return own
	}
	return plain
}

// isDropped reports whether a client's field with this fate is not passed on. trusted is whether the client is
// a proxy that may name the original client.
func (f fate) isDropped(trusted bool) bool {
	return f == hop || f == own || f == forwarding && !trusted
}

// isLookalike reports whether a program behind the gateway may take the name for another one. CGI and
// programs like it, such as WSGI, read X_Forwarded_For as X-Forwarded-For (RFC 3875, section 4.1.18). So a
// name with an underscore is never passed on. Some programs read other characters as a dash, too. Names with
// such characters are dropped if the name with dashes would not be plain.
func isLookalike(name []byte) bool {
	if bytes.IndexByte(name, '_') >= 0 {
		return true
	}
	odd := -1
	for i, c := range name {
		if !isPlain[c] {
			odd = i
			break
		}
	}
	if odd < 0 {
		return false
	}
	read := bytes.Clone(name)
	for i, c := range read {
		if !isPlain[c] {
			read[i] = '-'
		}
	}
	return requestFate(read) != plain
}

// isPlain has the bytes of usual field names.
var isPlain = func() *[256]bool {
	var of [256]bool
	for c := range of {
		of[c] = c == '-' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
	}
	return &of
}()

// isTrusted reports whether the client is a proxy that may name the original client.
func (p *Proxy) isTrusted(remote string) bool {
	if len(p.cfg.Trusted) == 0 {
		return false
	}
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	for _, prefix := range p.cfg.Trusted {
		if prefix.Contains(at.Addr().Unmap()) {
			return true
		}
	}
	return false
}

// dropFields removes the fields of a request that are not passed on. httputil.ReverseProxy has dropped hop
// fields already, except for an upgrade and TE: trailers, which it keeps.
func dropFields(h http.Header, trusted bool) {
	for name := range h {
		if f := requestFate([]byte(name)); f != hop && f.isDropped(trusted) {
			delete(h, name)
		}
	}
}

// forwardedFor appends to b the value of X-Forwarded-For: the values before, which trusted proxies sent, and the
// client.
func forwardedFor[T string | []byte](b []byte, before []T, client string) []byte {
	for _, list := range before {
		b = append(append(b, list...), ", "...)
	}
	return append(b, client...)
}

// origin has what the gateway tells an instance about a request, except X-Forwarded-For.
type origin struct {
	// host and scheme are those of the client's request. Empty: a trusted proxy has set them.
	host, scheme string
	id           string
}

// eachField calls add with each field.
func (o origin) eachField(add func(name, value string)) {
	if o.host != "" {
		add("X-Forwarded-Host", o.host)
	}
	if o.scheme != "" {
		add("X-Forwarded-Proto", o.scheme)
	}
	add(RequestIDHeader, o.id)
}

// addFields adds the gateway's fields about a request to its header.
func (x *exchange) addFields(to http.Header, from *http.Request, trusted bool) {
	o := origin{host: from.Host, scheme: "http", id: x.id}
	if from.TLS != nil {
		o.scheme = "https"
	}
	var before []string
	if trusted {
		before = from.Header["X-Forwarded-For"]
		if said := from.Header["X-Forwarded-Host"]; len(said) > 0 {
			to["X-Forwarded-Host"], o.host = said, ""
		}
		if said := from.Header["X-Forwarded-Proto"]; len(said) > 0 {
			to["X-Forwarded-Proto"], o.scheme = said, ""
		}
	}
	if client, _, err := net.SplitHostPort(from.RemoteAddr); err == nil {
		to.Set("X-Forwarded-For", string(forwardedFor(nil, before, client)))
	}
	o.eachField(to.Set)
}

// answerDrops reports whether a field of an answer is not passed on. names are the names that the answer's
// Connection lists.
func answerDrops(name []byte, names http1.Names) bool {
	return answerFates.fateOf(name) != plain || names.Has(name)
}

// dropHop removes hop fields from an interim answer, because httputil.ReverseProxy removes them only from the
// final answer.
func dropHop(h http.Header) {
	names := http1.Names{}
	for _, value := range h["Connection"] {
		names.Add([]byte(value))
	}
	for name := range h {
		if answerDrops([]byte(name), names) || name == "Content-Length" {
			delete(h, name)
		}
	}
}

// dropOwn removes the fields that only the gateway sets from an answer. It keeps the error of another
// region's gateway.
func dropOwn(h http.Header, ofRegion bool) {
	for name := range h {
		if answerFates.fateOf([]byte(name)) == own && (name != ErrorHeader || !ofRegion) {
			delete(h, name)
		}
	}
}

// keepTrailers removes two kinds of fields from an answer's trailers: fields that are not allowed there (RFC 9110,
// section 6.5.1), such as Content-Length, and fields that only the gateway sets.
func keepTrailers(trailers http.Header) {
	for name := range trailers {
		if !keepsTrailer(name) {
			delete(trailers, name)
		}
	}
}

func keepsTrailer(name string) bool {
	return httpguts.ValidTrailerHeader(name) && answerFates.fateOf([]byte(name)) == plain
}

// fields are the fields of a request, in an http.Header or as they were read in place.
type fields interface {
	// fieldValues returns the values of the fields with this name. They are valid until the next call.
	fieldValues(name string) []string
}

// netFields are fields in an http.Header.
type netFields http.Header

func (f netFields) fieldValues(name string) []string { return http.Header(f).Values(name) }

// affinityKey returns the request's affinity key, by the route's policy. Empty: it has none.
func (x *exchange) affinityKey(f fields) string {
	switch p := x.policy; {
	case p.AffinityHeader != "":
		if values := f.fieldValues(p.AffinityHeader); len(values) > 0 {
			return values[0]
		}
	case p.AffinityCookie != "":
		r := http.Request{Header: http.Header{"Cookie": f.fieldValues("Cookie")}}
		if c, err := r.Cookie(p.AffinityCookie); err == nil {
			return c.Value
		}
	}
	return ""
}
