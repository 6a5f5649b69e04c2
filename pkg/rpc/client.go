package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// ClientConfig of the clients of one program.
type ClientConfig struct {
	// Token is sent as bearer token with every call; it is asked for each time,
	// so that it can rotate. nil or "": none is sent.
	Token func() string
	// Sign adds to the header of a call of the procedure what proves who calls, after the token;
	// nil: nothing.
	Sign func(procedure string, header http.Header)
	// Refused is told the header of an answer that says that the caller is not known; nil:
	// nothing is.
	Refused func(answer http.Header)
	// UserAgent names the program and its version ("windlass/1.2.3").
	UserAgent string
	// Tracer makes a span per call and Propagator sends it along; nil: none.
	Tracer     trace.TracerProvider
	Propagator propagation.TextMapPropagator
	// Timeout of a unary call whose context has no deadline. 0: DefaultTimeout.
	// Streams have none.
	Timeout time.Duration
	// ReadMaxBytes bounds a decoded message. 0: DefaultReadMaxBytes.
	ReadMaxBytes int
	// Gzip compresses larger requests: for bulk over distance. Responses are
	// compressed either way.
	Gzip bool
}

// ClientOptions are for every client constructor of a program.
func ClientOptions(cfg ClientConfig) []connect.ClientOption {
	interceptors := append(tracing(cfg.Tracer, cfg.Propagator), &caller{
		token: cfg.Token, proof: cfg.Sign, refused: cfg.Refused, userAgent: cfg.UserAgent, timeout: orDefault(cfg.Timeout, DefaultTimeout),
	})
	options := []connect.ClientOption{
		connect.WithInterceptors(interceptors...),
		connect.WithReadMaxBytes(orDefault(cfg.ReadMaxBytes, DefaultReadMaxBytes)),
		connect.WithAcceptCompression(gzipName, newDecompressor, newCompressor),
		connect.WithCompressMinBytes(compressMinBytes),
	}
	if cfg.Gzip {
		options = append(options, connect.WithSendGzip())
	}
	return options
}

// caller says who calls and bounds unary calls.
type caller struct {
	token     func() string
	proof     func(procedure string, header http.Header)
	refused   func(answer http.Header)
	userAgent string
	timeout   time.Duration
}

func (c *caller) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if _, ok := ctx.Deadline(); !ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, c.timeout)
			defer cancel()
		}
		c.sign(req.Spec().Procedure, req.Header())
		res, err := next(ctx, req)
		return res, c.note(reset(ctx, err))
	}
}

// note tells refused of an error that says that the caller is not known.
func (c *caller) note(err error) error {
	var coded *connect.Error
	if c.refused != nil && errors.As(err, &coded) && coded.Code() == connect.CodeUnauthenticated {
		c.refused(coded.Meta())
	}
	return err
}

func (c *caller) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		c.sign(spec.Procedure, conn.RequestHeader())
		return &clientConn{StreamingClientConn: conn, ctx: ctx, caller: c}
	}
}

// clientConn is a stream whose errors mean what they say.
type clientConn struct {
	connect.StreamingClientConn
	ctx    context.Context
	caller *caller
}

func (c *clientConn) Send(msg any) error { return reset(c.ctx, c.StreamingClientConn.Send(msg)) }

func (c *clientConn) Receive(msg any) error {
	return c.caller.note(reset(c.ctx, c.StreamingClientConn.Receive(msg)))
}

// reset corrects what Connect makes of a connection that the other end reset: a
// call that was cancelled, although the caller did not cancel it. The server died, and
// the call may be made again.
func reset(ctx context.Context, err error) error {
	var coded *connect.Error
	if ctx.Err() == nil && errors.As(err, &coded) && coded.Code() == connect.CodeCanceled && !connect.IsWireError(err) {
		return connect.NewError(connect.CodeUnavailable, coded.Unwrap())
	}
	return err
}

func (c *caller) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func (c *caller) sign(procedure string, header http.Header) {
	if c.userAgent != "" {
		header.Set("User-Agent", c.userAgent)
	}
	if c.token == nil {
		return
	}
	if token := c.token(); token != "" {
		header.Set("Authorization", "Bearer "+token)
		if c.proof != nil {
			c.proof(procedure, header)
		}
	}
}

// HTTPClientConfig of the connections under the clients.
type HTTPClientConfig struct {
	// TLS for https URLs; nil: the system's roots.
	TLS *tls.Config
	// DialTimeout bounds connecting and, apart from it, the TLS handshake.
	// 0: 10 s.
	DialTimeout time.Duration
	// Dial opens the TCP connections; nil: a net.Dialer's DialContext. Everything else stays
	// as the shipped programs have it.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// HeaderTimeout is how long a server may take to begin its answer. It does
	// not bound streams that have begun. 0: 60 s, above the longest unary call.
	HeaderTimeout time.Duration
	// HTTP1 speaks HTTP/1.1 to http URLs, for what stands in between and knows no
	// HTTP/2: one connection per call then. https URLs negotiate.
	HTTP1 bool
}

// NewHTTPClient returns a client that multiplexes calls and streams over few
// HTTP/2 connections: without TLS to http URLs (h2c), negotiated for https. Dead
// connections are found by ping. It follows no redirect: a call's credential
// goes where it was meant to go.
func NewHTTPClient(cfg HTTPClientConfig) *http.Client {
	plain := newTransport(cfg)
	plain.Protocols = new(http.Protocols)
	if cfg.HTTP1 {
		plain.Protocols.SetHTTP1(true)
		plain.Proxy = http.ProxyFromEnvironment
	} else {
		// With both, net/http would choose HTTP/1.1. No proxy speaks h2c.
		plain.Protocols.SetUnencryptedHTTP2(true)
	}
	secure := newTransport(cfg)
	secure.Protocols = new(http.Protocols)
	secure.Protocols.SetHTTP1(true)
	secure.Protocols.SetHTTP2(true)
	secure.Proxy = http.ProxyFromEnvironment
	return &http.Client{
		Transport:     byScheme{plain: plain, secure: secure},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func newTransport(cfg HTTPClientConfig) *http.Transport {
	timeout := orDefault(cfg.DialTimeout, 10*time.Second)
	open := cfg.Dial
	if open == nil {
		open = new(net.Dialer).DialContext
	}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return open(ctx, network, address)
		},
		TLSClientConfig:       cfg.TLS.Clone(), // the transport adds its protocols
		TLSHandshakeTimeout:   timeout,
		ResponseHeaderTimeout: orDefault(cfg.HeaderTimeout, time.Minute),
		// Below the server's IdleTimeout: who closes first must not be the one
		// who did not know that a request is on its way.
		IdleConnTimeout:     90 * time.Second,
		MaxIdleConnsPerHost: 16,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout:  clientPingAfter,
			PingTimeout:      pingTimeout,
			WriteByteTimeout: writeTimeout,
		},
	}
}

type byScheme struct{ plain, secure *http.Transport }

func (t byScheme) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme == "https" {
		return t.secure.RoundTrip(req)
	}
	return t.plain.RoundTrip(req)
}

// CloseIdleConnections is found by http.Client's method of that name.
func (t byScheme) CloseIdleConnections() {
	t.plain.CloseIdleConnections()
	t.secure.CloseIdleConnections()
}
