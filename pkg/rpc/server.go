package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/pkg/conns"
	"github.com/windlass-run/windlass/pkg/guard"
	"github.com/windlass-run/windlass/pkg/strict"
)

// ServerConfig configures an HTTP server for RPCs and other handlers.
type ServerConfig struct {
	Handler http.Handler
	// TLS may be nil, for a server behind a load balancer, or with clients on the same machine only.
	TLS *tls.Config
	// Limits returns the limits of a procedure's request messages. Nil means the defaults.
	Limits func(procedure string) Limits
	// Proxies are networks whose X-Forwarded-For is trusted.
	Proxies guard.Networks
	// BodyTimeout is how long a request's body may take to arrive. Default: 30 s.
	BodyTimeout time.Duration
	// Log receives failed handshakes and similar errors. Nil discards them.
	Log *slog.Logger
}

// NewServer returns a server for Serve, with HTTP/1.1, and with HTTP/2 with and without TLS. It limits
// headers, bodies and idle connections, but not the duration of an answer, because streams live for hours.
func NewServer(cfg ServerConfig) *http.Server {
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           conns.Handler(limitBodies(cfg, orDefault(cfg.BodyTimeout, 30*time.Second))),
		ConnContext:       conns.Context,
		TLSConfig:         cfg.TLS.Clone(), // the server adds its protocols
		Protocols:         protocols,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		// Calls by GET have their message in the URL. Calls with a larger message use POST.
		MaxHeaderBytes: 64 << 10,
		HTTP2:          http2Config(cfg.TLS != nil),
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// http2Config enables pings only with TLS. Without TLS, Serve's keeper pings.
func http2Config(encrypted bool) *http.HTTP2Config {
	c := &http.HTTP2Config{
		// One connection may carry all streams of a dashboard or a test fleet.
		MaxConcurrentStreams: 1000,
		WriteByteTimeout:     writeTimeout,
	}
	if encrypted {
		c.SendPingTimeout, c.PingTimeout = pingAfter, pingTimeout
	}
	return c
}

// limitBodies limits the size and the duration of request bodies, and forbids caches to store answers. It does not
// use http.Server.ReadTimeout, which would also end an answer that is being streamed on HTTP/1.1.
func limitBodies(cfg ServerConfig, timeout time.Duration) http.Handler {
	limitsOf := cfg.Limits
	if limitsOf == nil {
		limitsOf = func(string) Limits { return Limits{} }
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		limits := limitsOf(r.URL.Path).orDefaults()
		if r.Body != nil && r.Body != http.NoBody {
			control := http.NewResponseController(w)
			// SetReadDeadline fails only for the writers of tests, which have no deadlines.
			_ = control.SetReadDeadline(time.Now().Add(timeout))
			body := &limitedBody{ReadCloser: r.Body, arrived: sync.OnceFunc(func() {
				_ = control.SetReadDeadline(time.Time{})
			})}
			// r is copied, because net/http must keep the original body: it closes the connection if that body was
			// not read.
			r = r.WithContext(r.Context())
			r.Body = http.MaxBytesReader(w, body, limits.WireBytes)
		}
		in, r := newMessageReader(r, limits, clientOf(r, cfg.Proxies))
		defer in.releaseCharge()
		cfg.Handler.ServeHTTP(w, r)
	})
}

// ClientOf returns the address from which the call of ctx comes, or the zero Addr if it is not known.
func ClientOf(ctx context.Context) netip.Addr {
	if in := messageReaderOf(ctx); in != nil {
		return in.client
	}
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		return addressOf(info.Peer().Addr)
	}
	return netip.Addr{}
}

// clientOf returns the address from which a request comes. It is the connection's address. Behind trusted proxies
// it is the last address in X-Forwarded-For that is not the address of a trusted proxy.
func clientOf(r *http.Request, proxies guard.Networks) netip.Addr {
	client := addressOf(r.RemoteAddr)
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(hops) - 1; i >= 0 && client.IsValid() && proxies.Lists(client); i-- {
		next, err := netip.ParseAddr(strings.TrimSpace(hops[i]))
		if err != nil {
			break
		}
		client = next.Unmap().WithZone("")
	}
	return client
}

// limitedBody calls arrived when the whole body has been read.
type limitedBody struct {
	io.ReadCloser
	arrived func()
}

func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.arrived()
	}
	return n, err
}

// errStopping is the cause of the end of contexts when the server stops.
var errStopping = errors.New("the server is stopping")

// Stopping reports whether a request's context ended because the server stops. The stream can still be written
// until the grace period is over.
func Stopping(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errStopping) }

// checkedListener returns a listener that checks HTTP/1 requests before net/http reads them; see strict.
func checkedListener(server *http.Server, listener net.Listener, keeper *keeper) net.Listener {
	if server.TLSConfig == nil {
		return strict.Listen(keptListener{listener, keeper}, server.MaxHeaderBytes)
	}
	config := server.TLSConfig.Clone()
	config.NextProtos = []string{"h2", "http/1.1"}
	return strict.ListenTLS(listener, strict.TLSConfig{
		TLS: config, MaxHead: server.MaxHeaderBytes, Handshake: server.ReadHeaderTimeout,
		Failed: func(client net.Addr, err error) { server.ErrorLog.Printf("TLS handshake with %s: %v", client, err) },
	})
}

// cutKey is the key, in a request's context, of a context that ends when the grace period is over.
type cutKey struct{}

// Serve serves on listener until ctx ends, and then closes the listener. It ends the context of every request, so
// that streams return. Unary calls with HandlerOptions continue for at most grace. Serve returns an error if it
// cancelled calls after that, else nil.
//
// A server can be used for one Serve only.
func Serve(ctx context.Context, server *http.Server, listener net.Listener, grace time.Duration) error {
	cut, cutNow := context.WithCancel(context.WithoutCancel(ctx))
	defer cutNow()
	base, stopStreams := context.WithCancelCause(context.WithValue(cut, cutKey{}, cut))
	defer stopStreams(nil)
	server.BaseContext = func(net.Listener) context.Context { return base }

	keeper := newKeeper()
	sweeping, stopSweeping := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	background.Go(func() { keeper.sweepUntil(sweeping) })
	defer background.Wait()
	defer stopSweeping()
	served := make(chan error, 1)
	go func() {
		served <- server.Serve(checkedListener(server, listener, keeper))
	}()
	select {
	case err := <-served:
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}

	stopStreams(errStopping)
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := server.Shutdown(drain)
	if err == nil {
		return nil
	}
	cutNow()
	return fmt.Errorf("stop serving on %s: calls were cut after %v: %w", listener.Addr(), grace, errors.Join(err, server.Close()))
}
