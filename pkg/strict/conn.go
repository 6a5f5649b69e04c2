package strict

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
)

// Reader checks the bytes that it reads from another reader. It replaces an unsound request with bytes that
// net/http refuses. It returns an error only after these bytes, because net/http would take an error for a
// disconnect.
type Reader struct {
	Requests

	// held has the bytes that were read after the end of a message, or after the sound part of a message.
	held []byte
	// refusal has the unread bytes of the replacement. It is nil until a request is unsound.
	refusal []byte
}

// net/http refuses refusedField at each place in a head or in trailers, and refusedChunk in a chunk's line.
const (
	refusedField = "\x00\r\n\r\n"
	refusedChunk = "\x00\n"
)

// Stop ends all checks, because the following bytes are not HTTP/1.
func (r *Reader) Stop() {
	r.Requests.Stop()
	r.refusal = nil
}

// Read reads into p from in, as far as the requests are sound.
func (r *Reader) Read(in io.Reader, p []byte) (n int, err error) {
	switch {
	case len(p) == 0:
		return 0, nil
	case r.refusal != nil:
		return r.refuseInput(p)
	case len(r.held) == 0 && r.state == ignored:
		r.held = nil
		return in.Read(p)
	}
	var got, sound int
	var unsound error
	if len(r.held) > 0 {
		got = min(len(p), len(r.held))
		sound, unsound = r.Check(r.held[:got])
		copy(p, r.held[:sound])
		r.held = r.held[sound:]
	} else {
		got, err = in.Read(p)
		sound, unsound = r.Check(p[:got])
		r.held = append([]byte(nil), p[sound:got]...)
	}
	if unsound != nil {
		r.refusal = []byte(refusedField)
		if r.state == size || r.state == dataEnd {
			r.refusal = []byte(refusedChunk)
		}
		if sound == 0 {
			return r.refuseInput(p)
		}
	}
	if sound < got {
		err = nil // the next read from in returns it again
	}
	return sound, err
}

func (r *Reader) refuseInput(p []byte) (n int, err error) {
	if len(r.refusal) == 0 {
		return 0, ErrUnsound
	}
	n = copy(p, r.refusal)
	r.refusal = r.refusal[n:]
	return n, nil
}

// Conn is a connection whose requests are checked. Only one goroutine at a time may call Read.
type Conn struct {
	net.Conn

	reader Reader
}

// NewConn returns a Conn that checks the requests on conn. maxHead is the server's MaxHeaderBytes.
func NewConn(conn net.Conn, maxHead int) *Conn {
	return &Conn{Conn: conn, reader: NewReader(maxHead)}
}

// readAhead is more than the number of bytes that net/http reads beyond MaxHeaderBytes.
const readAhead = 16 << 10

// NewReader returns a Reader for a connection that is not a Conn. maxHead is the server's MaxHeaderBytes.
func NewReader(maxHead int) Reader {
	return Reader{Requests: Requests{MaxHead: maxHead + readAhead}}
}

func (c *Conn) Read(p []byte) (int, error) { return c.reader.Read(c.Conn, p) }

// NetConn returns the connection below.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// Hijacked is called when the connection has switched to another protocol.
func (c *Conn) Hijacked() { c.reader.Stop() }

// CloseWrite closes the write direction, if the connection below supports it.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// encrypted is a Conn with TLS. net/http calls ConnectionState to get the TLS state.
type encrypted struct {
	*Conn

	tls *tls.Conn
}

// ConnectionState returns the TLS state, which net/http puts into requests.
func (c *encrypted) ConnectionState() tls.ConnectionState { return c.tls.ConnectionState() }

// State is for http.Server.ConnState. It ends the checks of connections that have switched protocols.
func State(conn net.Conn, state http.ConnState) {
	if c, ok := conn.(interface{ Hijacked() }); ok && state == http.StateHijacked {
		c.Hijacked()
	}
}

// Listen returns a listener that checks the requests of l's connections, which are not encrypted.
func Listen(l net.Listener, maxHead int) net.Listener { return &listener{l, maxHead} }

type listener struct {
	net.Listener

	maxHead int
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return NewConn(conn, l.maxHead), nil
}
