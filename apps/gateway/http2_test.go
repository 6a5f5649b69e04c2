package gateway_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// frames is an HTTP/2 client that can write any frames, including invalid frames.
type frames struct {
	conn   net.Conn
	framer *http2.Framer
	stream uint32
}

func (h *harness) frames(t *testing.T) *frames {
	t.Helper()
	conn, _ := h.dial(t)
	f := &frames{conn: conn, framer: http2.NewFramer(conn, conn), stream: 1}
	f.framer.AllowIllegalWrites = true
	f.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err := io.WriteString(conn, http2.ClientPreface)
	require.NoError(t, err)
	require.NoError(t, f.framer.WriteSettings())
	return f
}

// block encodes lines of "name: value".
func block(lines []string) []byte {
	var out bytes.Buffer
	encoder := hpack.NewEncoder(&out)
	for _, l := range lines {
		name, value, _ := strings.Cut(l[1:], ": ")
		_ = encoder.WriteField(hpack.HeaderField{Name: l[:1] + name, Value: value}) // writing to a buffer cannot fail
	}
	return out.Bytes()
}

// answer reads the answer on a stream. status is its HTTP status, or the name of the error that ended the stream.
func (f *frames) answer(t *testing.T, stream uint32) (status, body string) {
	t.Helper()
	for {
		frame, err := f.framer.ReadFrame()
		require.NoError(t, err)
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				require.NoError(t, f.framer.WriteSettingsAck())
			}
		case *http2.GoAwayFrame:
			return "GOAWAY " + frame.ErrCode.String(), ""
		case *http2.RSTStreamFrame:
			if frame.StreamID == stream {
				// A reset after a whole answer only says that the server does not need the rest of the request.
				if status == "" {
					status = frame.ErrCode.String()
				}
				return status, body
			}
		case *http2.MetaHeadersFrame:
			if frame.StreamID == stream {
				if status == "" {
					status = frame.PseudoValue("status")
				}
				if frame.StreamEnded() {
					return status, body
				}
			}
		case *http2.DataFrame:
			if frame.StreamID == stream {
				body += string(frame.Data())
				if frame.StreamEnded() {
					return status, body
				}
			}
		}
	}
}

// open writes a request with its header, data and trailers on a new stream.
func (f *frames) open(t *testing.T, header []string, data []string, trailers []string) (stream uint32) {
	t.Helper()
	stream, f.stream = f.stream, f.stream+2
	require.NoError(t, f.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: block(header), EndHeaders: true, EndStream: len(data)+len(trailers) == 0,
	}))
	for i, d := range data {
		require.NoError(t, f.framer.WriteData(stream, i == len(data)-1 && len(trailers) == 0, []byte(d)))
	}
	if len(trailers) > 0 {
		require.NoError(t, f.framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: stream, BlockFragment: block(trailers), EndHeaders: true, EndStream: true,
		}))
	}
	return stream
}

// Frames separate the requests of HTTP/2. On the way to an instance a request becomes lines and lengths of HTTP/1.
// A request that would have another meaning there must not reach an instance.
func TestHTTP2_MalformedReachesNoInstance(t *testing.T) {
	with := func(more ...string) []string {
		return append([]string{":method: POST", ":scheme: http", ":authority: echo.local", ":path: /a"}, more...)
	}
	target := func(method, authority, path string, more ...string) []string {
		return append([]string{":method: " + method, ":scheme: http", ":authority: " + authority, ":path: " + path}, more...)
	}
	const protocol = "PROTOCOL_ERROR"
	cases := []framesCase{
		{name: "sound", header: with("content-length: 2"), data: []string{"ab"}, status: "200", saw: []string{"POST /a ab"}},
		{name: "without a length", header: with(), data: []string{"a", "b"}, status: "200", saw: []string{"POST /a ab"}},
		{name: "without content", header: with(), status: "200", saw: []string{"POST /a "}},

		// Lengths.
		{name: "a length above the data", header: with("content-length: 5"), data: []string{"ab"}, status: "400"},
		{name: "a length below the data", header: with("content-length: 1"), data: []string{"ab"}, status: protocol},
		{name: "a length without data", header: with("content-length: 2"), status: "400"},
		{name: "a length of zero without data", header: with("content-length: 0"), status: "200", saw: []string{"POST /a "}},
		{name: "a length of zero with an empty frame", header: with("content-length: 0"), data: []string{""}, status: "200", saw: []string{"POST /a "}},
		{name: "two lengths", header: with("content-length: 2", "content-length: 3"), data: []string{"ab"}, status: "400"},
		{name: "one length twice", header: with("content-length: 2", "content-length: 2"), data: []string{"ab"}, status: "400"},
		{name: "a length with a plus", header: with("content-length: +2"), data: []string{""}, status: "400"},
		{name: "a length in hex", header: with("content-length: 0x0"), data: []string{""}, status: "400"},
		{name: "an empty length", header: with("content-length: "), data: []string{""}, status: "400"},

		// Fields of a connection.
		{name: "transfer-encoding", header: with("transfer-encoding: chunked"), data: []string{"0\r\n\r\n" + next}, status: "400"},
		{name: "connection", header: with("connection: close"), status: "400"},
		{name: "keep-alive", header: with("keep-alive: 5"), status: "400"},
		{name: "proxy-connection", header: with("proxy-connection: close"), status: "400"},
		{name: "upgrade", header: with("upgrade: websocket"), status: "400"},
		{name: "te", header: with("te: gzip"), status: "400"},
		{name: "te: trailers", header: with("te: trailers"), status: "200", saw: []string{"POST /a "}},

		// Names and values.
		{name: "a name in capitals", header: with("X-Capital: y"), status: protocol},
		{name: "a name with a colon", header: with("x:y: z"), status: protocol},
		{name: "a name with a line end", header: with("x\r\ny: z"), status: protocol},
		{name: "a line end in a value", header: with("x: y\r\ntransfer-encoding: chunked"), status: protocol},
		{name: "a bare LF in a value", header: with("x: y\nz"), status: protocol},
		{name: "NUL in a value", header: with("x: y\x00z"), status: protocol},
		{name: "no name", header: with(": y"), status: protocol},

		// Parts of the request line.
		{name: "a method with a line end", header: target("GET /b HTTP/1.1\r\nX:", "echo.local", "/a"), status: protocol},
		{name: "a method with a space", header: target("GET /b", "echo.local", "/a"), status: "400"},
		{name: "a path with a line end", header: target("GET", "echo.local", "/a\r\nX: y"), status: protocol},
		{name: "a path with a space", header: target("GET", "echo.local", "/a b"), status: "400"},
		{name: "a query with a version", header: target("GET", "echo.local", "/a?b HTTP/1.1"), status: "400"},
		{name: "a path that is a URL", header: target("GET", "echo.local", "http://other.local/a"), status: "400"},
		{name: "a path without a slash", header: target("GET", "echo.local", "a"), status: protocol},
		{name: "an empty path", header: target("GET", "echo.local", ""), status: protocol},
		{name: "a path twice", header: with(":path: /b"), status: protocol},
		{name: "no path", header: []string{":method: GET", ":scheme: http", ":authority: echo.local"}, status: protocol},
		{name: "another scheme", header: []string{":method: GET", ":scheme: file", ":authority: echo.local", ":path: /a"}, status: protocol},
		{name: "an unknown pseudo field", header: with(":secret: x"), status: protocol},
		{name: "a pseudo field behind a field", header: []string{":method: GET", ":scheme: http", "x: y", ":authority: echo.local", ":path: /a"}, status: protocol},
		{name: "a tunnel", header: []string{":method: CONNECT", ":authority: echo.local"}, status: "501"},
		{name: "a tunnel for websockets", header: target("CONNECT", "echo.local", "/a", ":protocol: websocket"), status: protocol},

		// Hosts.
		{name: "a host that differs from the authority", header: with("host: other.local"), status: "400"},
		{name: "a host that equals the authority", header: with("host: echo.local"), status: "200", saw: []string{"POST /a "}},
		{name: "two hosts", header: []string{":method: GET", ":scheme: http", ":path: /a", "host: echo.local", "host: other.local"}, status: "400"},
		{name: "a host without an authority", header: []string{":method: GET", ":scheme: http", ":path: /a", "host: echo.local"}, status: "200", saw: []string{"GET /a "}},
		{name: "no host", header: []string{":method: GET", ":scheme: http", ":path: /a"}, status: "400"},
		{name: "a host that is a user", header: target("GET", "echo.local:80@other.local", "/a"), status: protocol},
		{name: "a port that is not a number", header: target("GET", "echo.local:x", "/a"), status: "400"},

		// Trailers.
		{name: "trailers", header: with(), data: []string{"ab"}, trailers: []string{"content-length: 9", "x-forwarded-for: 6.6.6.6", "host: other.local"}, status: "200", saw: []string{"POST /a ab"}},
		{name: "a path as a trailer", header: with(), data: []string{"ab"}, trailers: []string{":path: /b"}, status: protocol},
	}
	bothEngines(t, func(t *testing.T) { runFrames(t, cases) })
}

// framesCase is an HTTP/2 request, the status or the error of its stream, and the requests that its instance gets.
type framesCase struct {
	name                   string
	header, data, trailers []string
	status                 string
	saw                    []string
}

// runFrames sends the request of each case to a separate app.
func runFrames(t *testing.T, cases []framesCase) {
	r := start(t, nil)
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
				var header []string
				for _, l := range test.header {
					header = append(header, strings.ReplaceAll(l, "echo.local", host))
				}
				f := r.frames(t)
				status, body := f.answer(t, f.open(t, header, test.data, test.trailers))
				require.Equal(t, test.status, status, "%s", body)
				// Other streams of the connection still work.
				status, body = f.answer(t, f.open(t, []string{":method: POST", ":scheme: http", ":authority: " + host, ":path: /same"}, []string{"same"}, nil))
				require.Equal(t, "200 same", status+" "+body)
				require.NoError(t, f.conn.Close())
				conn, in := r.dial(t)
				sound(t, conn, in, host, "after")
				require.NoError(t, conn.Close())
			})
		}
	})
	r.stop()
	r.running.wait(t)
	for i, test := range cases {
		t.Run(test.name+"/at the instance", func(t *testing.T) {
			recorders[i].wait(t)
			require.Empty(t, recorders[i].unsound)
			if len(test.saw) > 0 || len(test.data) == 0 {
				require.Empty(t, recorders[i].cut)
			} // otherwise the instance may have got the beginning of the malformed request
			require.Equal(t, append(append([]string{}, test.saw...), "POST /same same", "POST /after after"), recorders[i].saw())
		})
	}
}

// A client may cancel each request as soon as it is sent (CVE-2023-44487). Then only the handlers of its requests
// use resources. Their number is limited by the client's limit of streams, and other clients are served.
func TestHTTP2_ResetStreamsDoNotDelayOtherClients(t *testing.T) {
	r := start(t, nil)
	instance := startRecorder(t)
	r.put(t, echo(instance.address))
	f := r.frames(t)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, f.conn)
	}()
	var flood bytes.Buffer
	framer := http2.NewFramer(&flood, nil)
	const streams = 5000
	for n := range uint32(streams) {
		stream := 2*n + 1
		require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: stream, EndHeaders: true, EndStream: true,
			BlockFragment: block([]string{":method: GET", ":scheme: http", ":authority: echo.local", ":path: /reset"}),
		}))
		require.NoError(t, framer.WriteRSTStream(stream, http2.ErrCodeCancel))
	}
	_, _ = f.conn.Write(flood.Bytes()) // the gateway may close the connection before the last frame
	conn, in := r.dial(t)
	sound(t, conn, in, "echo.local", "after")
	require.NoError(t, conn.Close())
	require.Eventually(t, func() bool { return r.inFlight(t) == 0 }, patience, 10*time.Millisecond)
	require.NoError(t, f.conn.Close())
	<-drained
	r.stop()
	r.running.wait(t)
	instance.wait(t)
	require.Empty(t, instance.unsound)
	after := 0
	for _, q := range instance.saw() {
		if q == "POST /after after" {
			after++
			continue
		}
		require.Equal(t, "GET /reset ", q)
	}
	require.Equal(t, 1, after)
	require.LessOrEqual(t, len(instance.saw()), streams+1)
}

// inFlight returns the gateway's count of requests in flight.
func (h *harness) inFlight(t *testing.T) float64 { return h.gauge(t, "windlass_gateway_in_flight") }
