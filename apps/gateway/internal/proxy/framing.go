package proxy

import (
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// This file refuses requests that net/http accepts and a gateway must not pass on.

// Doubtful reports whether a proxy between the client and the gateway may see the request's end
// elsewhere. Then the bytes after the request must not be read as another request.
//
// That is possible if a Transfer-Encoding comes with a Content-Length, or in HTTP/1.0 (RFC 9112,
// section 6.1: the server MUST close the connection). net/http uses one of the two fields and
// removes the other, so that a handler cannot see it, and keeps the connection open. So all
// requests in chunks and all HTTP/1.0 requests are doubtful. After a CONNECT come the bytes of a
// tunnel, which the gateway does not open.
func Doubtful(r *http.Request) bool {
	return r.ProtoMajor == 1 && (r.ProtoMinor == 0 || len(r.TransferEncoding) > 0 || r.Method == http.MethodConnect)
}

// whyMalformed returns which part of a request is malformed, and "" if no part is. An HTTP/1 request is malformed
// if net/http accepts it but an instance could read it in another way. No client sends such a request. A request of
// HTTP/2 or 3 is malformed if it would have another meaning in HTTP/1, which instances get: RFC 9113, sections 8.1.1
// (lengths), 8.2.1 and 8.3.1 (methods, paths, hosts), and RFC 9114, sections 4.1.2 and 4.3.1.
func whyMalformed(r *http.Request) string {
	switch {
	case r.ProtoMajor == 1 && r.ProtoMinor > 1:
		return "the version is neither HTTP/1.0 nor HTTP/1.1"
	case r.RequestURI == "*" && r.Method != http.MethodOptions:
		return "the target * is for OPTIONS only"
	case r.URL.User != nil:
		return "the target names a user"
	case r.URL.Opaque != "": // an instance would get the whole target, which may contain another host
		return "the target has a scheme and no host"
	case r.ProtoMajor < 2:
		return ""
	}
	for _, host := range r.Header["Host"] {
		if host != r.Host {
			return "the field Host differs from :authority"
		}
	}
	lengths := r.Header["Content-Length"]
	switch {
	case !httpguts.ValidHeaderFieldName(r.Method): // methods follow the same rule as names
		return ":method is not a token"
	case r.Method != http.MethodConnect && !strings.HasPrefix(r.RequestURI, "/") && r.RequestURI != "*":
		return ":path does not begin with a slash"
	case strings.ContainsFunc(r.RequestURI, func(c rune) bool { return c <= ' ' || c == 0x7f }):
		return ":path contains a space or a control character"
	case len(lengths) > 1:
		return "content-length comes more than once"
	case len(lengths) == 1 && (lengths[0] == "" || strings.Trim(lengths[0], "0123456789") != ""):
		return "content-length is not a number"
	case len(lengths) == 1 && r.ContentLength == 0 && strings.Trim(lengths[0], "0") != "":
		return "content-length differs from the length of the content"
	}
	return ""
}

// unsafeMethod reports whether requests of the method are not passed on. CONNECT asks for a tunnel to the host
// that it names, which only a forward proxy may open (RFC 9110, section 9.3.6). A client would take an
// instance's 200 for an open tunnel. The answer to TRACE contains all fields that arrived at the instance,
// including fields that proxies added (section 9.3.8).
func unsafeMethod(method string) bool {
	return method == http.MethodConnect || method == http.MethodTrace
}

// soundQuery returns the query with the bytes percent-encoded that a request line must not have.
func soundQuery(query string) string {
	odd := func(c byte) bool { return c <= ' ' || c >= 0x7f }
	n := 0
	for i := range len(query) {
		if odd(query[i]) {
			n++
		}
	}
	if n == 0 {
		return query
	}
	out := make([]byte, 0, len(query)+2*n)
	for i := range len(query) {
		if c := query[i]; odd(c) {
			out = fmt.Appendf(out, "%%%02X", c)
		} else {
			out = append(out, c)
		}
	}
	return string(out)
}

// keepUpgrade removes versions of HTTP and TLS from a request's Upgrade. In a tunnel of HTTP/2 or TLS an
// instance would get requests that the gateway has not seen: for other hosts, with the client's own
// X-Forwarded-*, and without limits. A server may ignore Upgrade (RFC 9110, section 7.8). The upgrade to h2c
// is obsolete (RFC 9113, section 3.1).
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
		h.Del("Connection") // it lists only Upgrade, because the other fields that it listed were removed
		return
	}
	h.Set("Upgrade", strings.Join(kept, ", "))
}
