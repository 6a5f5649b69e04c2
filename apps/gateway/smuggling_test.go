package gateway_test

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway"
)

const (
	post = "POST /a HTTP/1.1\r\nHost: echo.local\r\n"
	// next follows a request. It must not be read as another request if the first one is ambiguous.
	next = "GET /smuggled HTTP/1.1\r\nHost: echo.local\r\n\r\n"
)

// If two programs read one message differently, a client can put a request before the request of another client
// (RFC 9112, section 11.2). So the gateway refuses ambiguous requests and closes their connection. Other requests
// reach the instance with new framing.
func TestSmuggling_AmbiguousFramingReachesNoInstance(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		runWire(t, []wireCase{
			// Transfer-Encoding.
			{name: "length then chunks", send: post + "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + next, answers: []int{200}, saw: []string{"POST /a "}},
			{name: "chunks then length", send: post + "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n" + next, answers: []int{200}, saw: []string{"POST /a "}},
			{name: "chunks and a length with a plus", send: post + "Transfer-Encoding: chunked\r\nContent-Length: +6\r\n\r\n0\r\n\r\n" + next, answers: []int{400}},
			{name: "two codings", send: post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + next, answers: []int{501}},
			{name: "two codings, one of them identity", send: post + "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + next, answers: []int{501}},
			{name: "gzip, chunked", send: post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + next, answers: []int{501}},
			{name: "chunked, identity", send: post + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + next, answers: []int{501}},
			{name: "chunked, chunked", send: post + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + next, answers: []int{501}},
			{name: "identity", send: post + "Transfer-Encoding: identity\r\nContent-Length: 2\r\n\r\nab" + next, answers: []int{501}},
			{name: "no coding", send: post + "Transfer-Encoding:\r\nContent-Length: 2\r\n\r\nab" + next, answers: []int{501}},
			{name: "an unknown coding", send: post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + next, answers: []int{501}},
			{name: "a quoted coding", send: post + "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n" + next, answers: []int{501}},
			{name: "a coding with a parameter", send: post + "Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n" + next, answers: []int{501}},
			{name: "a space before the colon", send: post + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + next, answers: []int{400}},
			{name: "a tab before the colon", send: post + "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n" + next, answers: []int{400}},
			{name: "a tab after the colon is allowed", send: post + "Transfer-Encoding:\tchunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", answers: []int{200}, saw: []string{"POST /a ab"}},
			{name: "a coding in capitals", send: post + "TRANSFER-ENCODING: CHUNKED\r\n\r\n2\r\nab\r\n0\r\n\r\n", answers: []int{200}, saw: []string{"POST /a ab"}},
			{name: "a vertical tab", send: post + "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n" + next, answers: []int{400}},
			{name: "a coding that is folded", send: post + "Transfer-Encoding:\r\n chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n" + next, answers: []int{400}},
			{name: "a coding after a bare CR", send: post + "X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + next, answers: []int{400}},
			{name: "a coding of HTTP/1.0", send: "POST /a HTTP/1.0\r\nHost: echo.local\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + next, answers: []int{200}, saw: []string{"POST /a "}},
			{name: "a coding of HTTP/1.0 and a length", send: "POST /a HTTP/1.0\r\nHost: echo.local\r\nConnection: keep-alive\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + next, answers: []int{200}, saw: []string{"POST /a 0\r\n"}},

			// Content-Length.
			{name: "a length with a plus", send: post + "Content-Length: +5\r\n\r\nabcde" + next, answers: []int{400}},
			{name: "a negative length", send: post + "Content-Length: -5\r\n\r\nabcde" + next, answers: []int{400}},
			{name: "a length in hex", send: post + "Content-Length: 0x5\r\n\r\nabcde" + next, answers: []int{400}},
			{name: "a length with a fraction", send: post + "Content-Length: 5.0\r\n\r\nabcde" + next, answers: []int{400}},
			{name: "a length with an underscore", send: post + "Content-Length: 0_5\r\n\r\nabcde" + next, answers: []int{400}},
			{name: "a list of equal lengths", send: post + "Content-Length: 5, 5\r\n\r\nabcde" + next, answers: []int{400}},
			{name: "a list of lengths", send: post + "Content-Length: 5, 6\r\n\r\nabcdef" + next, answers: []int{400}},
			{name: "a length twice", send: post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nabcde", answers: []int{200}, kept: true, saw: []string{"POST /a abcde"}},
			{name: "two lengths", send: post + "Content-Length: 6\r\nContent-Length: 5\r\n\r\nabcdef" + next, answers: []int{400}},
			{name: "two lengths of equal value", send: post + "Content-Length: 5\r\nContent-Length: 05\r\n\r\nabcde" + next, answers: []int{400}},
			{name: "an empty length", send: post + "Content-Length:\r\n\r\nabcde" + next, answers: []int{400}},
			{name: "a length beyond 64 bits", send: post + "Content-Length: 1" + strings.Repeat("0", 20) + "\r\n\r\nabcde" + next, answers: []int{400}},
			{name: "a length beyond 63 bits", send: post + "Content-Length: 9223372036854775808\r\n\r\nabcde" + next, answers: []int{400}},
			{name: "a length above the limit", send: post + "Content-Length: 9223372036854775807\r\n\r\nabcde" + next, answers: []int{413}},
			{name: "a length with a space in it", send: post + "Content-Length: 1 0\r\n\r\nabcdefghij" + next, answers: []int{400}},
			{name: "a length between spaces", send: post + "Content-Length: \t 5 \t\r\n\r\nabcde", answers: []int{200}, kept: true, saw: []string{"POST /a abcde"}},
			{name: "a length with leading zeros", send: post + "Content-Length: 0005\r\n\r\nabcde", answers: []int{200}, kept: true, saw: []string{"POST /a abcde"}},
			{name: "a length that a bare LF ends", send: post + "Content-Length: 5\n\nabcde" + next, answers: []int{400}},
			{name: "a body of a GET", send: "GET /a HTTP/1.1\r\nHost: echo.local\r\nContent-Length: 5\r\n\r\nabcde", answers: []int{200}, kept: true, saw: []string{"GET /a abcde"}},
			{name: "bytes after a request without a length are the next request", send: post + "\r\n" + next, answers: []int{200, 200}, kept: true, saw: []string{"POST /a ", "GET /smuggled "}},

			{name: "two hosts", send: "GET /smuggled HTTP/1.1\r\nHost: echo.local\r\nHost: other.local\r\n\r\n", answers: []int{400}},

			// Chunks.
			{name: "chunks", send: post + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n", answers: []int{200}, saw: []string{"POST /a abcde"}},
			{name: "a chunk of more than 16 digits", send: post + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("0", 16) + "2\r\nab\r\n0\r\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "a chunk beyond 64 bits", send: post + "Transfer-Encoding: chunked\r\n\r\n10000000000000002\r\nab\r\n0\r\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "a chunk beyond 63 bits", send: post + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffe\r\nab\r\n0\r\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "a negative chunk", send: post + "Transfer-Encoding: chunked\r\n\r\n-2\r\nab\r\n0\r\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "a chunk with 0x", send: post + "Transfer-Encoding: chunked\r\n\r\n0x2\r\nab\r\n0\r\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "a chunk without size", send: post + "Transfer-Encoding: chunked\r\n\r\n\r\nab\r\n0\r\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "a chunk size that is not a number", send: post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n" + next, answers: []int{400}, cut: true},
			{name: "a space before the size", send: post + "Transfer-Encoding: chunked\r\n\r\n 2\r\nab\r\n0\r\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "a space after the size", send: post + "Transfer-Encoding: chunked\r\n\r\n2 \r\nab\r\n0\r\n\r\n", answers: []int{200}, saw: []string{"POST /a ab"}},
			{name: "a chunk without its end", send: post + "Transfer-Encoding: chunked\r\n\r\n2\r\nab0\r\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "a chunk longer than it says", send: post + "Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "a size that a bare LF ends", send: post + "Transfer-Encoding: chunked\r\n\r\n2\nab\r\n0\r\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "a chunk that a bare LF ends", send: post + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\n0\r\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "a bare CR in the size's line", send: post + "Transfer-Encoding: chunked\r\n\r\n2;\rx\r\nab\r\n0\r\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "extensions of chunks are dropped", send: post + "Transfer-Encoding: chunked\r\n\r\n2;a=b;c=\"d\"\r\nab\r\n0;e\r\n\r\n", answers: []int{200}, saw: []string{"POST /a ab"}},
			{name: "a bare LF in an extension", send: post + "Transfer-Encoding: chunked\r\n\r\n2;a\nab\r\n0\r\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "an extension that is too long", send: post + "Transfer-Encoding: chunked\r\n\r\n2;" + strings.Repeat("x", 8<<10) + "\r\nab\r\n0\r\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "too many extensions", send: post + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1;"+strings.Repeat("x", 1<<10)+"\r\na\r\n", 40) + "0\r\n\r\n" + next, answers: []int{400}, cut: true},

			// Trailers.
			{name: "trailers", send: post + "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nab\r\n0\r\nX-Sum: 1\r\n\r\n", answers: []int{200}, saw: []string{"POST /a ab"}},
			{name: "trailers that were not announced", send: post + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX-Forwarded-For: 6.6.6.6\r\nHost: other.local\r\nContent-Length: 7\r\nTransfer-Encoding: gzip\r\n\r\n", answers: []int{200}, saw: []string{"POST /a ab"}},
			{name: "a length announced as a trailer", send: post + "Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n2\r\nab\r\n0\r\nContent-Length: 7\r\n\r\n" + next, answers: []int{400}},
			{name: "trailers that are not fields", send: post + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nno field\r\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "a trailer that a bare LF ends", send: post + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX: y\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "trailers that a bare LF ends", send: post + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\n" + next, answers: []int{400}, cut: true},
			{name: "a folded trailer", send: post + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX: y\r\n z\r\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "a control character in an extension", send: post + "Transfer-Encoding: chunked\r\n\r\n2;a=\x01\r\nab\r\n0\r\n\r\n" + next, answers: []int{400}, cut: true},
			{name: "trailers beyond the limit", send: post + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n" + strings.Repeat("X: "+strings.Repeat("y", 1<<10)+"\r\n", 128) + "\r\n" + next, answers: []int{400}, cut: true},
		})
	})
}

// The gateway also closes the connection after a doubtful request that it answers with a redirect.
func TestSmuggling_RedirectEndsADoubtfulConnection(t *testing.T) {
	dir := t.TempDir()
	certify(t, dir)
	r := start(t, func(c *gateway.Config) {
		c.TLSListen, c.TLSCert, c.TLSKey, c.RedirectPort = "127.0.0.1:0", filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), 443
	})
	instance := startRecorder(t)
	r.put(t, echo(instance.address))
	conn, in := r.dial(t)
	_, err := io.WriteString(conn, post+"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+next)
	require.NoError(t, err)
	res, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	_, err = io.ReadAll(res.Body)
	require.NoError(t, err)
	res.Body.Close()
	require.Equal(t, http.StatusPermanentRedirect, res.StatusCode)
	ended(t, in)
	require.Empty(t, instance.saw())
}
