package proxy

import (
	"bytes"
	"net/http"
	"net/netip"

	"github.com/windlass-run/windlass/apps/gateway/internal/http1"
)

// This file says which fields of a client do not reach an instance, because programs behind a gateway
// believe them: they may decide by them whom they answer, and what.

// proxyFields are what proxies tell instances about a client and its request, in lower case, besides
// everything that begins with X-Forwarded-. Of clients that are no trusted proxies they are dropped.
var proxyFields = byLength(
	"x-real-ip", "x-client-ip", "x-cluster-client-ip", "x-originating-ip", "x-remote-ip", "x-remote-addr", "true-client-ip", "client-ip",
	"proxy-client-ip", "wl-proxy-client-ip", "wl-proxy-ssl", "cf-connecting-ip", "cf-connecting-ipv6", "cf-pseudo-ipv4", "cf-visitor",
	"fastly-client-ip", "fastly-ssl", "fly-client-ip", "x-appengine-user-ip", "x-azure-clientip", "x-azure-socketip", "x-envoy-external-address",
	"x-envoy-original-path", "x-envoy-original-host", "x-proxyuser-ip", "x-nf-client-connection-ip", "ali-cdn-real-ip", "cdn-src-ip", "cdn-real-ip", "incap-client-ip",
	"x-sucuri-clientip", "x-coming-from", "x-forwarded", "x-forwarder-for", "forwarded-for", "x-original-forwarded-for", "x-original-url", "x-original-uri",
	"x-original-host", "x-original-remote-addr", "x-original-method", "x-rewrite-url", "x-scheme", "x-url-scheme", "x-real-host", "x-real-port", "x-host", "x-server-name",
	"front-end-https", "x-ssl-client-cert", "x-ssl-client-verify", "x-ssl-client-dn", "ssl-client-cert", "ssl-client-verify", "x-client-cert", "x-client-verify", "client-cert", "client-cert-chain",
)

// reservedFields are what frames a message or is the gateway's to say, in lower case.
var reservedFields = byLength(
	"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect", "keep-alive", "proxy-connection", "content-encoding",
	"forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-request-id", "windlass-handed-over", "authorization", "x-api-key",
)

// names has texts in lower case by their length.
type names [32][]string

func byLength(texts ...string) *names {
	n := new(names)
	for _, text := range texts {
		n[len(text)] = append(n[len(text)], text)
	}
	return n
}

func (n *names) has(text []byte) bool {
	if len(text) >= len(n) {
		return false
	}
	for _, known := range n[len(text)] {
		if known[0] == text[0]|0x20 && http1.Equal(text, known) {
			return true
		}
	}
	return false
}

const forwarded = "x-forwarded-"

// spoofs reports whether a client's field of that name must be dropped. trusted: the client is a proxy
// that may say for whom it asks.
func spoofs(name []byte, trusted bool) bool {
	if !trusted && len(name) > 0 {
		if proxyFields.has(name) || len(name) >= len(forwarded) && http1.Equal(name[:len(forwarded)], forwarded) {
			return true
		}
	}
	return isLookalike(name) || http1.Equal(name, "proxy") // which CGI makes the variable HTTP_PROXY of
}

// isLookalike reports whether a program behind the gateway may take the name for another one. To CGI and
// its heirs, such as WSGI, X_Forwarded_For is X-Forwarded-For (RFC 3875, section 4.1.18): a name with an
// underscore is never passed on. Some take other characters for the dash, too: names with such are
// dropped where they would then be reserved.
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
	return reservedFields.has(read) || proxyFields.has(read) || len(read) >= len(forwarded) && http1.Equal(read[:len(forwarded)], forwarded)
}

// isPlain are the bytes that names of fields consist of, as a rule.
var isPlain = func() *[256]bool {
	var of [256]bool
	for c := range of {
		of[c] = c == '-' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
	}
	return &of
}()

// trusts reports whether the client is one that may say for whom it asks.
func (p *Proxy) trusts(remote string) bool {
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

// dropSpoofed takes out of a client's header what spoofs names.
func dropSpoofed(h http.Header, trusted bool) {
	for name := range h {
		if spoofs([]byte(name), trusted) {
			delete(h, name)
		}
	}
}

// dropHop takes out of an interim answer what is between the instance and us, or ours to say:
// httputil.ReverseProxy does so with the answer itself only.
func dropHop(h http.Header) {
	names := http1.Names{}
	for _, value := range h["Connection"] {
		names.Add([]byte(value))
	}
	for name := range h {
		f := http1.Field{Name: []byte(name)}
		if hop(&f) || names.Has(f.Name) || f.Is("content-length") {
			delete(h, name)
		}
	}
}
