package gateway_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// wirePatience limits the waits for one connection. It is shorter than patience, because a test has many connections.
const wirePatience = 10 * time.Second

// recorder is an instance that records the requests that reach it. It reads strictly by RFC 9112, without net/http,
// because the test also tests net/http. It answers each whole request with the request's body.
type recorder struct {
	address  string
	listener net.Listener
	conns    sync.WaitGroup
	mu       sync.Mutex
	whole    []recorded // whole requests, in the order in which they ended
	cut      []string   // the parts of requests that were incomplete when the connection ended
	unsound  []string   // requests that are not allowed by RFC 9112
}

// recorded is a request. Names of fields are in lower case.
type recorded struct {
	method, target, body string
	header               map[string][]string
	trailer              []string
}

func (q recorded) String() string {
	s := q.method + " " + q.target + " " + q.body
	for _, line := range q.trailer {
		s += " {" + line + "}"
	}
	return s
}

// recorderAddress is an address for recorders only. On 127.0.0.1, another program may still call the port of a service
// that has ended, for example a workflow server.
const recorderAddress = "127.89.0.1:0"

func startRecorder(t *testing.T) *recorder {
	l, err := net.Listen("tcp", recorderAddress)
	require.NoError(t, err)
	r := &recorder{address: l.Addr().String(), listener: l}
	r.conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.conns.Go(func() { r.serve(c) })
		}
	})
	t.Cleanup(func() { l.Close() })
	return r
}

// wait waits until all connections have ended. The gateway must have ended before.
func (r *recorder) wait(t *testing.T) {
	t.Helper()
	_ = r.listener.Close()
	ended := make(chan struct{})
	go func() { r.conns.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("a connection to the instance was left open")
	}
}

// saw returns the whole requests, as "METHOD TARGET BODY {TRAILER: VALUE}".
func (r *recorder) saw() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []string{}
	for _, q := range r.whole {
		out = append(out, q.String())
	}
	return out
}

var (
	errUnsound  = errors.New("unsound")
	requestLine = regexp.MustCompile("^([!#$%&'*+\\-.^_`|~0-9A-Za-z]+) ([\\x21-\\x7e]+) HTTP/1\\.1$")
	fieldLine   = regexp.MustCompile("^([!#$%&'*+\\-.^_`|~0-9A-Za-z]+):[ \\t]*([^\\x00-\\x08\\x0a-\\x1f\\x7f]*)$")
	decimal     = regexp.MustCompile(`^[0-9]{1,18}$`)
	hexadecimal = regexp.MustCompile(`^[0-9A-Fa-f]{1,15}$`)
)

// maxWireLines is more than the number of lines in the largest header that the gateway accepts.
const maxWireLines = 30_000

func (r *recorder) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	for {
		if _, err := in.Peek(1); err != nil {
			return // the connection ended between two requests
		}
		q, err := read(c, in)
		r.mu.Lock()
		switch {
		case errors.Is(err, errUnsound):
			r.unsound = append(r.unsound, err.Error()+" in "+q.String())
		case err != nil:
			r.cut = append(r.cut, q.String())
		default:
			r.whole = append(r.whole, q)
		}
		r.mu.Unlock()
		if err != nil {
			return
		}
		if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(q.body), q.body); err != nil {
			return
		}
	}
}

func line(in *bufio.Reader) (string, error) {
	s, err := in.ReadString('\n')
	if err != nil {
		return s, err
	}
	s, ok := strings.CutSuffix(s, "\r\n")
	if !ok || strings.ContainsRune(s, '\r') {
		return s, fmt.Errorf("%w: line %q", errUnsound, s)
	}
	return s, nil
}

// fields reads header lines up to the empty line.
func fields(in *bufio.Reader) (lines []string, header map[string][]string, err error) {
	header = map[string][]string{}
	for range maxWireLines {
		s, err := line(in)
		if err != nil || s == "" {
			return lines, header, err
		}
		m := fieldLine.FindStringSubmatch(s)
		if m == nil {
			return lines, header, fmt.Errorf("%w: field %q", errUnsound, s)
		}
		lines = append(lines, s)
		name := strings.ToLower(m[1])
		header[name] = append(header[name], m[2])
	}
	return lines, header, fmt.Errorf("%w: too many lines", errUnsound)
}

func read(c io.Writer, in *bufio.Reader) (q recorded, err error) {
	first, err := line(in)
	if err != nil {
		return q, err
	}
	m := requestLine.FindStringSubmatch(first)
	if m == nil {
		return q, fmt.Errorf("%w: request line %q", errUnsound, first)
	}
	q.method, q.target = m[1], m[2]
	if _, q.header, err = fields(in); err != nil {
		return q, err
	}
	length, chunked := q.header["content-length"], q.header["transfer-encoding"]
	if len(q.header["host"]) != 1 || len(length)+len(chunked) > 1 {
		return q, fmt.Errorf("%w: %v", errUnsound, q.header)
	}
	if len(q.header["expect"]) > 0 && len(length)+len(chunked) > 0 {
		_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
	}
	switch {
	case len(length) == 1:
		if !decimal.MatchString(length[0]) {
			return q, fmt.Errorf("%w: length %q", errUnsound, length)
		}
		n, _ := strconv.Atoi(length[0])
		q.body, err = exactly(in, n)
		return q, err
	case len(chunked) == 1:
		if chunked[0] != "chunked" {
			return q, fmt.Errorf("%w: coding %q", errUnsound, chunked)
		}
		q.body, q.trailer, err = chunks(in)
		return q, err
	}
	return q, nil
}

func exactly(in *bufio.Reader, n int) (string, error) {
	body, err := io.ReadAll(io.LimitReader(in, int64(n)))
	if err == nil && len(body) < n {
		err = io.ErrUnexpectedEOF
	}
	return string(body), err
}

func chunks(in *bufio.Reader) (body string, trailer []string, err error) {
	for {
		s, err := line(in)
		if err != nil {
			return body, nil, err
		}
		if !hexadecimal.MatchString(s) {
			return body, nil, fmt.Errorf("%w: chunk %q", errUnsound, s)
		}
		n, _ := strconv.ParseInt(s, 16, 64)
		if n == 0 {
			trailer, _, err = fields(in)
			return body, trailer, err
		}
		data, err := exactly(in, int(n))
		body += data
		if err != nil {
			return body, nil, err
		}
		if end, err := line(in); err != nil || end != "" {
			return body, nil, errors.Join(err, fmt.Errorf("%w: end of chunk %q", errUnsound, end))
		}
	}
}

// wireCase is what a client writes, and the expected result. Each case has its own app and instance. The app's host
// replaces "echo.local".
type wireCase struct {
	name, send string
	// answers are the statuses that the client sees, one after the other, 1xx included.
	answers []int
	// kept: the connection stays open, and its next request is served. Otherwise the connection is closed after the
	// answers.
	kept bool
	// saw are the whole requests that the instance gets. No other whole request may reach it.
	saw []string
	// cut: the beginning of one more request may reach the instance, but not its end.
	cut bool
	// header returns the fault of the first request that the instance gets, or "".
	header func(recorded) string
}

// connect connects to the gateway.
func (h *harness) connect() (conn net.Conn, in *bufio.Reader, err error) {
	if h.tls != nil {
		conn, err = tls.Dial("tcp", h.gateway.Addresses()[1].String(), h.tls)
	} else {
		conn, err = net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	}
	if err != nil {
		return nil, nil, err
	}
	return conn, bufio.NewReader(conn), conn.SetDeadline(time.Now().Add(wirePatience))
}

// dial connects to the gateway until the end of the test.
func (h *harness) dial(t *testing.T) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, in, err := h.connect()
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn, in
}

// sound writes a valid request with word as its body, and checks that the answer has the same body.
func sound(t *testing.T, conn net.Conn, in *bufio.Reader, host, word string) {
	t.Helper()
	_, err := fmt.Fprintf(conn, "POST /%s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s", word, host, len(word), word)
	require.NoError(t, err)
	res, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, word, string(body))
}

// ended checks that the connection ends without further bytes.
func ended(t *testing.T, in *bufio.Reader) {
	t.Helper()
	rest, err := io.ReadAll(in)
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		t.Fatal("the connection was left open")
	}
	require.Empty(t, string(rest)) // a reset counts as an end, too
}

// runWire sends all cases to one gateway, in parallel, because most of them wait for a connection to end. After all
// connections to the instances have ended, it compares the requests that the instances got.
func runWire(t *testing.T, cases []wireCase) {
	bothEngines(t, func(t *testing.T) { runWireAt(t, start(t, nil), cases) })
	t.Run("HTTPS", func(t *testing.T) { runWireAt(t, startTLS(t), cases) })
}

func runWireAt(t *testing.T, r *harness, cases []wireCase) {
	recorders := make([]*recorder, len(cases))
	for i := range cases {
		recorders[i] = startRecorder(t)
		app := echo(recorders[i].address)
		app.AppId, app.Hosts = fmt.Sprint("app_", i), []string{fmt.Sprintf("case-%d.local", i)}
		app.Targets[0].Instances[0].InstanceId = fmt.Sprint("ins-", i)
		r.set(app)
	}
	r.until(t, func() bool { return len(r.served) == len(cases) })
	t.Run("cases", func(t *testing.T) {
		for i, test := range cases {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				host := fmt.Sprintf("case-%d.local", i)
				conn, in := r.dial(t)
				// The gateway may refuse a request and close the connection before all bytes are written.
				_, _ = io.WriteString(conn, strings.ReplaceAll(test.send, "echo.local", host))
				for n, status := range test.answers {
					res, err := http.ReadResponse(in, nil)
					require.NoError(t, err, "answer %d", n)
					body, err := io.ReadAll(res.Body)
					if !errors.Is(err, syscall.ECONNRESET) { // the system may reset a connection with unread bytes
						require.NoError(t, err)
					}
					res.Body.Close()
					require.Equal(t, status, res.StatusCode, "%s", body)
				}
				if test.kept {
					sound(t, conn, in, host, "same")
					require.NoError(t, conn.Close())
				} else {
					ended(t, in)
				}
				conn, in = r.dial(t)
				sound(t, conn, in, host, "after")
				require.NoError(t, conn.Close())
			})
		}
	})
	r.stop()
	r.running.wait(t)
	for i, test := range cases {
		t.Run(test.name+"/at the instance", func(t *testing.T) {
			got := recorders[i]
			got.wait(t)
			want := append([]string{}, test.saw...)
			if test.kept {
				want = append(want, "POST /same same")
			}
			require.Empty(t, got.unsound)
			require.Equal(t, append(want, "POST /after after"), got.saw())
			if !test.cut {
				require.Empty(t, got.cut)
			}
			require.LessOrEqual(t, len(got.cut), 1)
			if test.header != nil {
				require.Empty(t, test.header(got.whole[0]))
			}
		})
	}
}
