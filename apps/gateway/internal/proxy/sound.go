package proxy

import (
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// This file is what net/http lets through and a gateway must not.

// Doubtful tells whether somebody between the client and us may see the request's end
// elsewhere, so that what comes after it on the connection must not be read as another. It
// is so where a Transfer-Encoding comes with a Content-Length, or in HTTP/1.0 (RFC 9112,
// section 6.1: the server MUST close the connection). net/http goes by the one and ignores
// the other, as it may, but takes that out of the header, so that nobody can tell, and
// goes on with the connection. So those that may be so are: all that come in chunks, and
// all of HTTP/1.0. After a CONNECT come the bytes of a tunnel that there is none of.
func Doubtful(r *http.Request) bool {
	return r.ProtoMajor == 1 && (r.ProtoMinor == 0 || len(r.TransferEncoding) > 0 || r.Method == http.MethodConnect)
}

// keepUpgrade leaves in a request's Upgrade what is not HTTP. In a tunnel of HTTP/2 or of
// TLS an instance would get requests that the gateway has not seen: of other hosts, with
// X-Forwarded-* of the client's making, and without limits. A server may ignore Upgrade
// (RFC 9110, section 7.8), and the one to h2c is none any more (RFC 9113, section 3.1).
func keepUpgrade(h http.Header) {
	if len(h["Upgrade"]) == 0 {
		return
	}
	var kept []string
	for protocol := range strings.SplitSeq(h.Get("Upgrade"), ",") {
		protocol = strings.TrimSpace(protocol)
		name, _, _ := strings.Cut(protocol, "/")
		switch strings.ToLower(name) {
		case "", "h2c", "h2", "http", "tls":
		default:
			kept = append(kept, protocol)
		}
	}
	if len(kept) == 0 {
		h.Del("Upgrade")
		h.Del("Connection") // which names nothing else: what it named was taken out
		return
	}
	h.Set("Upgrade", strings.Join(kept, ", "))
}

// dropLookalikes takes out what CGI and its heirs, WSGI for one, cannot tell from what the
// gateway says: to them X_Forwarded_For is X-Forwarded-For (RFC 3875, section 4.1.18).
func dropLookalikes(h http.Header) {
	for name := range h {
		if !strings.Contains(name, "_") {
			continue
		}
		switch http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-")) {
		case "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", RequestIDHeader:
			delete(h, name)
		}
	}
}

// keepTrailers takes out of an answer's trailers what has no place there (RFC 9110, section
// 6.5.1), like a Content-Length, and what is the gateway's to say.
func keepTrailers(trailers http.Header) {
	for name := range trailers {
		if !httpguts.ValidTrailerHeader(name) || name == ErrorHeader || name == RequestIDHeader {
			delete(trailers, name)
		}
	}
}
