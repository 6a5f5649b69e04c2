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

// malformed tells what of a request of HTTP/2 or 3 has no place in one, "" for nothing. In
// HTTP/1, which instances get, it would say something else than what was looked at here:
// RFC 9113, sections 8.1.1 (lengths), 8.2.1 and 8.3.1 (methods, paths, hosts), and RFC
// 9114, sections 4.1.2 and 4.3.1. net/http looks at HTTP/1 in time itself.
func malformed(r *http.Request) string {
	if r.ProtoMajor < 2 {
		return ""
	}
	for _, host := range r.Header["Host"] {
		if host != r.Host {
			return "the field Host is not what :authority is"
		}
	}
	lengths := r.Header["Content-Length"]
	switch {
	case !httpguts.ValidHeaderFieldName(r.Method): // the rule of names is the one of methods
		return ":method is no token"
	case r.Method != http.MethodConnect && !strings.HasPrefix(r.RequestURI, "/") && r.RequestURI != "*":
		return ":path does not begin with a slash"
	case strings.ContainsFunc(r.RequestURI, func(c rune) bool { return c <= ' ' || c == 0x7f }):
		return ":path has a space in it"
	case len(lengths) > 1:
		return "content-length is there more than once"
	case len(lengths) == 1 && (lengths[0] == "" || strings.Trim(lengths[0], "0123456789") != ""):
		return "content-length is no number"
	case len(lengths) == 1 && r.ContentLength == 0 && strings.Trim(lengths[0], "0") != "":
		return "content-length is not the content's"
	}
	return ""
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
		if strings.Contains(name, "_") && isLookalike(name) {
			delete(h, name)
		}
	}
}

// isLookalike looks at a name that has an underscore.
func isLookalike(name string) bool {
	switch http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-")) {
	case "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", RequestIDHeader:
		return true
	}
	return false
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
	return httpguts.ValidTrailerHeader(name) && name != ErrorHeader && name != RequestIDHeader
}
