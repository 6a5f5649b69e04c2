package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway"
)

// The gateway answers a client that stops in the middle of a request, and closes the connection. The instance
// gets no request, or a request that does not end.
func TestClient_ThatStopsMidwayIsReleased(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		t.Parallel()
		long := strings.Repeat("x", 100<<10) // longer than proxy.Replayable
		for name, test := range map[string]struct {
			// send is what the client sends before it stops. A short text is written byte by byte.
			send string
			// half: the client closes its direction. net/http then treats the client as gone.
			half   bool
			status int // 0: the connection is closed without an answer
			code   string
		}{
			"in a body":      {post + "Content-Length: 10\r\n\r\nabc", false, 408, "body_too_slow"},
			"before a body":  {post + "Content-Length: 10\r\n\r\n", false, 408, "body_too_slow"},
			"in a long body": {post + "Content-Length: 200000\r\n\r\n" + long, false, 408, "body_too_slow"},
			"in chunks":      {post + "Transfer-Encoding: chunked\r\n\r\n5\r\nab", false, 408, "body_too_slow"},
			"between chunks": {post + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", false, 408, "body_too_slow"},
			// net/http does not say why the trailers did not arrive.
			"in trailers":                  {post + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX: y\r\n", false, 499, "client_gone"},
			"half closed in a body":        {post + "Content-Length: 10\r\n\r\nabc", true, 499, "client_gone"},
			"half closed in a long body":   {post + "Content-Length: 200000\r\n\r\n" + long, true, 499, "client_gone"},
			"half closed in chunks":        {post + "Transfer-Encoding: chunked\r\n\r\n5\r\nab", true, 499, "client_gone"},
			"half closed between chunks":   {post + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", true, 499, "client_gone"},
			"half closed in trailers":      {post + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX: y\r\n", true, 499, "client_gone"},
			"half closed in a line":        {"POST /a HT", true, 400, ""},
			"half closed in fields":        {post + "Content-Le", true, 400, ""},
			"half closed before any field": {"POST /a HTTP/1.1\r\n", true, 400, ""},
			"half closed before anything":  {"", true, 0, ""},
			"in a line":                    {"POST /a HT", false, 400, ""},
			"in fields":                    {post + "Content-Le", false, 400, ""},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel() // each case takes the full time limit of a client
				r := start(t, func(c *gateway.Config) { c.SlowClient, c.HeaderTimeout = time.Second, time.Second })
				instance := startRecorder(t)
				r.put(t, echo(instance.address))
				conn, in := r.dial(t)
				require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
				if len(test.send) < 1<<10 {
					for _, b := range []byte(test.send) {
						_, err := conn.Write([]byte{b})
						require.NoError(t, err)
					}
				} else {
					_, err := io.WriteString(conn, test.send)
					require.NoError(t, err)
				}
				if test.half {
					require.NoError(t, conn.(*net.TCPConn).CloseWrite())
				}
				if test.status > 0 {
					res, err := http.ReadResponse(in, nil)
					require.NoError(t, err)
					body, err := io.ReadAll(res.Body)
					require.NoError(t, err)
					res.Body.Close()
					require.Equal(t, test.status, res.StatusCode, "%s", body)
					require.Equal(t, test.code, res.Header.Get("Windlass-Error"))
				}
				ended(t, in)
				conn, in = r.dial(t)
				sound(t, conn, in, "echo.local", "after")
				require.NoError(t, conn.Close())
				r.stop()
				r.running.wait(t)
				instance.wait(t)
				require.Equal(t, []string{"POST /after after"}, instance.saw())
				require.Empty(t, instance.unsound)
			})
		}
	})
}

// net/http treats a client that closes its direction as gone, although TCP would let it read the answer. So its
// request is broken off. An instance gets the request at most once.
func TestClient_HalfClosedIsGone(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		var got atomic.Int64
		gone := make(chan struct{})
		r.put(t, echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path != "/a" {
				_, _ = io.Copy(w, q.Body)
				return
			}
			got.Add(1)
			_, _ = io.WriteString(w, "begun")
			w.(http.Flusher).Flush()
			<-q.Context().Done()
			close(gone)
		})))
		conn, in := r.dial(t)
		_, err := io.WriteString(conn, post+"Content-Length: 2\r\n\r\nab")
		require.NoError(t, err)
		res, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		defer res.Body.Close()
		begun := make([]byte, len("begun"))
		_, err = io.ReadFull(res.Body, begun)
		require.NoError(t, err)
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
		select {
		case <-gone:
		case <-time.After(patience):
			t.Fatal("the instance still works on the request")
		}
		_, err = io.ReadAll(res.Body)
		require.Error(t, err, "the client must see that the answer is incomplete")
		conn, in = r.dial(t)
		sound(t, conn, in, "echo.local", "after")
		require.Equal(t, int64(1), got.Load())
	})
}

// An instance may refuse a request before it has read the body.
func TestClient_GetsAnAnswerBeforeItsRequestEnds(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, func(c *gateway.Config) { c.SlowClient = 2 * time.Second })
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		release := make(chan struct{})
		defer close(release)
		var got atomic.Int64
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					in := bufio.NewReader(c)
					first, err := line(in)
					if err != nil {
						return
					}
					_, header, err := fields(in)
					if err != nil {
						return
					}
					got.Add(1)
					if strings.HasPrefix(first, "POST /a ") {
						_, _ = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
						<-release
						return
					}
					var n int
					_, _ = fmt.Sscan(header["content-length"][0], &n)
					body, _ := exactly(in, n)
					_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", n, body)
				}()
			}
		}()
		r.put(t, echo(l.Addr().String()))
		conn, in := r.dial(t)
		answered := func(in *bufio.Reader) {
			res, err := http.ReadResponse(in, nil)
			require.NoError(t, err)
			body, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			res.Body.Close()
			require.Equal(t, http.StatusForbidden, res.StatusCode)
			require.Equal(t, "no", string(body))
			ended(t, in)
		}
		// One client continues to send its body. The gateway must not read a part of the body as a request, even if
		// it looks like one.
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, err := io.WriteString(conn, post+"Content-Length: 50000000\r\n\r\n"+strings.Repeat("x", 100<<10))
			for err == nil {
				_, err = io.WriteString(conn, next)
			}
		}()
		answered(in)
		<-sent
		// Other clients wait for the answer before they send the rest of the body, short or long.
		for _, length := range []int{101 << 10, 50_000_000} {
			conn, in = r.dial(t)
			_, err = fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n%s", post, length, strings.Repeat("x", 100<<10))
			require.NoError(t, err)
			answered(in)
		}
		conn, in = r.dial(t)
		sound(t, conn, in, "echo.local", "after")
		require.Equal(t, int64(4), got.Load())
	})
}

// An answer may begin while the client still sends the request. The client may wait for a part of the answer
// before it sends the next part. No bytes are lost in either direction.
func TestClient_SendsOnWhileItIsAnswered(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		for name, test := range map[string]struct {
			header string
			parts  func(string) string // returns a part as it is written
			end    string
		}{
			"by length": {fmt.Sprintf("Content-Length: %d\r\n\r\n", 20*(10<<10)), func(s string) string { return s }, ""},
			"by chunks": {"Transfer-Encoding: chunked\r\n\r\n", func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }, "0\r\n\r\n"},
		} {
			t.Run(name, func(t *testing.T) {
				r := start(t, nil)
				r.put(t, echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
					control := http.NewResponseController(w)
					if err := control.EnableFullDuplex(); err != nil {
						panic(err)
					}
					buffer := make([]byte, 10<<10)
					for {
						n, err := io.ReadFull(q.Body, buffer)
						if n > 0 {
							_, _ = w.Write(buffer[:n])
							_ = control.Flush()
						}
						if err != nil {
							return
						}
					}
				})))
				conn, in := r.dial(t)
				_, err := io.WriteString(conn, post+test.header)
				require.NoError(t, err)
				var answer io.Reader
				for n := range 20 { // each part is sent after the part before was answered
					part := strings.Repeat(string(rune('a'+n)), 10<<10)
					_, err := io.WriteString(conn, test.parts(part))
					require.NoError(t, err)
					if answer == nil {
						res, err := http.ReadResponse(in, nil)
						require.NoError(t, err)
						t.Cleanup(func() { res.Body.Close() })
						answer = res.Body
					}
					got := make([]byte, len(part))
					_, err = io.ReadFull(answer, got)
					require.NoError(t, err)
					require.Equal(t, part, string(got))
				}
				_, err = io.WriteString(conn, test.end)
				require.NoError(t, err)
				rest, err := io.ReadAll(answer)
				require.NoError(t, err)
				require.Empty(t, rest)
				ended(t, in) // because the answer began before the request's end
				conn, in = r.dial(t)
				sound(t, conn, in, "echo.local", "after")
			})
		}
	})
}
