package gateway_test

import (
	"fmt"
	"strings"
	"testing"
)

const get = "GET /a HTTP/1.1\r\nHost: echo.local\r\n"

// seen returns a check of the fields of the request that the instance got. want has the values of each
// name, joined by ", ". "": the instance must not get the field.
func seen(want map[string]string) func(recorded) string {
	return func(q recorded) string {
		for name, value := range want {
			if got := strings.Join(q.header[name], ", "); got != value {
				return fmt.Sprintf("%s is %q, not %q", name, got, value)
			}
		}
		return ""
	}
}

// An instance gets only requests that are valid by RFC 9112. It does not get fields that concern only the client
// and the gateway.
func TestFields_OnlySoundOnesReachAnInstance(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		many := make([]string, 3000)
		for i := range many {
			many[i] = fmt.Sprintf("X-%d: y\r\n", i)
		}
		runWire(t, []wireCase{
			// Lines and fields.
			{name: "a folded field", send: get + "X-Folded: a\r\n b\r\n\tc\r\n\r\n" + next, answers: []int{400}},
			{name: "a field folded by a tab", send: get + "X-Folded: a\r\n\tb\r\n\r\n" + next, answers: []int{400}},
			{name: "a fold before any field", send: "GET /a HTTP/1.1\r\n X: y\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "a fold that hides a field", send: get + "X: y\r\n Content-Length: 5\r\n\r\n" + next, answers: []int{400}},
			{name: "lines that bare LFs end", send: "GET /a HTTP/1.1\nHost: echo.local\nX: y\n\n" + next, answers: []int{400}},
			{name: "a request line that a bare LF ends", send: "GET /a HTTP/1.1\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "a field that a bare LF ends", send: get + "X: y\nZ: z\r\n\r\n" + next, answers: []int{400}},
			{name: "a head that a bare LF ends", send: get + "X:\n\nGET /smuggled HTTP/1.1\r\nHost: echo.local\r\n\r\n", answers: []int{400}},
			{name: "a bare LF before the request", send: "\n" + get + "\r\n" + next, answers: []int{400}},
			{name: "an empty line after a body", send: post + "Content-Length: 2\r\n\r\nab\r\n" + next, answers: []int{200, 400}, saw: []string{"POST /a ab"}},
			{name: "a bare LF after a body", send: post + "Content-Length: 2\r\n\r\nab\n" + next, answers: []int{200, 400}, saw: []string{"POST /a ab"}},
			{name: "a folded field after a good request", send: post + "Content-Length: 2\r\n\r\nab" + get + "X: y\r\n z\r\n\r\n" + next, answers: []int{200, 400}, saw: []string{"POST /a ab"}},
			{name: "a bare CR in a value", send: get + "X: a\rb\r\n\r\n" + next, answers: []int{400}},
			{name: "a bare CR as the end", send: get + "\r\r\n\r\n" + next, answers: []int{400}},
			{name: "two CRs before the LF", send: get + "X: y\r\r\n\r\n" + next, answers: []int{400}},
			{name: "NUL in a name", send: get + "X\x00Y: z\r\n\r\n" + next, answers: []int{400}},
			{name: "NUL in a value", send: get + "X: y\x00z\r\n\r\n" + next, answers: []int{400}},
			{name: "NUL in the path", send: "GET /a\x00b HTTP/1.1\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "a space in a name", send: get + "X Y: z\r\n\r\n" + next, answers: []int{400}},
			{name: "no name", send: get + ": z\r\n\r\n" + next, answers: []int{400}},
			{name: "no colon", send: get + "X\r\n\r\n" + next, answers: []int{400}},
			{name: "a name beyond ASCII", send: get + "X\u017f: z\r\n\r\n" + next, answers: []int{400}},
			{name: "fields beyond the limit", send: get + "X: " + strings.Repeat("y", 80<<10) + "\r\n\r\n" + next, answers: []int{431}},
			{name: "many fields within the limit", send: get + strings.Join(many, "") + "\r\n", answers: []int{200}, kept: true, saw: []string{"GET /a "}, header: seen(map[string]string{"x-2999": "y"})},
			{name: "too many fields", send: get + strings.Repeat("X: y\r\n", 20_000) + "\r\n" + next, answers: []int{431}},

			// The request line.
			{name: "two spaces before the path", send: "GET  /a HTTP/1.1\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "two spaces before the version", send: "GET /a  HTTP/1.1\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "a space after the version", send: "GET /a HTTP/1.1 \r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "a space before the method", send: " GET /a HTTP/1.1\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "a tab between", send: "GET\t/a\tHTTP/1.1\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "a space in the path", send: "GET /a b HTTP/1.1\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "a space in the query", send: "GET /a?b HTTP/1.1 c HTTP/1.1\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "an empty line before", send: "\r\n" + get + "\r\n", answers: []int{400}},
			{name: "no version", send: "GET /a\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "HTTP/0.9", send: "GET /a HTTP/0.9\r\nHost: echo.local\r\n\r\n" + next, answers: []int{505}},
			{name: "HTTP/1.2", send: "GET /a HTTP/1.2\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "HTTP/2.0", send: "GET /a HTTP/2.0\r\nHost: echo.local\r\n\r\n" + next, answers: []int{505}},
			{name: "HTTP/1.10", send: "GET /a HTTP/1.10\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "http/1.1", send: "GET /a http/1.1\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "a method in lower case is another one", send: "get /a HTTP/1.1\r\nHost: echo.local\r\n\r\n", answers: []int{200}, kept: true, saw: []string{"get /a "}},
			{name: "a method that is not a token", send: "GE(T /a HTTP/1.1\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "a line beyond the limit", send: "GET /" + strings.Repeat("a", 80<<10) + " HTTP/1.1\r\nHost: echo.local\r\n\r\n" + next, answers: []int{431}},
			{name: "line ends in the path, coded", send: "GET /a%0d%0aX:%20y HTTP/1.1\r\nHost: echo.local\r\n\r\n", answers: []int{200}, kept: true, saw: []string{"GET /a%0d%0aX:%20y "}},
			{name: "bytes beyond ASCII in the path", send: "GET /\xff HTTP/1.1\r\nHost: echo.local\r\n\r\n", answers: []int{200}, kept: true, saw: []string{"GET /%FF "}},
			{name: "OPTIONS for the gateway itself", send: "OPTIONS * HTTP/1.1\r\nHost: echo.local\r\n\r\n", answers: []int{200}, kept: true, saw: nil},
			{name: "the target * with another method", send: "GET * HTTP/1.1\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "TRACE", send: "TRACE /a HTTP/1.1\r\nHost: echo.local\r\nCookie: secret\r\n\r\n", answers: []int{501}, kept: true},
			{name: "a query that no program parses", send: "GET /a?a=1;b=2&c=%zz&d=%&;& HTTP/1.1\r\nHost: echo.local\r\n\r\n", answers: []int{200}, kept: true, saw: []string{"GET /a?a=1;b=2&c=%zz&d=%&;& "}},
			{name: "bytes beyond ASCII in the query", send: "GET /a?b=\xff HTTP/1.1\r\nHost: echo.local\r\n\r\n", answers: []int{200}, kept: true, saw: []string{"GET /a?b=%FF "}},
			{name: "a tunnel", send: "CONNECT echo.local:80 HTTP/1.1\r\nHost: echo.local:80\r\n\r\n" + next, answers: []int{501}},
			{name: "a tunnel with a path", send: "CONNECT /a HTTP/1.1\r\nHost: echo.local:80\r\n\r\n" + next, answers: []int{501}},

			// The host.
			{name: "the target's host counts, not the field's", send: "GET http://echo.local/a HTTP/1.1\r\nHost: other.local\r\n\r\n", answers: []int{200}, kept: true, saw: []string{"GET /a "}, header: func(q recorded) string {
				if q.header["host"][0] == "other.local" || q.header["x-forwarded-host"][0] == "other.local" {
					return "the host is other.local"
				}
				return ""
			}},
			{name: "another host in the target", send: "GET http://other.local/a HTTP/1.1\r\nHost: echo.local\r\n\r\n" + next, answers: []int{404, 200}, kept: true, saw: []string{"GET /smuggled "}},
			{name: "a user in the target's host", send: "GET http://echo.local@other.local/a HTTP/1.1\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "a user before the target's host", send: "GET http://user@echo.local/a HTTP/1.1\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "a target in a target", send: "GET x:http://other.local/a HTTP/1.1\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "a target with a scheme and no host", send: "GET x:a HTTP/1.1\r\nHost: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "no host", send: "GET /a HTTP/1.1\r\n\r\n" + next, answers: []int{400}},
			{name: "no host in HTTP/1.0", send: "GET /a HTTP/1.0\r\n\r\n" + next, answers: []int{400}},
			{name: "an empty host", send: "GET /a HTTP/1.1\r\nHost:\r\n\r\n", answers: []int{400}, kept: true},
			{name: "one host twice", send: get + "Host: echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "two hosts", send: get + "Host: other.local\r\n\r\n" + next, answers: []int{400}},
			{name: "a list of hosts", send: "GET /a HTTP/1.1\r\nHost: echo.local, other.local\r\n\r\n" + next, answers: []int{400}},
			{name: "a host behind a user", send: "GET /a HTTP/1.1\r\nHost: user@echo.local\r\n\r\n" + next, answers: []int{400}},
			{name: "a host that is a user", send: "GET /a HTTP/1.1\r\nHost: echo.local:80@other.local\r\n\r\n" + next, answers: []int{400}},
			{name: "a port that is not a number", send: "GET /a HTTP/1.1\r\nHost: echo.local:x\r\n\r\n", answers: []int{400}, kept: true},
			{name: "a host with a path", send: "GET /a HTTP/1.1\r\nHost: echo.local:80/b?c\r\n\r\n" + next, answers: []int{400}},
			{name: "a name in brackets", send: "GET /a HTTP/1.1\r\nHost: [echo.local]\r\n\r\n", answers: []int{400}, kept: true},
			{name: "a space in the host", send: "GET /a HTTP/1.1\r\nHost: echo.local b\r\n\r\n" + next, answers: []int{400}},
			{name: "NUL in the host", send: "GET /a HTTP/1.1\r\nHost: echo.local\x00\r\n\r\n" + next, answers: []int{400}},
			{name: "a host with its port", send: "GET /a HTTP/1.1\r\nHost: echo.local.:8080\r\n\r\n", answers: []int{200}, kept: true, saw: []string{"GET /a "}},

			// From hop to hop.
			{name: "fields that Connection names are dropped", send: get + "Connection: close, X-Secret\r\nX-Secret: s\r\nX-Open: o\r\n\r\n" + next, answers: []int{200}, saw: []string{"GET /a "}, header: seen(map[string]string{"x-secret": "", "connection": "", "x-open": "o"})},
			{name: "Connection cannot remove fields of the gateway", send: get + "Connection: X-Forwarded-For, X-Forwarded-Host, X-Request-Id, Host, Content-Length\r\nX-Forwarded-For: 6.6.6.6\r\nX-Request-Id: mine\r\nContent-Length: 2\r\n\r\nab", answers: []int{200}, kept: true, saw: []string{"GET /a ab"}, header: seen(map[string]string{"x-forwarded-for": "127.0.0.1", "x-request-id": "mine", "connection": "", "content-length": "2"})},
			{name: "names that look like fields of the gateway", send: get + "X_Forwarded_For: 6.6.6.6\r\nx-forwarded_proto: https\r\nX_Other: o\r\nX.Forwarded.For: 6.6.6.6\r\nX.Other: o\r\nContent_Length: 5\r\nTransfer_Encoding: chunked\r\nTransfer.Encoding: chunked\r\nProxy: http://a\r\n\r\n", answers: []int{200}, kept: true, saw: []string{"GET /a "}, header: seen(map[string]string{
				"x_forwarded_for": "", "x-forwarded_proto": "", "x-forwarded-for": "127.0.0.1", "x_other": "", "x.forwarded.for": "", "x.other": "o",
				"content_length": "", "transfer_encoding": "", "transfer.encoding": "", "proxy": "",
			})},
			{name: "fields of proxies", send: get + "X-Real-IP: 6.6.6.6\r\nTrue-Client-IP: 6.6.6.6\r\nCF-Connecting-IP: 6.6.6.6\r\nX-Original-URL: /admin\r\nX-Rewrite-URL: /admin\r\nX-Forwarded-Port: 1\r\nX-Forwarded-User: root\r\nX-Real: r\r\nForwarded: for=6.6.6.6\r\n\r\n", answers: []int{200}, kept: true, saw: []string{"GET /a "}, header: seen(map[string]string{
				"x-real-ip": "", "true-client-ip": "", "cf-connecting-ip": "", "x-original-url": "", "x-rewrite-url": "", "x-forwarded-port": "", "x-forwarded-user": "", "forwarded": "", "x-real": "r",
			})},
			{name: "fields of the hop", send: get + "Keep-Alive: 5\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: x\r\nTE: gzip\r\nTrailer: X\r\n\r\n", answers: []int{200}, kept: true, saw: []string{"GET /a "}, header: seen(map[string]string{"keep-alive": "", "proxy-connection": "", "proxy-authorization": "", "te": "", "trailer": ""})},
			{name: "an upgrade to HTTP/2", send: get + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n", answers: []int{200}, kept: true, saw: []string{"GET /a "}, header: seen(map[string]string{"upgrade": "", "connection": "", "http2-settings": ""})},
			{name: "an upgrade to HTTP/2 among others", send: get + "Connection: upgrade\r\nUpgrade: websocket, H2C\r\n\r\n", answers: []int{200}, kept: true, saw: []string{"GET /a "}, header: seen(map[string]string{"upgrade": "websocket", "connection": "Upgrade"})},
			{name: "an upgrade to TLS", send: get + "Connection: Upgrade\r\nUpgrade: TLS/1.0\r\n\r\n", answers: []int{200}, kept: true, saw: []string{"GET /a "}, header: seen(map[string]string{"upgrade": "", "connection": ""})},
			{name: "an upgrade that Connection does not name", send: get + "Upgrade: h2c\r\n\r\n", answers: []int{200}, kept: true, saw: []string{"GET /a "}, header: seen(map[string]string{"upgrade": ""})},
			{name: "HTTP/2 without TLS", send: "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n" + next, answers: []int{400}},

			// Expectations.
			{name: "100-continue", send: post + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nab", answers: []int{100, 200}, kept: true, saw: []string{"POST /a ab"}},
			{name: "100-continue without a body", send: get + "Expect: 100-continue\r\n\r\n", answers: []int{200}, kept: true, saw: []string{"GET /a "}},
			{name: "an unknown expectation", send: post + "Expect: more\r\nContent-Length: 2\r\n\r\nab" + next, answers: []int{417}},

			// One after the other.
			{name: "two at once", send: post + "Content-Length: 1\r\n\r\nb" + strings.Replace(post, "/a", "/c", 1) + "Content-Length: 1\r\n\r\nd", answers: []int{200, 200}, kept: true, saw: []string{"POST /a b", "POST /c d"}},
			{name: "a bad request after a good one", send: post + "Content-Length: 1\r\n\r\nb" + "GET /c HTTP/1.1\r\n\r\n" + next, answers: []int{200, 400}, saw: []string{"POST /a b"}},
			{name: "HTTP/1.0 does not upgrade", send: "GET /a HTTP/1.0\r\nHost: echo.local\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", answers: []int{200}, saw: []string{"GET /a "}, header: seen(map[string]string{"upgrade": "", "connection": ""})},
			{name: "HTTP/1.0 is answered and closed", send: "GET /a HTTP/1.0\r\nHost: echo.local\r\nConnection: keep-alive\r\n\r\n" + next, answers: []int{200}, saw: []string{"GET /a "}},
		})
	})
}
