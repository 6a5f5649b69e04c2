package proxy

import (
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// This file refuses what net/http accepts and a gateway must not pass on.

// Doubtful reports whether a proxy between the client and the gateway may see the request's
// end elsewhere. What comes after it on the connection must then not be read as another
// request. This is so where a Transfer-Encoding comes with a Content-Length, or in HTTP/1.0
// (RFC 9112, section 6.1: the server MUST close the connection). net/http goes by one of the
// two and ignores the other, as it may. But it removes the other from the header, so that a
// handler cannot see it, and goes on with the connection. So all requests that may be such are
// doubtful: all that come in chunks, and all of HTTP/1.0. After a CONNECT come the bytes of a
// tunnel, which the gateway does not open.
func Doubtful(r *http.Request) bool {
	return r.ProtoMajor == 1 && (r.ProtoMinor == 0 || len(r.TransferEncoding) > 0 || r.Method == http.MethodConnect)
}

// whyMalformed returns which part of a request is malformed, and "" if none is. In HTTP/1 that is what
// net/http accepts and no client sends, because an instance could read it otherwise. In HTTP/2 and 3 it is
// what would have another meaning in HTTP/1, which instances get: RFC 9113, sections 8.1.1 (lengths), 8.2.1
// and 8.3.1 (methods, paths, hosts), and RFC 9114, sections 4.1.2 and 4.3.1.
func whyMalformed(r *http.Request) string {
	switch {
	case r.ProtoMajor == 1 && r.ProtoMinor > 1:
		return "the version is neither HTTP/1.0 nor HTTP/1.1"
	case r.RequestURI == "*" && r.Method != http.MethodOptions:
		return "the target * is for OPTIONS only"
	case r.URL.User != nil:
		return "the target names a user"
	case r.URL.Opaque != "": // an instance would get all of it, and another host in it
		return "the target has a scheme and no host"
	case r.ProtoMajor < 2:
		return ""
	}
	for _, host := range r.Header["Host"] {
		if host != r.Host {
			return "the field Host is not what :authority is"
		}
	}
	lengths := r.Header["Content-Length"]
	switch {
	case !httpguts.ValidHeaderFieldName(r.Method): // methods follow the same rule as names
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

// unsafeMethod reports whether no instance gets requests of the method. CONNECT asks for a tunnel to the host
// that it names, which only a forward proxy may open (RFC 9110, section 9.3.6). A client would take an
// instance's 200 for an open tunnel. The answer to TRACE has the fields that arrived at the instance, also
// those that proxies added (section 9.3.8).
func unsafeMethod(method string) bool {
	return method == http.MethodConnect || method == http.MethodTrace
}

// soundQuery returns the query without bytes that a request line must not have.
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
		h.Del("Connection") // it names nothing else, because the fields that it named were removed
		return
	}
	h.Set("Upgrade", strings.Join(kept, ", "))
}
