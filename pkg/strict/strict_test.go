package strict_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/pkg/strict"
)

const (
	maxHead  = 1 << 10
	patience = 30 * time.Second
	get      = "GET /a HTTP/1.1\r\nHost: h\r\n"
	post     = "POST /a HTTP/1.1\r\nHost: h\r\n"
	chunked  = post + "Transfer-Encoding: chunked\r\n\r\n"
	next     = "GET /next HTTP/1.1\r\nHost: h\r\n\r\n"
)

// read returns what a Reader returns for a connection that sends text, in reads of at most size bytes.
func read(text string, size int) (string, error) {
	r := strict.NewReader(maxHead)
	in := strings.NewReader(text)
	p := make([]byte, size)
	var out []byte
	for {
		n, err := r.Read(in, p)
		out = append(out, p[:n]...)
		if err != nil {
			return string(out), err
		}
	}
}

func TestReader(t *testing.T) {
	t.Parallel()
	sound := map[string]string{
		"nothing": "", "a head": get + "\r\n", "two heads": get + "\r\n" + next, "HTTP/1.0": "GET / HTTP/1.0\r\n\r\n", "half a head": get,
		"a length": post + "Content-Length: 5\r\n\r\na\nb\n\n" + next, "a length of HTTP/1.0": "POST / HTTP/1.0\r\ncontent-length: 2\r\nTransfer-Encoding: chunked\r\n\r\n\n\n" + next,
		"no length":                 post + "Content-Length: 0\r\n\r\n" + next,
		"equal lengths":             post + "Content-Length: 2\r\nContent-Length:  2 \r\n\r\n\n\n" + next,
		"chunks":                    chunked + "2;a=b\r\n\n\n\r\n0A \r\n0123\n56789\r\n0\r\nX: y\r\n\r\n" + next,
		"chunks without trailers":   chunked + "0\r\n\r\n" + next,
		"a coding in capitals":      post + "TRANSFER-ENCODING: CHUNKED\r\n\r\n1\r\n\n\r\n0\r\n\r\n" + next,
		"HTTP/2":                    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\n\n\n\r\x01",
		"bytes beyond ASCII":        "GET /\xff HTTP/1.1\r\nX: \xff\r\n\r\n",
		"a head beyond the limit":   get + "X: " + strings.Repeat("y", maxHead+20<<10) + "\r\n y\n\n",
		"a coding that is refused":  post + "Transfer-Encoding: gzip\r\n\r\n\n\n",
		"two codings":               post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n\n\n",
		"a length that is refused":  post + "Content-Length: +1\r\n\r\n\n\n",
		"lengths that are refused":  post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n\n\n",
		"a version that is refused": "GET / HTTP/3.0\r\nX: y\n\n",
	}
	for name, text := range sound {
		for _, size := range []int{1, 2, 3, 7, 4096, 1 << 20} {
			got, err := read(text, size)
			require.ErrorIs(t, err, io.EOF, "%s, %d bytes at a time", name, size)
			require.Equal(t, text, got, "%s, %d bytes at a time", name, size)
		}
	}
	// The text before | is sound, and the text after it never reaches net/http.
	unsound := map[string]string{
		"a bare LF after a field":        get + "X: y|\nZ: z\r\n\r\n",
		"a bare LF after the line":       "GET / HTTP/1.1|\nHost: h\r\n\r\n",
		"a bare LF as the end":           get + "X: y\r\n|\n" + next,
		"a folded field":                 get + "X: y\r\n z\r|\n\r\n",
		"a field folded by a tab":        get + "X: y\r\n\tz\r|\n\r\n",
		"a fold after the line":          "GET / HTTP/1.1\r\n X: y\r|\n\r\n",
		"a bare CR":                      get + "X: y\rz\r|\n\r\n",
		"NUL":                            get + "X: y\x00z\r|\n\r\n",
		"a space before the colon":       get + "X : y\r|\n\r\n",
		"no colon":                       get + "X\r|\n\r\n",
		"two spaces":                     "GET  / HTTP/1.1\r|\n\r\n",
		"no version":                     "GET /\r|\n\r\n",
		"an empty line":                  "\r|\n" + next,
		"a bare LF first":                "\n|" + next,
		"an empty line later":            get + "\r\n\r|\n" + next,
		"a bare LF later":                get + "\r\n\n|" + next,
		"the second request":             get + "\r\n" + get + "X: y|\n\r\n",
		"a bare LF after a size":         chunked + "2|\nab\r\n0\r\n\r\n",
		"a negative size":                chunked + "-2\r|\nab\r\n0\r\n\r\n",
		"an empty size":                  chunked + "\r|\nab\r\n0\r\n\r\n",
		"a size of too many digits":      chunked + strings.Repeat("0", 15) + "2\r|\nab\r\n0\r\n\r\n",
		"a control character after size": chunked + "2;a=\x01\r|\nab\r\n0\r\n\r\n",
		"a chunk that is too long":       chunked + "2\r\nabc\r|\n0\r\n\r\n",
		"a bare LF after a chunk":        chunked + "2\r\nab|\n0\r\n\r\n",
		"a bare LF after a trailer":      chunked + "0\r\nX: y|\n\r\n",
		"a bare LF after trailers":       chunked + "0\r\n|\n" + next,
		"a folded trailer":               chunked + "0\r\nX: y\r\n z\r|\n\r\n",
	}
	for name, text := range unsound {
		want, _, _ := strings.Cut(text, "|")
		text = strings.Replace(text, "|", "", 1)
		for _, size := range []int{1, 2, 3, 7, 4096} {
			got, err := read(text, size)
			require.ErrorIs(t, err, strict.ErrUnsound, "%s, %d bytes at a time", name, size)
			got, refused := strings.CutSuffix(got, "\x00\r\n\r\n")
			if !refused {
				got, refused = strings.CutSuffix(got, "\x00\n")
			}
			require.True(t, refused, "%s: %q", name, got)
			require.Equal(t, want, got, "%s, %d bytes at a time", name, size)
		}
	}

	t.Run("no read goes beyond the end of a request", func(t *testing.T) {
		t.Parallel()
		r := strict.NewReader(maxHead)
		in := strings.NewReader(get + "\r\n" + post + "Content-Length: 2\r\n\r\nab" + chunked + "0\r\n\r\n" + next)
		p := make([]byte, 4096)
		n, err := r.Read(in, p)
		require.NoError(t, err)
		require.Equal(t, get+"\r\n", string(p[:n]))
		n, err = r.Read(in, p)
		require.NoError(t, err)
		require.Equal(t, post+"Content-Length: 2\r\n\r\nab", string(p[:n]))
	})

	t.Run("bytes of another protocol are passed on unchanged, also bytes that came before the switch", func(t *testing.T) {
		t.Parallel()
		r := strict.NewReader(maxHead)
		in := strings.NewReader(get + "Connection: Upgrade\r\nUpgrade: x\r\n\r\n\n\n\x00")
		p := make([]byte, 4096)
		_, err := r.Read(in, p)
		require.NoError(t, err)
		n, err := r.Read(in, p[:1]) // as net/http does while it answers
		require.NoError(t, err)
		require.Equal(t, "\n", string(p[:n]))
		r.Stop()
		n, err = r.Read(in, p)
		require.NoError(t, err)
		require.Equal(t, "\n\x00", string(p[:n]))
	})

	t.Run("errors of the connection come after the read bytes", func(t *testing.T) {
		t.Parallel()
		r := strict.NewReader(maxHead)
		broken := errors.New("broken")
		in := iotest.DataErrReader(io.MultiReader(strings.NewReader(get+"\r\n"+next), iotest.ErrReader(broken)))
		p := make([]byte, 4096)
		var out []byte
		for {
			n, err := r.Read(in, p)
			out = append(out, p[:n]...)
			if err != nil {
				require.ErrorIs(t, err, broken)
				break
			}
		}
		require.Equal(t, get+"\r\n"+next, string(out))
	})
}

// A Reader returns the same bytes for a connection, for all sizes of reads. These are all bytes of the connection, or
// a sound prefix and the bytes that net/http refuses.
func TestReader_ResultDoesNotDependOnTheSplit(t *testing.T) {
	t.Parallel()
	part := rapid.SampledFrom([]string{get, post, next, chunked, "\r\n", "\n", "\r", " ", "\t", "X: y", "Content-Length: 3\r\n", "abc", "1\r\na\r\n", "0\r\n\r\n", ";e", "\x00", ":", "Transfer-Encoding: chunked\r\n", "HTTP/1.0"})
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOf(part).Draw(t, "parts"), "")
		want, wantErr := read(text, 1<<16)
		got, err := read(text, rapid.IntRange(1, 40).Draw(t, "size"))
		require.Equal(t, want, got)
		require.Equal(t, wantErr, err)
		if errors.Is(err, io.EOF) {
			require.Equal(t, text, got)
		}
	})
}

// server answers each request with its protocol, its path, whether it came over TLS, and its body.
func server(t *testing.T, wrap func(net.Listener) net.Listener) net.Addr {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		_, _ = fmt.Fprintf(w, "%s %s %v %s", r.Proto, r.URL.Path, r.TLS != nil, body)
	}))
	address := s.Listener.Addr()
	s.Config.MaxHeaderBytes, s.Config.ConnState = maxHead, strict.State
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetHTTP2(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Listener = wrap(s.Listener)
	s.Start()
	t.Cleanup(s.Close)
	return address
}

func TestListeners(t *testing.T) {
	config := httptest.NewUnstartedServer(nil)
	config.StartTLS()
	defer config.Close()
	cert := config.TLS.Certificates
	roots := config.Client().Transport.(*http.Transport).TLSClientConfig
	secure := server(t, func(l net.Listener) net.Listener {
		return strict.ListenTLS(l, strict.TLSConfig{
			TLS:     &tls.Config{Certificates: cert, NextProtos: []string{"h2", "http/1.1", "other"}, MinVersion: tls.VersionTLS12},
			MaxHead: maxHead, Handshake: patience, Failed: func(net.Addr, error) {},
		})
	})
	plain := server(t, func(l net.Listener) net.Listener { return strict.Listen(l, maxHead) })
	dial := map[string]func() net.Conn{
		"plain": func() net.Conn {
			conn, err := net.Dial("tcp", plain.String())
			require.NoError(t, err)
			return conn
		},
		"TLS": func() net.Conn {
			conn, err := tls.Dial("tcp", secure.String(), &tls.Config{RootCAs: roots.RootCAs, ServerName: "example.com"})
			require.NoError(t, err)
			return conn
		},
	}
	for name, dial := range dial {
		t.Run(name, func(t *testing.T) {
			encrypted := fmt.Sprint(name == "TLS")
			for text, answers := range map[string][]string{
				get + "\r\n" + post + "Content-Length: 2\r\n\r\nab": {"HTTP/1.1 /a " + encrypted + " ", "HTTP/1.1 /a " + encrypted + " ab"},
				chunked + "2\r\nab\r\n0\r\n\r\n" + next:             {"HTTP/1.1 /a " + encrypted + " ab", "HTTP/1.1 /next " + encrypted + " "},
				get + "X: y\n\r\n" + next:                           {"400 Bad Request"},
				get + "X: y\r\n z\r\n\r\n" + next:                   {"400 Bad Request"},
				get + "\r\n" + get + "X:\n\n" + next:                {"HTTP/1.1 /a " + encrypted + " ", "400 Bad Request"},
				chunked + "2\nab\r\n0\r\n\r\n" + next:               {""},
				chunked + "0\r\nX: y\n\r\n" + next:                  {""},
			} {
				conn := dial()
				require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
				_, err := io.WriteString(conn, text)
				require.NoError(t, err)
				in := bufio.NewReader(conn)
				for _, want := range answers {
					res, err := http.ReadResponse(in, nil)
					require.NoError(t, err, "%q", text)
					body, err := io.ReadAll(res.Body)
					require.NoError(t, err)
					require.Equal(t, want, string(body), "%q", text)
					if !strings.HasPrefix(want, "HTTP") {
						require.Equal(t, http.StatusBadRequest, res.StatusCode)
						rest, _ := io.ReadAll(in) // a reset of the connection may end this read
						require.Empty(t, string(rest))
					}
				}
				require.NoError(t, conn.Close())
			}
		})
	}
	t.Run("HTTP/2", func(t *testing.T) {
		for url, encrypted := range map[string]bool{"http://" + plain.String(): false, "https://" + secure.String(): true} {
			transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots.RootCAs, ServerName: "example.com"}, Protocols: new(http.Protocols)}
			transport.Protocols.SetHTTP2(encrypted)
			transport.Protocols.SetUnencryptedHTTP2(!encrypted)
			res, err := (&http.Client{Transport: transport}).Post(url+"/a", "", bytes.NewReader([]byte("a\nb")))
			require.NoError(t, err)
			body, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			require.Equal(t, fmt.Sprintf("HTTP/2.0 /a %v a\nb", encrypted), string(body))
			transport.CloseIdleConnections()
		}
	})
	t.Run("a request without TLS gets an answer that names the cause", func(t *testing.T) {
		res, err := http.Get("http://" + secure.String())
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusBadRequest, res.StatusCode)
		require.Contains(t, string(body), "HTTPS")
	})
	t.Run("a connection with an unknown protocol is closed", func(t *testing.T) {
		conn, err := tls.Dial("tcp", secure.String(), &tls.Config{RootCAs: roots.RootCAs, ServerName: "example.com", NextProtos: []string{"other"}})
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		_, err = conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.NoError(t, conn.Close())
	})
}

// A closed listener still returns connections whose handshakes end soon. It does not wait for a silent client.
func TestListenTLS_Closes(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	secure := strict.ListenTLS(l, strict.TLSConfig{TLS: &tls.Config{MinVersion: tls.VersionTLS12}, MaxHead: maxHead, Handshake: patience, Failed: func(net.Addr, error) {}})
	silent, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer silent.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := secure.Accept()
		ended <- err
	}()
	require.NoError(t, secure.Close())
	require.ErrorIs(t, secure.Close(), net.ErrClosed)
	select {
	case err := <-ended:
		require.ErrorIs(t, err, net.ErrClosed)
	case <-time.After(patience):
		t.Fatal("Accept did not return")
	}
}
