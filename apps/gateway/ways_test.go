package gateway_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/quic-go/quic-go/http3"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway"
)

// said is an instance that answers each path with a text, and keeps the last request.
type said struct {
	answers map[string]string
	mu      sync.Mutex
	last    recorded
}

func (s *said) serve(t *testing.T) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				in := bufio.NewReader(c)
				for {
					q, err := read(c, in)
					if err != nil {
						return
					}
					s.mu.Lock()
					s.last = q
					s.mu.Unlock()
					path, _, _ := strings.Cut(q.target, "?")
					answer, ok := s.answers[path]
					if !ok {
						answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
					}
					if _, err := io.WriteString(c, answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// way is a URL of a gateway, and a transport that reaches it by one protocol.
type way struct {
	url  string
	trip http.RoundTripper
}

// ways starts gateways for s, and returns all ways to them: the short and the long way without TLS, and the protocols
// with TLS.
func (s *said) ways(t *testing.T) map[string]way {
	dir := t.TempDir()
	roots := certify(t, dir)
	r := start(t, func(c *gateway.Config) {
		c.TLSListen, c.TLSCert, c.TLSKey, c.HTTP3 = "127.0.0.1:0", filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), true
	})
	long := start(t, func(c *gateway.Config) { c.Engine = "net" })
	address := s.serve(t)
	r.put(t, echo(address))
	long.put(t, echo(address))
	config := func() *tls.Config { return &tls.Config{RootCAs: roots, ServerName: "echo.local"} }
	over := func(major int) http.RoundTripper {
		tr := &http.Transport{TLSClientConfig: config(), DisableCompression: true, Protocols: new(http.Protocols)}
		tr.Protocols.SetHTTP1(major == 1)
		tr.Protocols.SetHTTP2(major == 2)
		t.Cleanup(tr.CloseIdleConnections)
		return tr
	}
	over3 := &http3.Transport{TLSClientConfig: config(), DisableCompression: true}
	t.Cleanup(func() { _ = over3.Close() })
	secure := "https://" + r.gateway.Addresses()[1].String()
	return map[string]way{
		"short": {r.url, over(1)}, "long": {long.url, over(1)}, "HTTPS": {secure, over(1)}, "HTTP/2": {secure, over(2)}, "HTTP/3": {secure, over3},
	}
}

// differs are the fields that depend on the way, or on the time.
var differs = []string{"date", "alt-svc", "x-request-id", "x-forwarded-proto", "connection", "transfer-encoding"}

// sortedLines returns the lines of a header in order, without the fields in differs.
func sortedLines(h map[string][]string) (out []string) {
	for name, values := range h {
		if name = strings.ToLower(name); slices.Contains(differs, name) {
			continue
		}
		for _, v := range values {
			out = append(out, name+": "+v)
		}
	}
	slices.Sort(out)
	return out
}

// On every way, a request reaches the instance with the same fields, and the client gets the same fields back.
func TestFields_AreTheSameOnEveryPath(t *testing.T) {
	body := "Content-Length: 2\r\n\r\nok"
	instance := &said{answers: map[string]string{
		"/no-type":       ok + "X-Content-Type-Options: nosniff\r\nContent-Length: 31\r\n\r\n<script>alert('stored')</script",
		"/no-type-chunk": ok + "Transfer-Encoding: chunked\r\n\r\n6\r\n<html>\r\n0\r\n\r\n",
		"/empty-type":    ok + "Content-Type:\r\n" + body,
		"/type":          ok + "Content-Type: text/plain\r\n" + body,
		"/hop":           ok + "Connection: X-Secret, keep-alive\r\nX-Secret: s\r\nKeep-Alive: timeout=5\r\nProxy-Connection: close\r\nProxy-Authenticate: Basic\r\nTe: gzip\r\nX-Open: o\r\n" + body,
		"/ours":          ok + "Windlass-Error: mine\r\nWindlass-Region: mine\r\nX-Request-Id: mine\r\n" + body,
		"/twice":         ok + "Set-Cookie: a=b\r\nSet-Cookie: c=d\r\nX: 1\r\nx: 2\r\n" + body,
		"/empty":         "HTTP/1.1 204 No Content\r\nX-Open: o\r\n\r\n",
		"/unchanged":     "HTTP/1.1 304 Not Modified\r\nETag: \"e\"\r\n\r\n",
		"/hint":          "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: X-Secret\r\nX-Secret: s\r\nKeep-Alive: 5\r\nWindlass-Error: mine\r\nWindlass-Region: mine\r\nX-Request-Id: mine\r\nContent-Length: 7\r\n\r\n" + ok + "Content-Type: a/b\r\n" + body,
		"/space":         ok + "X : y\r\n" + body,
		"/fold":          ok + "X: y\r\n z\r\n" + body,
		"/chunked-1.0":   "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
	}}
	cases := []struct {
		name, method, target string
		header               http.Header
		status               int
		// got are the fields that the instance gets, and wants the fields that the client gets. Fields that always come
		// are left out.
		got, wants []string
		hints      []string
	}{
		{name: "an answer without a type", target: "/no-type", status: 200, wants: []string{"content-length: 31", "x-content-type-options: nosniff"}},
		{name: "an answer in chunks without a type", target: "/no-type-chunk", status: 200},
		{name: "an answer with an empty type", target: "/empty-type", status: 200, wants: []string{"content-length: 2", "content-type: "}},
		{name: "an answer with a type", target: "/type", status: 200, wants: []string{"content-length: 2", "content-type: text/plain"}},
		{name: "fields of the hop", target: "/hop", status: 200, wants: []string{"content-length: 2", "x-open: o"}},
		{name: "fields that only the gateway sets", target: "/ours", status: 200, wants: []string{"content-length: 2"}},
		{name: "fields that come twice", target: "/twice", status: 200, wants: []string{"content-length: 2", "set-cookie: a=b", "set-cookie: c=d", "x: 1", "x: 2"}},
		{name: "no content", target: "/empty", status: 204, wants: []string{"x-open: o"}},
		{name: "nothing new", target: "/unchanged", status: 304, wants: []string{"etag: \"e\""}},
		{name: "a hint", target: "/hint", status: 200, wants: []string{"content-length: 2", "content-type: a/b"}, hints: []string{"link: </a>"}},
		{name: "a space before the colon", target: "/space", status: 502},
		{name: "a folded field", target: "/fold", status: 502},
		{name: "chunks of HTTP/1.0", target: "/chunked-1.0", status: 502},
		{name: "TRACE", method: http.MethodTrace, target: "/trace", status: 501},
		{name: "a query that no program parses", target: "/q?a=1;b=2&c=%zz", status: 200, wants: []string{"content-length: 0"}, got: []string{}},
		{
			name: "fields that instances may trust", target: "/spoof", status: 200, wants: []string{"content-length: 0"},
			header: http.Header{
				"Content_Length": {"5"}, "Transfer_Encoding": {"chunked"}, "X_Forwarded_For": {"6.6.6.6"}, "X_Other": {"o"}, "X-Real-Ip": {"6.6.6.6"}, "True-Client-Ip": {"6.6.6.6"},
				"X-Original-Url": {"/admin"}, "X-Rewrite-Url": {"/admin"}, "X-Forwarded-Port": {"1"}, "X-Forwarded-For": {"6.6.6.6"}, "X-Forwarded-Host": {"evil"}, "Forwarded": {"for=6.6.6.6"},
				"Cf-Connecting-Ip": {"6.6.6.6"}, "Proxy": {"http://evil"}, "X-Open": {"o"}, "Cookie": {"a=b; c=d"}, "Windlass-Error": {"e"},
			},
			got: []string{"cookie: a=b; c=d", "windlass-error: e", "x-open: o"},
		},
	}
	for name, way := range instance.ways(t) {
		t.Run(name, func(t *testing.T) {
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					var hints []string
					ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
						hints = append(hints, sortedLines(h)...)
						return nil
					}})
					req, err := http.NewRequestWithContext(ctx, c.method, way.url+c.target, nil)
					require.NoError(t, err)
					req.Host, req.Header = "echo.local", http.Header{"User-Agent": {"test"}}
					maps.Copy(req.Header, c.header)
					res, err := way.trip.RoundTrip(req)
					require.NoError(t, err)
					text, err := io.ReadAll(res.Body)
					require.NoError(t, err)
					require.NoError(t, res.Body.Close())
					require.Equal(t, c.status, res.StatusCode, "%s", text)
					require.Equal(t, c.hints, hints)
					if c.status >= 500 {
						return
					}
					require.Equal(t, c.wants, sortedLines(res.Header))
					if c.got != nil {
						instance.mu.Lock()
						defer instance.mu.Unlock()
						require.Equal(t, c.target, instance.last.target)
						want := append([]string{"host: echo.local", "user-agent: test", "x-forwarded-for: 127.0.0.1", "x-forwarded-host: echo.local"}, c.got...)
						slices.Sort(want)
						require.Equal(t, want, sortedLines(instance.last.header))
					}
				})
			}
		})
	}
}

// HTTP/1.0 has no interim answers. An HTTP/1.0 client would take a hint for the final answer.
func TestHints_DoNotReachHTTP10(t *testing.T) {
	instance := &said{answers: map[string]string{"/a": "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ok + "Content-Length: 2\r\n\r\nok"}}
	address := instance.serve(t)
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		r.put(t, echo(address))
		conn, in := r.dial(t)
		_, err := fmt.Fprint(conn, "POST /a HTTP/1.0\r\nHost: echo.local\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx")
		require.NoError(t, err)
		res, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, res.StatusCode)
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Equal(t, "ok", string(text))
		require.NoError(t, res.Body.Close())
	})
}
