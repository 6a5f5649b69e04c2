package http1

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/strict"
)

const ok = "HTTP/1.1 200 OK\r\n"

const get = "GET /a HTTP/1.1\r\nHost: echo.local\r\n"

func TestRequest_PlainOnesAreReadInPlace(t *testing.T) {
	t.Parallel()
	var r Request
	text := "POST /v1/chat?a=b%20c&d=?e HTTP/1.1\r\nhost: Echo.local:80\r\nX: \t a b \r\nContent-Length: 2\r\nConnection: Close\r\n\r\nab"
	n, verdict := ParseRequest([]byte(text), &r)
	require.Equal(t, Whole, verdict)
	require.Equal(t, "ab", text[n:])
	require.Equal(t, "POST /v1/chat /v1/chat?a=b%20c&d=?e Echo.local:80", strings.Join([]string{string(r.Method), string(r.Path), string(r.Target), string(r.Host)}, " "))
	require.Len(t, r.Fields, 4)
	require.Equal(t, "X=a b", string(r.Fields[1].Name)+"="+string(r.Fields[1].Value))
	require.Equal(t, int64(2), r.ContentLength)
	require.True(t, r.HasLength && r.Close)
	for end := range len(text) - 2 {
		_, verdict := ParseRequest([]byte(text[:end]), &r)
		require.Equal(t, More, verdict, text[:end])
	}
}

func TestParse_LeavesWhatIsNotPlain(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"HTTP/1.0":                      "GET /a HTTP/1.0\r\nHost: a\r\n\r\n",
		"HTTP/2":                        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"another method":                "BREW /a HTTP/1.1\r\nHost: a\r\n\r\n",
		"a tunnel":                      "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
		"a whole URL":                   "GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n",
		"an asterisk":                   "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
		"two slashes":                   "GET //a HTTP/1.1\r\nHost: a\r\n\r\n",
		"an encoding of nothing":        "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n",
		"half an encoding":              "GET /%2 HTTP/1.1\r\nHost: a\r\n\r\n",
		"a semicolon":                   "GET /a?b;c HTTP/1.1\r\nHost: a\r\n\r\n",
		"a fragment":                    "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
		"beyond ASCII":                  "GET /ü HTTP/1.1\r\nHost: a\r\n\r\n",
		"two spaces":                    "GET  /a HTTP/1.1\r\nHost: a\r\n\r\n",
		"no target":                     "GET HTTP/1.1\r\nHost: a\r\n\r\n",
		"an empty line before":          "\r\n" + get + "\r\n",
		"a bare LF":                     "GET /a HTTP/1.1\nHost: a\r\n\r\n",
		"a bare LF in the end":          get + "\n",
		"a bare CR":                     get + "X: a\rb\r\n\r\n",
		"NUL":                           get + "X: a\x00b\r\n\r\n",
		"a fold":                        get + "X: a\r\n b\r\n\r\n",
		"a space in a name":             get + "X Y: a\r\n\r\n",
		"a space after a name":          get + "X : a\r\n\r\n",
		"no name":                       get + ": a\r\n\r\n",
		"no colon":                      get + "X\r\n\r\n",
		"no host":                       "GET /a HTTP/1.1\r\n\r\n",
		"an empty host":                 "GET /a HTTP/1.1\r\nHost:\r\n\r\n",
		"two hosts":                     get + "Host: echo.local\r\n\r\n",
		"two lengths":                   get + "Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
		"a list of lengths":             get + "Content-Length: 1, 1\r\n\r\na",
		"a length with a sign":          get + "Content-Length: +1\r\n\r\na",
		"a negative length":             get + "Content-Length: -1\r\n\r\na",
		"an empty length":               get + "Content-Length:\r\n\r\na",
		"a length beyond 64 bits":       get + "Content-Length: 18446744073709551617\r\n\r\na",
		"chunks":                        get + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"an upgrade":                    get + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"Connection that names a field": get + "Connection: keep-alive, X\r\n\r\n",
		"two Connection fields":         get + "Connection: close\r\nConnection: keep-alive\r\n\r\n",
		"an expectation":                get + "Expect: 100-continue\r\n\r\n",
		"TE":                            get + "TE: trailers\r\n\r\n",
		"a trailer":                     get + "Trailer: X\r\n\r\n",
		"Keep-Alive":                    get + "Keep-Alive: timeout=5\r\n\r\n",
		"Proxy-Connection":              get + "Proxy-Connection: close\r\n\r\n",
		"too many fields":               get + strings.Repeat("X: y\r\n", maxFields) + "\r\n",
	} {
		var r Request
		_, verdict := ParseRequest([]byte(text), &r)
		require.Equal(t, Other, verdict, name)
	}
}

func TestResponse_IsReadOrRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		status  int
		length  int64
		chunked bool
		close   bool
		err     error
	}{
		ok + "\r\n":            {status: 200, length: -1},
		"HTTP/1.1 200\r\n\r\n": {status: 200, length: -1},
		"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n":                          {status: 200, length: 2, close: true},
		"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n":                     {status: 200, length: -1},
		"HTTP/1.1 200 OK\nContent-Length: 2\n\n":                                {status: 200, length: 2},
		ok + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n":                   {status: 200, length: 2},
		ok + "Transfer-Encoding: Chunked\r\n\r\n":                               {status: 200, length: -1, chunked: true},
		ok + "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n":          {status: 200, length: -1, chunked: true, close: true},
		ok + "X Y: z\r\nConnection: close\r\n\r\n":                              {status: 200, length: -1, close: true},
		ok + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n":                   {err: ErrLength},
		ok + "Content-Length: 2, 2\r\n\r\n":                                     {err: ErrLength},
		ok + "Content-Length: -2\r\n\r\n":                                       {err: ErrLength},
		ok + "Transfer-Encoding: gzip, chunked\r\n\r\n":                         {err: ErrCoding},
		ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n": {err: ErrCoding},
		ok + "Content-Length : 2\r\n\r\n":                                       {err: ErrField},
		ok + " X: y\r\n\r\n":                                                    {err: ErrField},
		ok + "X: a\x00b\r\n\r\n":                                                {err: ErrField},
		ok + "no field\r\n\r\n":                                                 {err: ErrField},
		ok + "Trailer: X, Content-Length\r\n\r\n":                               {err: ErrField},
		"HTTP/1.1 099 OK\r\n\r\n":                                               {err: ErrStatusLine},
		"HTTP/1.1 2000\r\n\r\n":                                                 {err: ErrStatusLine},
		"HTTP/1.1  200 OK\r\n\r\n":                                              {err: ErrStatusLine},
		"HTTP/2.0 200 OK\r\n\r\n":                                               {err: ErrStatusLine},
		"SSH-2.0":                                                               {err: ErrStatusLine},
		"HTTP/1.1 " + strings.Repeat("x", 300<<10):                              {err: ErrStatusLine},
		ok + strings.Repeat("X: y\r\n", 50<<10):                                 {err: ErrTooLarge},
	} {
		var r Response
		n, err := parse([]byte(text), &r)
		require.ErrorIs(t, err, want.err, "%.80q", text)
		if want.err == nil {
			require.Len(t, text, n, "%q", text)
			require.Equal(t, want.status, r.Status, "%q", text)
			require.Equal(t, want.length, r.ContentLength, "%q", text)
			require.Equal(t, want.chunked, r.Chunked, "%q", text)
			require.Equal(t, want.close, r.Close, "%q", text)
		}
	}
	var r Response
	for text := ok + "Content-Length: 2\r\n\r\n"; len(text) > 0; {
		text = text[:len(text)-1]
		n, err := parse([]byte(text), &r)
		require.NoError(t, err)
		require.Zero(t, n)
	}
}

// parse reads a header that has arrived completely.
func parse(text []byte, r *Response) (int, error) {
	r.Reset()
	return r.Parse(text)
}

// Parse reads each line of a header that arrives byte by byte once. The test overwrites the lines that were read.
func TestResponse_IsParsedOnce(t *testing.T) {
	t.Parallel()
	header := ok + "Content-Length: 2\r\nX Y: z\r\n" + strings.Repeat("A: b\r\n", MaxResponseFields-3) + "Connection: close\r\n\r\n"
	var r Response
	r.Reset()
	b := make([]byte, 0, len(header))
	for i := range len(header) {
		b = append(b, header[i])
		n, err := r.Parse(b)
		require.NoError(t, err)
		require.Equal(t, i == len(header)-1, n > 0)
		require.Equal(t, len(b), r.searched, "the next call searches only new bytes")
		for at := range r.next {
			b[at] = 0
		}
	}
	require.Len(t, r.Fields, MaxResponseFields-1)
	require.Equal(t, []any{int64(2), true, 200}, []any{r.ContentLength, r.Close, r.Status})
}

func TestResponse_HasALimitOfFields(t *testing.T) {
	t.Parallel()
	var r Response
	for fields, want := range map[int]error{MaxResponseFields: nil, MaxResponseFields + 1: ErrTooLarge} {
		for _, line := range []string{"a: b\r\n", "a b: c\n"} {
			_, err := parse([]byte(ok+strings.Repeat(line, fields)+"\r\n"), &r)
			require.ErrorIs(t, err, want, "%d of %q", fields, line)
		}
		var c Chunks
		_, _, err := c.Decode([]byte("0\r\n" + strings.Repeat("a: b\r\n", fields) + "\r\n"))
		require.Equal(t, want == nil, err == nil)
	}
}

func TestConnectionNames(t *testing.T) {
	names := ConnectionNames([]Field{{[]byte("CONNECTION"), []byte(" Close,, X-Secret\t,x-SECRET")}, {[]byte("X"), []byte("y")}, {[]byte("connection"), []byte("z")}})
	require.Equal(t, Names{"close": {}, "x-secret": {}, "z": {}}, names)
	for name, has := range map[string]bool{"X-Secret": true, "Z": true, "x": false, "y": false, "": false, strings.Repeat("z", 300): false} {
		require.Equal(t, has, names.Has([]byte(name)), name)
	}
	require.Zero(t, testing.AllocsPerRun(10, func() { names.Has([]byte("X-Secret")) }))
}

// The time for a field does not depend on the number of fields or on the names that Connection lists.
func BenchmarkResponse(b *testing.B) {
	for _, fields := range []int{8, 64, MaxResponseFields - 1} {
		header := []byte(ok + "Connection: x-nothing" + strings.Repeat(",x-other", fields) + "\r\n" + strings.Repeat("Accept: b\r\n", fields) + "\r\n")
		for way, part := range map[string]int{"whole": len(header), "byte by byte": 1} {
			b.Run(fmt.Sprintf("%s/fields=%d", way, fields), func(b *testing.B) {
				var r Response
				passed := 0
				for b.Loop() {
					r.Reset()
					for end := 0; end < len(header); {
						end = min(end+part, len(header))
						if _, err := r.Parse(header[:end]); err != nil {
							b.Fatal(err)
						}
					}
					names := ConnectionNames(r.Fields)
					for i := range r.Fields {
						if !names.Has(r.Fields[i].Name) {
							passed++
						}
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*fields), "ns/field")
			})
		}
	}
}

func TestChunks_AreReadInPartsOfAnySize(t *testing.T) {
	t.Parallel()
	const text = "5\r\nhello\r\nA ;x=\"y\"\r\n, chunked \r\n005 \r\nworld\r\n0\r\nX: y\r\nZ: 1\r\n\r\n"
	for size := 1; size <= len(text); size++ {
		var c Chunks
		var got []byte
		rest := []byte(text + "next")
		for !c.Done() {
			piece := rest[:min(size, len(rest))]
			n, used, err := c.Decode(piece)
			require.NoError(t, err)
			got = append(got, piece[:n]...)
			rest = rest[used:]
		}
		require.Equal(t, "hello, chunked world", string(got))
		require.Equal(t, "next", string(rest))
		require.Equal(t, []Field{{[]byte("X"), []byte("y")}, {[]byte("Z"), []byte("1")}}, c.Trailers())
	}
	for _, text := range []string{
		"\r\n", "x\r\n", "5\nhello\r\n", "5\r\nhello\n", "5\r\nhelloX", "5\r\nhello\rX", "-1\r\n", "5 5\r\n", "5;\x00\r\n",
		"fffffffffffffffff\r\n", "5" + strings.Repeat(" ", 5<<10), "5;" + strings.Repeat("x", 5<<10),
		"0\r\nno field\r\n", "0\r\n" + strings.Repeat("X: y\r\n", 20<<10), strings.Repeat("1;"+strings.Repeat("x", 1000)+"\r\na\r\n", 100),
	} {
		var c Chunks
		_, _, err := c.Decode([]byte(text))
		require.ErrorIs(t, err, ErrChunk, "%.40q", text)
	}
}

// net/http reads each request that ParseRequest accepts, with the same result. So a request means the same on the
// short way and on the long way.
func FuzzRequest(f *testing.F) {
	for _, text := range []string{
		get + "\r\n", "POST /a?b=c HTTP/1.1\r\nHost: a:80\r\nContent-Length: 2\r\nConnection: close\r\n\r\nab",
		"GET /a/../%2F%41(b)'*!$&+,=:@~ HTTP/1.1\r\nHOST: [::1]:80\r\nX_Y: z\r\n\r\n", get + "Content-Length: 0\r\n\r\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var r Request
		n, verdict := ParseRequest(text, &r)
		if verdict != Whole {
			return
		}
		for _, less := range []int{n - 1, n / 2, n - n/8} {
			_, early := ParseRequest(text[:min(less, n-1)], new(Request))
			require.Equal(t, More, early, "of %d bytes", less)
		}
		// On the long way, package strict checks the bytes before net/http reads them.
		var sound strict.Requests
		for checked := 0; checked < n; {
			m, err := sound.Check(text[checked:])
			require.NoError(t, err)
			checked += m
		}
		q, err := http.ReadRequest(bufio.NewReaderSize(bytes.NewReader(text), 1<<20))
		require.NoError(t, err)
		require.Equal(t, q.Method, string(r.Method))
		require.Equal(t, q.RequestURI, string(r.Target))
		require.Equal(t, q.URL.RequestURI(), string(r.Target))
		require.Equal(t, q.Host, string(r.Host))
		require.Equal(t, q.ContentLength, r.ContentLength)
		require.Equal(t, q.Close, r.Close)
		require.Empty(t, q.TransferEncoding)
		read := headerOf(r.Fields)
		delete(read, "Host")
		require.Equal(t, q.Header, read)
		body, err := io.ReadAll(q.Body)
		if rest := text[n:]; int64(len(rest)) < r.ContentLength {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		} else {
			require.NoError(t, err)
			require.Equal(t, string(rest[:r.ContentLength]), string(body))
		}
	})
}

// headerOf returns the fields as net/http represents them.
func headerOf(fields []Field) http.Header {
	h := http.Header{}
	for i := range fields {
		h.Add(string(fields[i].Name), string(fields[i].Value))
	}
	return h
}

// content returns the body and the trailers that the proxy passes on. rest is what follows the answer's header.
// whole reports whether the body is complete.
func content(r *Response, rest []byte) (body []byte, trailers []Field, whole bool) {
	switch {
	case !r.HasContent(http.MethodGet):
		return nil, nil, true
	case r.Chunked:
		var c Chunks
		body = bytes.Clone(rest)
		n, _, err := c.Decode(body)
		return body[:n], c.Trailers(), err == nil && c.Done()
	case r.ContentLength < 0:
		return rest, nil, true
	default:
		return rest[:min(r.ContentLength, int64(len(rest)))], nil, r.ContentLength <= int64(len(rest))
	}
}

func FuzzResponse(f *testing.F) {
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.0 204\r\n\r\n", "HTTP/1.1 200 OK\nX: y\n\n", "HTTP/1.1 100 Continue\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n2\r\nok\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n2;a\r\nok\r\n0\r\nX: y\r\nx: z\r\n\r\n", "HTTP/1.1 200 OK\r\nX : y\r\n\r\nuntil the end",
		"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nok", "HTTP/1.0 200 OK\r\nConnection: keep-alive, x\r\n\r\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var r Response
		n, err := parse(text, &r)
		if err != nil || n == 0 {
			return
		}
		res, err := http.ReadResponse(bufio.NewReaderSize(bytes.NewReader(text), 1<<20), nil)
		require.NoError(t, err)
		require.Equal(t, res.StatusCode, r.Status)
		if r.HasContent("GET") {
			require.Equal(t, len(res.TransferEncoding) > 0, r.Chunked)
			require.Equal(t, res.ContentLength, r.ContentLength)
		}
		if res.Close {
			require.True(t, r.Close || r.HasContent("GET") && r.ContentLength < 0 && !r.Chunked)
		}
		read := headerOf(r.Fields)
		for name, values := range read {
			switch name {
			case "Transfer-Encoding", "Trailer", "Content-Length": // net/http keeps these fields outside of the header, or keeps only one value
			default:
				require.Equal(t, res.Header[name], values, name)
			}
		}
		body, trailers, whole := content(&r, text[n:])
		want, err := io.ReadAll(res.Body)
		switch {
		case !whole:
			require.True(t, err != nil || r.Chunked) // net/http may know the end of trailers earlier
		case err != nil:
			require.Regexp(t, spaceBeforeExtension, string(text), err)
		default:
			require.Equal(t, string(want), string(body))
			for name, values := range headerOf(trailers) {
				require.Equal(t, res.Trailer[name], values, name)
			}
		}
	})
}

// spaceBeforeExtension must be ignored (RFC 9112, section 7.1.1), but Go's reader refuses it.
var spaceBeforeExtension = regexp.MustCompile(`(?i)[0-9a-f][ \t]+;`)

func FuzzChunks(f *testing.F) {
	for _, text := range []string{"2\r\nok\r\n0\r\n\r\n", "5;x\r\nhello\r\n0\r\nX: y\r\n\r\nrest", "A \r\n0123456789\r\n00\r\n\r\n"} {
		f.Add([]byte(text), 3)
	}
	f.Fuzz(func(t *testing.T, text []byte, size int) {
		var c Chunks
		var got []byte
		size = max(1, size%64)
		var failed error
		for rest := bytes.Clone(text); len(rest) > 0 && !c.Done() && failed == nil; {
			piece := rest[:min(size, len(rest))]
			n, used, err := c.Decode(piece)
			got, rest, failed = append(got, piece[:n]...), rest[used:], err
		}
		if !c.Done() {
			return
		}
		want, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(text)))
		if err != nil && spaceBeforeExtension.Match(text) {
			return
		}
		require.True(t, err == nil || errors.Is(err, io.EOF), err)
		require.Equal(t, string(want), string(got))
	})
}
