package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/conns"
)

// http3Server serves HTTP/3. Packets of one connection have to reach one process, which
// the kernel cannot promise for a UDP port that two share: a process that takes over has
// the port once the one before has let go of it, and clients come by TCP until then.
type http3Server struct {
	address string
	server  *http3.Server
	log     *slog.Logger
	conns   *conns.Table
	// first is what a client has until its first request.
	first time.Duration
}

// portRetry is how soon a port is asked for again that the process before still has.
const portRetry = time.Second

// maxQUICStreams is how many requests a connection may have at a time. No header of a request has a
// deadline here, because the server of HTTP/3 has none: connections have.
const maxQUICStreams = 100

func newHTTP3(handler http.Handler, address string, config *tls.Config, cfg Config, table *conns.Table) *http3Server {
	return &http3Server{address: address, log: cfg.Log, conns: table, first: cfg.HeaderTimeout, server: &http3.Server{
		Handler: handler, TLSConfig: http3.ConfigureTLSConfig(config),
		MaxHeaderBytes: cfg.MaxHeaderBytes, IdleTimeout: idleClient,
		QUICConfig: &quic.Config{
			HandshakeIdleTimeout: cfg.HeaderTimeout,
			MaxIncomingStreams:   maxQUICStreams,
			KeepAlivePeriod:      15 * time.Second, // for requests that wait; attend ends connections without any
		},
		Logger: slog.New(slog.DiscardHandler),
	}}
}

func (s *http3Server) advertise(h http.Header) {
	_ = s.server.SetQUICHeaders(h) // its error is that it does not listen now
}

// attend counts a connection until it ends, and ends it when it had no request for too long. Streams on
// which half a header was sent are none, whatever else keeps the connection alive.
func (s *http3Server) attend(conn *quic.Conn) *conns.Entry {
	end := func(code http3.ErrCode) { _ = conn.CloseWithError(quic.ApplicationErrorCode(code), "") }
	entry, ok := s.conns.Add(conn.RemoteAddr(), func() { end(http3.ErrCodeExcessiveLoad) })
	if !ok {
		end(http3.ErrCodeExcessiveLoad)
		return nil
	}
	begun := time.Now()
	go func() {
		defer entry.Done()
		for wait := s.first; backoff.Sleep(conn.Context(), wait) == nil; {
			since, idle := entry.Idle()
			limit := idleClient
			if !since.After(begun) { // it had no request
				limit = s.first
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

// start serves until the returned function is called, which ends when requests have, or
// when its context does; requests end with cut.
func (s *http3Server) start(ctx, cut context.Context) func(context.Context) {
	s.server.ConnContext = func(ctx context.Context, conn *quic.Conn) context.Context {
		ctx, end := context.WithCancel(ctx)
		context.AfterFunc(cut, end)
		return conns.WithEntry(ctx, s.attend(conn))
	}
	ended := make(chan struct{})
	stopping, stop := context.WithCancel(context.WithoutCancel(ctx)) // it drains after ctx ended
	go func() {
		defer close(ended)
		for stopping.Err() == nil {
			conn, err := (&net.ListenConfig{}).ListenPacket(stopping, "udp", s.address)
			if err == nil {
				err = s.server.Serve(conn)
				if errors.Is(err, http.ErrServerClosed) {
					<-stopping.Done() // what is under way needs the port
				}
				_ = conn.Close()
			}
			if stopping.Err() != nil {
				return
			}
			if !errors.Is(err, syscall.EADDRINUSE) {
				s.log.Error("HTTP/3 is not served for now", "address", s.address, "error", err)
			}
			_ = backoff.Sleep(stopping, portRetry) // the loop sees that it ended
		}
	}()
	return func(ctx context.Context) {
		if err := s.server.Shutdown(ctx); err != nil && !errors.Is(err, context.Canceled) {
			s.log.Debug("HTTP/3 connections were cut", "error", err)
		}
		stop()
		<-ended
	}
}
