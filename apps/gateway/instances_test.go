package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// script is what an instance does after it has read a request. open is whether the instance reads another request
// from the connection. Otherwise the connection is closed.
type script func(net.Conn) (open bool)

// scripted starts an instance that runs a script for its first request. It answers each later request with the
// request's body. scripted returns the instance's address.
func scripted(t *testing.T, first script) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	var requests atomic.Int64
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
					switch {
					case err != nil:
						return
					case requests.Add(1) == 1:
						if !first(c) {
							return
						}
						continue
					}
					if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(q.body), q.body); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// says writes the answer and closes.
func says(answer string) script {
	return func(c net.Conn) bool {
		_, _ = io.WriteString(c, answer)
		return false
	}
}

// stays writes the answer and leaves the connection open until the gateway closes it.
func stays(answer string) script {
	return func(c net.Conn) bool {
		_, _ = io.WriteString(c, answer)
		_, _ = io.Copy(io.Discard, c)
		return false
	}
}

// goesOn writes the answer and takes the next request.
func goesOn(answer string) script {
	return func(c net.Conn) bool {
		_, _ = io.WriteString(c, answer)
		return true
	}
}

const ok = "HTTP/1.1 200 OK\r\n"

// poison is an answer that the gateway must not take for the answer to any request.
const poison = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"

func TestInstance_AnswerEndsWhereItsFramingSays(t *testing.T) {
	cases := []struct {
		name   string
		method string // empty: POST
		script script
		// status, code and body are what the client gets. code is set if the gateway answers itself.
		status int
		code   string
		body   string
		// broken: the connection is cut before the answer is whole.
		broken bool
		header func(http.Header) string
		// silent: the limits of the route are short.
		silent bool
	}{
		// Lengths.
		{name: "says more than it sends", script: says(ok + "Content-Length: 100\r\n\r\nshort"), broken: true},
		{name: "says less than it sends", script: stays(ok + "Content-Length: 2\r\n\r\nok" + poison), status: 200, body: "ok"},
		{name: "a second answer after chunks", script: stays(ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + poison), status: 200, body: "ok"},
		{name: "a body of 204", script: stays("HTTP/1.1 204 No Content\r\nContent-Length: 45\r\n\r\n" + poison), status: 204},
		{name: "a body of 304", script: stays("HTTP/1.1 304 Not Modified\r\nContent-Length: 45\r\n\r\n" + poison), status: 304},
		{name: "a body that HEAD has none of", method: http.MethodHead, script: stays(ok + "Content-Length: 45\r\n\r\n" + poison), status: 200},
		{name: "a length and chunks", script: goesOn(ok + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"), status: 200, body: "hello"},
		{name: "chunks and a length", script: stays(ok + "Transfer-Encoding: chunked\r\nContent-Length: 45\r\n\r\n5\r\nhello\r\n0\r\n\r\n" + poison), status: 200, body: "hello"},
		{name: "two lengths", script: stays(ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"), status: 502, code: "bad_answer"},
		{name: "a length with a plus", script: stays(ok + "Content-Length: +2\r\n\r\nab"), status: 502, code: "bad_answer"},
		{name: "a negative length", script: stays(ok + "Content-Length: -2\r\n\r\nab"), status: 502, code: "bad_answer"},
		{name: "an unknown coding", script: stays(ok + "Transfer-Encoding: xchunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"), status: 502, code: "bad_answer"},
		{name: "two codings", script: stays(ok + "Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"), status: 502, code: "bad_answer"},
		{name: "a body that the end of the connection ends", script: says("HTTP/1.0 200 OK\r\n\r\nhello"), status: 200, body: "hello"},
		{name: "a body that a reset ends", script: func(c net.Conn) bool {
			_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\nhello")
			_ = c.(*net.TCPConn).SetLinger(0)
			return false
		}, broken: true},

		// Chunks.
		{name: "closes in a chunk", script: says(ok + "Transfer-Encoding: chunked\r\n\r\n64\r\nshort"), broken: true},
		{name: "closes between chunks", script: says(ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n"), broken: true},
		{name: "closes before the last line", script: says(ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n0\r\n"), broken: true},
		{name: "a chunk size that is not a number", script: stays(ok + "Transfer-Encoding: chunked\r\n\r\nzz\r\nshort\r\n"), broken: true},
		{name: "a chunk without its end", script: stays(ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nok0\r\n\r\n"), broken: true},

		// Lines.
		{name: "another protocol", script: stays("SSH-2.0-OpenSSH_9.2\r\n"), status: 502, code: "bad_answer"},
		{name: "HTTP/0.9", script: says("hello\n"), status: 502, code: "bad_answer"},
		{name: "closes without an answer", script: says(""), status: 502, code: "bad_answer"},
		{name: "no status", script: stays("HTTP/1.1 \r\n\r\n"), status: 502, code: "bad_answer"},
		{name: "a status of four digits", script: stays("HTTP/1.1 2000 OK\r\n\r\n"), status: 502, code: "bad_answer"},
		{name: "a negative status", script: stays("HTTP/1.1 -20 OK\r\n\r\n"), status: 502, code: "bad_answer"},
		{name: "status 000", script: stays("HTTP/1.1 000 OK\r\nContent-Length: 2\r\n\r\nok"), status: 502, code: "bad_answer"},
		{name: "a line without end", script: stays("HTTP/1.1 200 " + strings.Repeat("O", 300<<10)), status: 502, code: "bad_answer"},
		{name: "fields without end", script: stays(ok + strings.Repeat("X: "+strings.Repeat("x", 1<<10)+"\r\n", 300)), status: 502, code: "answer_header_too_large"},
		{name: "as many fields as there may be", script: goesOn(ok + "Content-Length: 2\r\nConnection: x-secret\r\nX-Secret: s\r\n" + strings.Repeat("X: y\r\n", 509) + "\r\nok"), status: 200, body: "ok", header: func(h http.Header) string {
			if len(h["X"]) != 509 || len(h["X-Secret"]) > 0 {
				return fmt.Sprint(len(h["X"]), h["X-Secret"])
			}
			return ""
		}},
		{name: "one field more", script: stays(ok + "Content-Length: 2\r\n" + strings.Repeat("X: y\r\n", 512) + "\r\nok"), status: 502, code: "answer_header_too_large"},
		{name: "one field more in a hint", script: stays("HTTP/1.1 103 Early Hints\r\n" + strings.Repeat("X: y\r\n", 513) + "\r\n"), status: 502, code: "answer_header_too_large"},
		{name: "too many fields in trailers", script: goesOn(ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" + strings.Repeat("X: y\r\n", 600) + "\r\n"), broken: true},
		{name: "a malformed field is dropped", script: goesOn(ok + "X Y: z\r\nContent-Length: 2\r\n\r\nok"), status: 200, body: "ok", header: func(h http.Header) string {
			if len(h["X Y"])+len(h["X y"]) > 0 {
				return fmt.Sprint(h)
			}
			return ""
		}},
		{name: "NUL in a value", script: stays(ok + "X: a\x00b\r\nContent-Length: 2\r\n\r\nok"), status: 502, code: "bad_answer"},
		{name: "a bare CR in a value", script: stays(ok + "X: a\rSet-Cookie: b=c\r\nContent-Length: 2\r\n\r\nok"), status: 502, code: "bad_answer"},
		{name: "a space before the colon", script: stays(ok + "Content-Length : 2\r\n\r\nok"), status: 502, code: "bad_answer"},
		{name: "a folded field", script: stays(ok + "X: y\r\n z\r\nContent-Length: 2\r\n\r\nok"), status: 502, code: "bad_answer"},
		{name: "a bare CR in the reason", script: stays("HTTP/1.1 200 O\rK\r\nContent-Length: 2\r\n\r\nok"), status: 502, code: "bad_answer"},
		{name: "chunks of HTTP/1.0", script: says("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"), status: 502, code: "bad_answer"},
		{name: "HTTP/1.2", script: stays("HTTP/1.2 200 OK\r\nContent-Length: 2\r\n\r\nok"), status: 502, code: "bad_answer"},
		{name: "a malformed hint", script: stays("HTTP/1.1 103 Early Hints\r\nLink : </a>\r\n\r\n" + ok + "Content-Length: 2\r\n\r\nok"), status: 502, code: "bad_answer"},

		// Before and after.
		{name: "hints without end", script: func(c net.Conn) bool {
			for {
				if _, err := io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"); err != nil {
					return false
				}
			}
		}, status: 502, code: "bad_answer"},
		{name: "a hint with fields of the gateway", script: goesOn("HTTP/1.1 103 Early Hints\r\nConnection: close\r\nWindlass-Error: mine\r\nX-Request-Id: mine\r\n\r\n" + ok + "Windlass-Error: mine\r\nX-Request-Id: mine\r\nContent-Length: 2\r\n\r\nok"), status: 200, body: "ok", header: func(h http.Header) string {
			if id := h.Values("X-Request-Id"); len(id) != 1 || id[0] == "mine" || h.Get("Windlass-Error") != "" {
				return fmt.Sprint(h)
			}
			return ""
		}},
		{name: "another protocol without an upgrade in the request", script: stays("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"), status: 502, code: "bad_answer"},
		{name: "fields that are not allowed in trailers", script: goesOn(ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nContent-Length: 9\r\nWindlass-Error: mine\r\nX-Sum: 1\r\n\r\n"), status: 200, body: "ok", header: func(h http.Header) string {
			if h.Get("Trailer X-Sum") != "1" || len(h["Trailer Content-Length"])+len(h["Trailer Windlass-Error"]) > 0 {
				return fmt.Sprint(h)
			}
			return ""
		}},
		{name: "a length announced as a trailer", script: stays(ok + "Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n2\r\nok\r\n0\r\nContent-Length: 9\r\n\r\n"), status: 502, code: "bad_answer"},

		// Silence.
		{name: "never answers", script: stays(""), status: 504, code: "instance_timeout", silent: true},
		{name: "hangs in the status", script: stays("HTTP/1."), status: 504, code: "instance_timeout", silent: true},
		{name: "hangs in the fields", script: stays(ok + "Content-"), status: 504, code: "instance_timeout", silent: true},
		{name: "hangs after the fields", script: stays(ok + "Content-Length: 5\r\n\r\n"), broken: true, silent: true},
		{name: "hangs in the body", script: stays(ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n"), broken: true, silent: true},
	}
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		apps := make([]*gatewayv1.AppRoutes, len(cases))
		for i, test := range cases {
			app := echo(scripted(t, test.script))
			app.AppId, app.Hosts = fmt.Sprint("app_", i), []string{fmt.Sprintf("case-%d.local", i)}
			app.Targets[0].Instances[0].InstanceId = fmt.Sprint("ins-", i)
			if apps[i] = app; test.silent {
				app.Policy.ResponseTimeout, app.Policy.IdleTimeout = durationpb.New(200*time.Millisecond), durationpb.New(200*time.Millisecond)
			}
			r.set(app)
		}
		r.until(t, func() bool { return len(r.served) == len(cases) })
		for i, test := range cases {
			t.Run(test.name, func(t *testing.T) {
				host := fmt.Sprintf("case-%d.local", i)
				method := test.method
				if method == "" {
					method = http.MethodPost
				}
				conn, in := r.dial(t)
				_, err := fmt.Fprintf(conn, "%s /a HTTP/1.1\r\nHost: %s\r\nContent-Length: 1\r\n\r\nx", method, host)
				require.NoError(t, err)
				var res *http.Response
				for {
					res, err = http.ReadResponse(in, &http.Request{Method: method})
					if test.broken && err != nil {
						break // the gateway may find the fault before or after it sent the header
					}
					require.NoError(t, err)
					if res.StatusCode >= 200 {
						break
					}
					require.Empty(t, res.Header.Get("Windlass-Error")+res.Header.Get("Connection"))
				}
				restore := func() { // later requests have the usual time limits
					if test.silent {
						app := proto.CloneOf(apps[i])
						app.Generation, app.Policy.ResponseTimeout, app.Policy.IdleTimeout = 2, nil, nil
						r.put(t, app)
					}
				}
				if test.broken {
					if err == nil {
						require.Equal(t, http.StatusOK, res.StatusCode)
						_, err = io.ReadAll(res.Body)
						require.Error(t, err, "the client must see that the answer is incomplete")
					}
					ended(t, in)
					restore()
					conn, in = r.dial(t)
					sound(t, conn, in, host, "after")
					return
				}
				body, err := io.ReadAll(res.Body)
				require.NoError(t, err)
				require.Equal(t, test.status, res.StatusCode, "%s", body)
				require.Equal(t, test.code, res.Header.Get("Windlass-Error"))
				if test.code == "" {
					require.Equal(t, test.body, string(body))
				}
				restore()
				// The client and the gateway agree about the end of the answer.
				sound(t, conn, in, host, "same")
				for name, values := range res.Trailer {
					res.Header["Trailer "+name] = values
				}
				if test.header != nil {
					require.Empty(t, test.header(res.Header))
				}
				conn, in = r.dial(t)
				sound(t, conn, in, host, "after")
			})
		}
	})
}

// An instance sends two answers for each request, while many requests wait for its
// connections. The second answer must not reach a client.
func TestInstance_SecondAnswerReachesNoClient(t *testing.T) {
	bothEngines(t, func(t *testing.T) { unasked(t, start(t, nil)) })
}

func unasked(t *testing.T, r *harness) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
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
					_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s%s", len(q.body), q.body, poison)
				}
			}()
		}
	}()
	r.put(t, echo(l.Addr().String()))
	var clients sync.WaitGroup
	for client := range 16 {
		clients.Go(func() {
			for n := range 100 {
				word := fmt.Sprintf("client %d request %d", client, n)
				res, err := r.client.Do(r.request(t, http.MethodPost, "/", word))
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || string(body) != word || res.StatusCode != http.StatusOK {
					t.Errorf("%d %q is not %q: %v", res.StatusCode, body, word, err)
				}
			}
		})
	}
	clients.Wait()
}

// The timeout for the body is not the timeout for the header.
func TestInstance_LateAnswerThatHangsIsCut(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		hangs := make(chan struct{})
		t.Cleanup(func() { close(hangs) })
		app := echo(raw(t, func(c net.Conn) {
			<-time.After(100 * time.Millisecond)
			_, _ = io.WriteString(c, ok+"Content-Length: 5\r\n\r\nab")
			<-hangs
		}))
		app.Policy.IdleTimeout = durationpb.New(200 * time.Millisecond)
		r.put(t, app)
		conn, in := r.dial(t)
		_, err := io.WriteString(conn, get+"\r\n")
		require.NoError(t, err)
		res, err := http.ReadResponse(in, nil)
		if err == nil { // otherwise the gateway had not sent the header yet
			_, err = io.ReadAll(res.Body)
			require.NoError(t, res.Body.Close())
		}
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	})
}

// The test finds out which way a request went: the short way keeps the case of field names, and net/http does not.
// Field names have no case (RFC 9110, section 5.1).
func TestFastPath_TakesPlainRequests(t *testing.T) {
	r := start(t, nil)
	r.put(t, echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
		w.Header()["x-WAY"] = []string{"y"}
		_, _ = io.Copy(io.Discard, q.Body)
	})))
	for request, short := range map[string]bool{
		get + "\r\n": true,
		"POST /a HTTP/1.1\r\nhost: echo.local\r\nConnection: keep-alive\r\nContent-Length: 70000\r\n\r\n" + strings.Repeat("x", 70_000): false,
		"POST /a HTTP/1.1\r\nhost: echo.local\r\nConnection: keep-alive\r\nContent-Length: 60000\r\n\r\n" + strings.Repeat("x", 60_000): true,
		get + "Expect: 100-continue\r\n\r\n": false,
		"POST /a HTTP/1.1\r\nHost: echo.local\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n": false,
	} {
		conn, in := r.dial(t)
		_, err := io.WriteString(conn, request)
		require.NoError(t, err)
		head := ""
		for !strings.HasSuffix(head, "\r\n\r\n") {
			line, err := in.ReadString('\n')
			require.NoError(t, err)
			head += line
		}
		require.Equal(t, short, strings.Contains(head, "\r\nx-WAY: y\r\n"), "%.40q: %s", request, head)
		require.NoError(t, conn.Close())
	}
}
