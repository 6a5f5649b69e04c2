package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/quic-go/quicvarint"

	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/conns"
)

// http3Server serves HTTP/3. All packets of a connection must reach the same process, but the kernel does not
// ensure that if two processes share a UDP port. So a process that takes over gets the port after the previous
// process has released it. Until then clients use TCP.
//
// http3Server accepts connections and streams itself, because http3.Server sets no deadline for the header of a
// request.
type http3Server struct {
	address string
	server  *http3.Server // handles the requests of a connection
	tls     *tls.Config
	quic    *quic.Config
	log     *slog.Logger
	conns   *conns.Table
	// header is how long a client has to send a request's header, and to send its first request.
	header time.Duration
	// altSvc is the value of Alt-Svc. Nil: the port is not served now.
	altSvc atomic.Pointer[string]
}

const (
	// portRetry is the time between attempts to bind a port that the previous process still has.
	portRetry = time.Second
	// maxQUICStreams is how many requests a connection may have at a time.
	maxQUICStreams = 100
	// frameGoAway is the type of a GOAWAY frame (RFC 9114, section 7.2.6).
	frameGoAway = 0x07
)

func newHTTP3(handler http.Handler, address string, config *tls.Config, cfg Config, table *conns.Table) *http3Server {
	config = http3.ConfigureTLSConfig(config)
	s := &http3Server{
		address: address, log: cfg.Log, conns: table, header: cfg.HeaderTimeout, tls: config,
		server: &http3.Server{
			Handler: withHeader(handler), MaxHeaderBytes: cfg.MaxHeaderBytes, IdleTimeout: idleClient,
			Logger: slog.New(slog.DiscardHandler),
		},
		quic: &quic.Config{
			HandshakeIdleTimeout: cfg.HeaderTimeout,
			MaxIncomingStreams:   maxQUICStreams,
			KeepAlivePeriod:      15 * time.Second, // for requests that wait; attendConnection ends connections without requests
		},
	}
	get := config.GetCertificate
	config.GetConfigForClient = s.beginHandshake
	config.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { return signInTurn(hello, get) }
	return s
}

var errHeldBack = errors.New("the address sent too many requests whose headers were not complete")

// client is the state that the server keeps for a connection.
type client struct {
	entry *conns.Entry
	turn  turn

	mu sync.Mutex
	// complete counts the requests whose header was complete. ended counts the streams that have ended. faults
	// counts the streams that were charged as ended without a complete header.
	complete, ended, faults int64
}

func (c *client) noteCompleted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.complete++
}

// streamEnded charges streams that ended without a complete header, and reports whether there were too many.
func (c *client) streamEnded() (tooMany bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended++
	// While a complete request is still open, it counts in complete and not in ended, so that one fault is charged
	// later.
	for ; c.faults < c.ended-c.complete; c.faults++ {
		tooMany = c.entry.Fault() || tooMany
	}
	return tooMany
}

type clientKey struct{}

func clientOf(ctx context.Context) *client {
	c, ok := ctx.Value(clientKey{}).(*client)
	if !ok { // cannot happen, because admitConnection adds it for all connections
		return &client{}
	}
	return c
}

// admitConnection is called for each connection before the handshake. It refuses connections from addresses that are
// held back.
func (s *http3Server) admitConnection(ctx context.Context, from *quic.ClientInfo) (context.Context, error) {
	if s.conns.Refuses(from.RemoteAddr) {
		return nil, errHeldBack
	}
	return context.WithValue(ctx, clientKey{}, &client{}), nil
}

// withHeader is called when the header of a request is complete. It clears the header's deadline.
func withHeader(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer clientOf(r.Context()).noteCompleted()
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // this cannot fail for a stream
		next.ServeHTTP(w, r)
	})
}

// advertiseHTTP3 sets Alt-Svc while the port is served.
func (s *http3Server) advertiseHTTP3(h http.Header) {
	if value := s.altSvc.Load(); value != nil {
		h["Alt-Svc"] = append(h["Alt-Svc"], *value)
	}
}

// attendConnection counts a connection until it ends. It ends the connection if it had no request for too long. An
// incomplete header does not count as a request, and neither do frames that keep the connection alive.
func (s *http3Server) attendConnection(conn *quic.Conn) *conns.Entry {
	end := func(code http3.ErrCode) { _ = conn.CloseWithError(quic.ApplicationErrorCode(code), "") }
	entry, ok := s.conns.Add(conn.RemoteAddr(), func() { end(http3.ErrCodeExcessiveLoad) })
	if !ok {
		end(http3.ErrCodeExcessiveLoad)
		return nil
	}
	begun := time.Now()
	go func() {
		defer entry.Done()
		for wait := s.header; backoff.Sleep(conn.Context(), wait) == nil; {
			since, idle := entry.Idle()
			limit := idleClient
			if !since.After(begun) { // the connection has had no request yet
				limit = s.header
			}
			if wait = limit - time.Since(since); !idle {
				wait = limit
			} else if wait <= 0 {
				end(http3.ErrCodeNoError)
				return
			}
		}
	}()
	return entry
}

// startServing serves until the returned function is called. That function returns when all requests have
// ended, or when its context does. cut ends the requests.
func (s *http3Server) startServing(ctx, cut context.Context) func(context.Context) {
	s.server.ConnContext = func(ctx context.Context, conn *quic.Conn) context.Context {
		ctx, end := context.WithCancel(ctx)
		stop := context.AfterFunc(cut, end)
		context.AfterFunc(ctx, func() { stop() }) // otherwise cut would keep the memory of ended connections
		c := clientOf(ctx)
		c.entry = s.attendConnection(conn)
		return conns.WithEntry(ctx, c.entry)
	}
	drains := context.WithoutCancel(ctx) // because connections may go on after ctx has ended
	leaving, leave := context.WithCancel(drains)
	closing, closeAll := context.WithCancel(drains)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for leaving.Err() == nil {
			if err := s.acceptAll(leaving, closing); err != nil {
				if !errors.Is(err, syscall.EADDRINUSE) {
					s.log.Error("HTTP/3 is not served for now", "address", s.address, "error", err)
				}
				_ = backoff.Sleep(leaving, portRetry) // the loop checks whether leaving has ended
			}
		}
	}()
	return func(ctx context.Context) {
		leave()
		defer closeAll()
		stop := context.AfterFunc(ctx, closeAll)
		defer stop()
		<-ended
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			s.log.Debug("HTTP/3 connections were cut", "error", ctx.Err())
		}
	}
}

// acceptAll accepts connections until leaving ends. It returns nil after all of them have ended, and an error if the
// port cannot be used.
func (s *http3Server) acceptAll(leaving, closing context.Context) error {
	packets, err := (&net.ListenConfig{}).ListenPacket(leaving, "udp", s.address)
	if err != nil {
		return err
	}
	var open sync.WaitGroup
	defer open.Wait()
	defer func() { _ = packets.Close() }() // ends the remaining connections
	transport := &quic.Transport{
		Conn: packets, ConnContext: s.admitConnection,
		// While handshakes wait, clients must prove their address, so that forged addresses take no places.
		VerifySourceAddress: func(net.Addr) bool { return s.conns.HandshakesWait() },
	}
	defer func() { _ = transport.Close() }()
	listener, err := transport.ListenEarly(s.tls, s.quic)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(packets.LocalAddr().String())
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	value := fmt.Sprintf(`%s=":%s"; ma=2592000`, http3.NextProtoH3, port)
	s.altSvc.Store(&value)
	defer s.altSvc.Store(nil)
	for {
		conn, err := listener.Accept(leaving)
		if err != nil {
			_ = listener.Close() // the listener is not used any more
			if leaving.Err() == nil {
				return err
			}
			s.altSvc.Store(nil)
			open.Wait() // open connections still need the port
			return nil
		}
		open.Go(func() { s.serveConnection(leaving, closing, conn) })
	}
}

// serveConnection serves a connection until the connection and its requests have ended. When leaving ends, the
// connection takes no further requests, and a GOAWAY frame tells the client so. When closing ends, it closes the
// connection.
func (s *http3Server) serveConnection(leaving, closing context.Context, conn *quic.Conn) {
	requests, control, err := newServerConn(s.server, conn)
	if err != nil { // the client allows no control stream, or is gone
		_ = conn.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeGeneralProtocolError), "")
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		for {
			stream, err := conn.AcceptUniStream(closing)
			if err != nil {
				return
			}
			all.Go(func() { requests.HandleUnidirectionalStream(stream) })
		}
	})
	var next quic.StreamID // the first stream that will not be handled
	for {
		stream, err := conn.AcceptStream(leaving)
		if err != nil {
			break
		}
		next = stream.StreamID() + 4
		all.Go(func() { s.handleRequest(conn, requests, stream) }) //nolint:contextcheck // the connection has its own context
	}
	if leaving.Err() == nil { // the connection has ended by itself
		return
	}
	all.Go(func() { _, _ = control.Write(goAway(next)) }) // the write may wait for the client's flow control or for the connection's end
	for {
		stream, err := conn.AcceptStream(closing)
		if err != nil {
			_ = requests.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "")
			return
		}
		stream.ReleaseStreamCredit()
		stream.CancelRead(quic.StreamErrorCode(http3.ErrCodeRequestRejected))
		stream.CancelWrite(quic.StreamErrorCode(http3.ErrCodeRequestRejected))
	}
}

// handleRequest handles a request. A stream whose header is not complete in time is reset with
// H3_REQUEST_INCOMPLETE, like a stream whose header cannot be read. Each stream that ends without a complete
// header is a fault of the client. The connection ends after too many faults.
func (s *http3Server) handleRequest(conn *quic.Conn, requests *http3.RawServerConn, stream *quic.Stream) {
	_ = stream.SetReadDeadline(time.Now().Add(s.header)) // the error is always nil
	requests.HandleRequestStream(stream)
	if clientOf(conn.Context()).streamEnded() {
		_ = conn.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeExcessiveLoad), errHeldBack.Error())
	}
}

// goAway returns a frame that says which requests of a connection are not handled: next and all after it.
func goAway(next quic.StreamID) []byte {
	frame := quicvarint.Append(nil, frameGoAway)
	frame = quicvarint.Append(frame, uint64(quicvarint.Len(uint64(next))))
	return quicvarint.Append(frame, uint64(next))
}
