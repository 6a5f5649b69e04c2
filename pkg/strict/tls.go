package strict

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// TLSConfig configures a listener for TLS.
type TLSConfig struct {
	TLS *tls.Config
	// MaxHead is http.Server.MaxHeaderBytes.
	MaxHead int
	// Handshake limits a client's handshake, including its wait for a turn; see conns.Entry.BeginHandshake.
	Handshake time.Duration
	// Failed is called for failed handshakes. It is not called for handshakes that got no turn.
	Failed func(client net.Addr, err error)
}

// ListenTLS returns a listener for an http.Server. It accepts connections of l, makes their TLS handshakes, and checks
// their HTTP/1 requests. It makes the handshakes itself, because the protocol is known only after the handshake.
// net/http serves HTTP/2 only on a bare *tls.Conn, but HTTP/1 needs a Conn around it for the checks.
func ListenTLS(l net.Listener, cfg TLSConfig) net.Listener {
	cfg.TLS = cfg.TLS.Clone()
	if get := cfg.TLS.GetCertificate; get != nil {
		cfg.TLS.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { return getPaused(hello, get) }
	}
	ctx, cut := context.WithCancel(context.Background())
	return &tlsListener{Listener: l, cfg: cfg, ready: make(chan accepted), ended: make(chan struct{}), ctx: ctx, cut: cut}
}

// late is how long handshakes of accepted connections may continue after the listener was closed.
const late = time.Second

type accepted struct {
	conn net.Conn
	err  error
}

type tlsListener struct {
	net.Listener

	cfg        TLSConfig
	begin      sync.Once
	ready      chan accepted
	ended      chan struct{}
	handshakes sync.WaitGroup
	// ctx ends the duration late after Close.
	ctx   context.Context //nolint:containedctx // Accept and Close have no context parameter
	cut   context.CancelFunc
	close sync.Once
}

// Accept implements net.Listener. No connection is accepted before its first call.
func (l *tlsListener) Accept() (net.Conn, error) {
	l.begin.Do(func() { go l.run() })
	select {
	case a := <-l.ready:
		return a.conn, a.err
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *tlsListener) Close() error {
	err := net.ErrClosed
	l.close.Do(func() {
		err = l.Listener.Close()
		time.AfterFunc(late, l.cut)
	})
	return err
}

func (l *tlsListener) run() {
	defer close(l.ended)
	defer l.handshakes.Wait()
	for {
		conn, err := l.Listener.Accept()
		switch {
		case err == nil:
			l.handshakes.Go(func() {
				if conn := l.doHandshake(conn); conn != nil && !l.giveAccepted(accepted{conn: conn}) {
					_ = conn.Close() // the listener is closed
				}
			})
		case errors.Is(err, net.ErrClosed), !l.giveAccepted(accepted{err: err}):
			return
		}
	}
}

// giveAccepted waits until Accept receives a. It returns false if the listener is closed.
func (l *tlsListener) giveAccepted(a accepted) bool {
	select {
	case l.ready <- a:
		return true
	case <-l.ctx.Done():
		return false
	}
}

// doHandshake makes the handshake, and returns the connection, or nil if the handshake failed.
func (l *tlsListener) doHandshake(raw net.Conn) net.Conn {
	ctx, cancel := context.WithTimeout(l.ctx, l.cfg.Handshake)
	defer cancel()
	var conn *tls.Conn
	refused, err := InTurn(ctx, raw, func(turns net.Conn) error {
		conn = tls.Server(turns, l.cfg.TLS)
		return conn.HandshakeContext(ctx)
	})
	if err != nil {
		if !refused {
			l.cfg.Failed(raw.RemoteAddr(), err)
		}
		var header tls.RecordHeaderError
		if errors.As(err, &header) && header.Conn != nil && slices.ContainsFunc(methods, func(m string) bool {
			return strings.HasPrefix(string(header.RecordHeader[:]), m)
		}) {
			_ = raw.SetWriteDeadline(time.Now().Add(l.cfg.Handshake)) // if this fails, so does the write
			_, _ = io.WriteString(raw, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")
		}
		_ = raw.Close() // the handshake has failed
		return nil
	}
	switch conn.ConnectionState().NegotiatedProtocol {
	case "", "http/1.1":
		return &encrypted{NewConn(conn, l.cfg.MaxHead), conn}
	default:
		return conn // net/http closes connections of unknown protocols
	}
}

// methods are the first bytes of requests that come without TLS.
var methods = []string{"GET /", "HEAD ", "POST ", "PUT /", "OPTIO"}
