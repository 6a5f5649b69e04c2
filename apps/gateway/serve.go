package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/engine"
	"github.com/windlass-run/windlass/apps/gateway/internal/proxy"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/conns"
	"github.com/windlass-run/windlass/pkg/strict"
)

const (
	// idleClient is how long a connection without a request is kept. It is longer than the timeout of load
	// balancers (60 s), so that they close first.
	idleClient = 75 * time.Second
	// firstTable is how long the gateway waits for its first table before it takes requests.
	firstTable = 5 * time.Second
	// handshake is how long a distant client needs to finish a TCP handshake that it began before new connections
	// went to the successor. Closing a socket resets unfinished handshakes, so the sockets are closed only after no
	// connection came for this time. emptied is the longest wait for that, and for empty queues of the sockets.
	handshake = 250 * time.Millisecond
	emptied   = 2 * time.Second
	// lameDuck is how long connections without a request stay open after the listeners are closed. In this time,
	// answers ask clients to use another connection. If the connections were closed at once, a client that sends a
	// request at that moment could not know whether it was read. Gateways of other regions rely on this time: see
	// idlePlain of package proxy.
	lameDuck = 2 * time.Second
	// drainStep is the time between two checks whether the last request or connection has ended.
	drainStep = 10 * time.Millisecond
)

// newServer returns a server for HTTP/1.1 and for HTTP/2 with and without TLS. It limits the resources that a
// client may use before its route is known.
func newServer(handler http.Handler, cfg Config) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           handler,
		Protocols:         protocols,
		ReadHeaderTimeout: cfg.HeaderTimeout,
		IdleTimeout:       idleClient,
		MaxHeaderBytes:    cfg.MaxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 1000,
			// Pings find clients that went away silently.
			SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second,
			WriteByteTimeout: cfg.SlowClient,
		},
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
}

// listenOn listens on one of the addresses of Config. An error names the address.
func listenOn(ctx context.Context, what, address string) (net.Listener, error) {
	l, err := listenShared(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("listen for %s on %q: %w", what, address, err)
	}
	return l, nil
}

// serveListeners serves on the listeners until ctx ends. Then it stops in these steps, so that no request is lost:
//
//  1. Readiness is off for DrainDelay, so that load balancers send no new clients.
//  2. New connections go to the successor, if there is one.
//  3. The listeners are closed.
//  4. Connections without a request are closed, and other connections after their request.
//  5. At the deadline all other connections are closed.
func (g *Gateway) serveListeners(ctx context.Context) error {
	server := newServer(conns.Handler(g.newHandler()), g.cfg)
	server.ConnContext = conns.Context
	cut, cutNow := context.WithCancel(context.WithoutCancel(ctx))
	defer cutNow()
	server.BaseContext = func(net.Listener) context.Context { return cut }
	short := engine.New(engine.Config{
		Mode: g.cfg.Engine, Handler: g.proxy, MaxHeader: g.cfg.MaxHeaderBytes, MaxBody: proxy.Replayable, Header: g.cfg.HeaderTimeout, Idle: idleClient, Conns: g.conns, Log: g.cfg.Log, Rand: g.cfg.Rand,
	})
	defer short.Close()
	server.ConnState = short.State
	failed := make(chan error, len(g.listeners)+1)
	var serving sync.WaitGroup
	// Connections wait in the sockets' queues until the table has arrived. If the agent answers, that does not take
	// long.
	select {
	case <-g.routes.Completed():
	case <-time.After(firstTable):
		g.cfg.Log.WarnContext(ctx, "no table of routes yet: requests are refused until there is one")
	case <-ctx.Done():
	}
	serve := func(l net.Listener) {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			failed <- fmt.Errorf("serve on %s: %w", l.Addr(), err)
		}
	}
	var others sync.WaitGroup
	others.Go(func() { serve(short.Others()) })
	for _, l := range g.listeners {
		serving.Go(func() {
			if g.redirectsPlain() || !short.Serve(cut, l) {
				if l != g.secure { // the connections of g.secure are limited and checked below TLS
					l = strict.Listen(g.conns.Listen(l), g.cfg.MaxHeaderBytes)
				}
				serve(l)
			}
		})
	}
	stopHTTP3 := func(context.Context) {}
	if g.http3 != nil {
		stopHTTP3 = g.http3.startServing(ctx, cut)
	}
	select {
	case err := <-failed:
		cutNow()
		stopHTTP3(cut)
		err = errors.Join(err, server.Close())
		for _, l := range g.listeners {
			_ = l.Close() // an error changes nothing, because the listener is not used again
		}
		serving.Wait()
		return err
	case <-ctx.Done():
	}

	g.proxy.Leave()
	g.leaving.Store(true)
	// The next steps must not be cancelled, although ctx has ended. Each of them has a time limit.
	rest := context.WithoutCancel(ctx)
	_ = backoff.Sleep(rest, g.cfg.DrainDelay)
	for _, l := range g.bound {
		if err := yieldNewConnections(l); err != nil {
			g.cfg.Log.DebugContext(ctx, "cannot direct new connections to the next gateway", "error", err)
		}
	}
	for begun := time.Now(); time.Since(begun) < emptied; _ = backoff.Sleep(rest, drainStep) {
		if time.Since(begun) >= handshake && time.Since(short.Taken()) >= handshake && !slices.ContainsFunc(g.bound, hasQueued) {
			break
		}
	}
	for _, l := range g.listeners {
		_ = l.Close() // an error changes nothing, because the listener is not used again
	}
	serving.Wait()
	g.routes.Leave()
	deadline, cancel := context.WithTimeout(rest, g.cfg.DrainTimeout)
	defer cancel()
	var quic sync.WaitGroup
	over, isOver := context.WithCancel(deadline)
	defer quic.Wait()
	defer isOver()
	quic.Go(func() { stopHTTP3(over) })
	for end := time.Now().Add(lameDuck); short.Open() > 0 && time.Now().Before(end); {
		_ = backoff.Sleep(deadline, drainStep)
	}
	short.Leave()
	for deadline.Err() == nil && short.Undecided() > 0 { // a request that is undecided may still go to the other server
		_ = backoff.Sleep(deadline, drainStep)
	}
	err := errors.Join(server.Shutdown(deadline), short.Wait(deadline))
	others.Wait()
	// Upgraded connections no longer belong to the server.
	for err == nil && g.proxy.UnderWay() > 0 {
		err = backoff.Sleep(deadline, drainStep)
	}
	if err == nil {
		return nil
	}
	left := g.proxy.UnderWay()
	cutNow()
	short.Close()
	err = server.Close()
	g.cfg.Log.WarnContext(ctx, "requests were cut off at the deadline", "requests", left, "after", g.cfg.DrainTimeout, "error", err)
	return nil
}
