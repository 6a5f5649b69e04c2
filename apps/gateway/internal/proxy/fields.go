package proxy

import (
	"bytes"
	"net"
	"net/http"
	"net/netip"

	"golang.org/x/net/http/httpguts"

	"github.com/windlass-run/windlass/apps/gateway/internal/http1"
)

// This file says what becomes of fields on their way through the gateway, and which it adds. Both ways go
// by it: with a http.Header, and with fields that were read in place.

// fate of a field.
type fate uint8

const (
	// plain fields are passed on.
	plain fate = iota
	// reserved fields are passed on. Names that a program may take for theirs are not.
	reserved
	// hop fields are between the two sides of a connection.
	hop
	// own fields are the gateway's to say, or no field that an instance may get.
	own
	// forwarding fields are what proxies tell instances about a client and its request. Programs believe
	// them: they may decide by them whom they answer, and what. They are passed on for trusted proxies.
	forwarding
)

// fates are those of fields by the length of their name.
type fates [32][]known

// known is a name, in lower case.
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

// fateOf returns the fate of fields of that name.
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

// requestFates are those of clients' fields, besides names that begin with X-Forwarded-.
var requestFates = fatesOf(map[fate][]string{
	reserved: {"host", "content-length", "expect", "content-encoding", "authorization", "x-api-key"},
	hop:      hopFields,
	// Of Proxy, CGI makes the variable HTTP_PROXY.
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

// answerFates are those of answers, and of their trailers.
var answerFates = fatesOf(map[fate][]string{
	hop: hopFields,
	own: {"x-request-id", "windlass-error", "windlass-region"},
})

const forwarded = "x-forwarded-"

// requestFate is the fate of a client's field of that name.
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

// isDropped reports whether a client's field of that fate goes no further. trusted: the client is a proxy
// that may say for whom it asks.
func (f fate) isDropped(trusted bool) bool {
	return f == hop || f == own || f == forwarding && !trusted
}

// isLookalike reports whether a program behind the gateway may take the name for another one. To CGI and
// its heirs, such as WSGI, X_Forwarded_For is X-Forwarded-For (RFC 3875, section 4.1.18): a name with an
// underscore is never passed on. Some take other characters for the dash, too: names with such are
// dropped where they would then not be plain.
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

// isPlain are the bytes that names of fields consist of, as a rule.
var isPlain = func() *[256]bool {
	var of [256]bool
	for c := range of {
		of[c] = c == '-' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
	}
	return &of
}()

// isTrusted reports whether the client is one that may say for whom it asks.
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

// dropFields takes out of the header of a request what goes no further. What is between the two sides of
// the connection httputil.ReverseProxy has dropped, except for an upgrade and TE: trailers, which it keeps.
func dropFields(h http.Header, trusted bool) {
	for name := range h {
		if f := requestFate([]byte(name)); f != hop && f.isDropped(trusted) {
			delete(h, name)
		}
	}
}

// forwardedFor appends to b what X-Forwarded-For says: what trusted proxies said before, and the client.
func forwardedFor[T string | []byte](b []byte, before []T, client string) []byte {
	for _, list := range before {
		b = append(append(b, list...), ", "...)
	}
	return append(b, client...)
}

// origin is what an instance is told about a request, besides X-Forwarded-For.
type origin struct {
	// host and scheme are those that the client asked; empty: a trusted proxy says which.
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

// addFields adds to the header of a request what the gateway says about it.
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

// answerDrops reports whether a field of an answer goes no further. names are those that its Connection
// lists.
func answerDrops(name []byte, names http1.Names) bool {
	return answerFates.fateOf(name) != plain || names.Has(name)
}

// dropHop takes out of an interim answer what goes no further: httputil.ReverseProxy does so with the
// answer itself only.
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

// dropOwn takes out of an answer what is the gateway's to say. The error of another region's gateway is as
// its own.
func dropOwn(h http.Header, ofRegion bool) {
	for name := range h {
		if answerFates.fateOf([]byte(name)) == own && (name != ErrorHeader || !ofRegion) {
			delete(h, name)
		}
	}
}

// keepTrailers takes out of an answer's trailers what has no place there (RFC 9110, section
// 6.5.1), like a Content-Length, and what is the gateway's to say.
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

// fields are those of a request, as net/http has them or as they were read in place.
type fields interface {
	// values returns those of the fields of that name, until it is called again.
	values(name string) []string
}

// netFields are net/http's.
type netFields http.Header

func (f netFields) values(name string) []string { return http.Header(f).Values(name) }

// affinityKey returns the key that ties the request to others, by the route's policy; empty: none does.
func (x *exchange) affinityKey(f fields) string {
	switch p := x.policy; {
	case p.AffinityHeader != "":
		if values := f.values(p.AffinityHeader); len(values) > 0 {
			return values[0]
		}
	case p.AffinityCookie != "":
		r := http.Request{Header: http.Header{"Cookie": f.values("Cookie")}}
		if c, err := r.Cookie(p.AffinityCookie); err == nil {
			return c.Value
		}
	}
	return ""
}
