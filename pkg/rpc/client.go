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

// ClientConfig configures the clients of one program.
type ClientConfig struct {
	// Token returns the bearer token of a call. It is called for every call, so that the token can rotate.
	// If it is nil or returns "", the call has no token.
	Token func() string
	// Sign adds a proof of the caller's identity to the header of a call, after the token. It may be nil.
	Sign func(procedure string, header http.Header)
	// Refused is called with the header of an UNAUTHENTICATED answer. It may be nil.
	Refused func(answer http.Header)
	// UserAgent names the program and its version ("windlass/1.2.3").
	UserAgent string
	// Tracer makes a span for each call, and Propagator sends the span's ID to the server. They may be nil.
	Tracer     trace.TracerProvider
	Propagator propagation.TextMapPropagator
	// Timeout limits a unary call whose context has no deadline. Streams have no timeout. Default:
	// DefaultTimeout.
	Timeout time.Duration
	// ReadMaxBytes is the maximum size of a decoded message. Default: DefaultReadMaxBytes.
	ReadMaxBytes int
	// Gzip compresses larger requests, for slow connections. Larger responses are always compressed.
	Gzip bool
}

// ClientOptions returns the options for every client constructor of a program.
func ClientOptions(cfg ClientConfig) []connect.ClientOption {
	interceptors := append(tracingInterceptors(cfg.Tracer, cfg.Propagator), &clientInterceptor{
		token: cfg.Token, sign: cfg.Sign, refused: cfg.Refused, userAgent: cfg.UserAgent, timeout: orDefault(cfg.Timeout, DefaultTimeout),
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

// clientInterceptor is the client's interceptor. It adds the caller's identity to calls, and limits the time of
// unary calls.
type clientInterceptor struct {
	token     func() string
	sign      func(procedure string, header http.Header)
	refused   func(answer http.Header)
	userAgent string
	timeout   time.Duration
}

func (c *clientInterceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if _, ok := ctx.Deadline(); !ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, c.timeout)
			defer cancel()
		}
		c.signCall(req.Spec().Procedure, req.Header())
		res, err := next(ctx, req)
		return res, c.noteError(correctReset(ctx, err))
	}
}

// noteError calls c.refused if err is UNAUTHENTICATED.
func (c *clientInterceptor) noteError(err error) error {
	var coded *connect.Error
	if c.refused != nil && errors.As(err, &coded) && coded.Code() == connect.CodeUnauthenticated {
		c.refused(coded.Meta())
	}
	return err
}

func (c *clientInterceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		c.signCall(spec.Procedure, conn.RequestHeader())
		return &clientConn{StreamingClientConn: conn, ctx: ctx, caller: c}
	}
}

// clientConn is a stream whose errors correctReset corrects.
type clientConn struct {
	connect.StreamingClientConn
	ctx    context.Context
	caller *clientInterceptor
}

func (c *clientConn) Send(msg any) error { return correctReset(c.ctx, c.StreamingClientConn.Send(msg)) }

func (c *clientConn) Receive(msg any) error {
	return c.caller.noteError(correctReset(c.ctx, c.StreamingClientConn.Receive(msg)))
}

// correctReset corrects Connect's error for a connection that the other end reset. Connect reports CANCELED,
// although the caller did not cancel. correctReset returns UNAVAILABLE, because the server died and the call may be
// repeated.
func correctReset(ctx context.Context, err error) error {
	var coded *connect.Error
	if ctx.Err() == nil && errors.As(err, &coded) && coded.Code() == connect.CodeCanceled && !connect.IsWireError(err) {
		return connect.NewError(connect.CodeUnavailable, coded.Unwrap())
	}
	return err
}

func (c *clientInterceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// signCall adds the user agent, the token and the proof of identity to the header.
func (c *clientInterceptor) signCall(procedure string, header http.Header) {
	if c.userAgent != "" {
		header.Set("User-Agent", c.userAgent)
	}
	if c.token == nil {
		return
	}
	if token := c.token(); token != "" {
		header.Set("Authorization", "Bearer "+token)
		if c.sign != nil {
			c.sign(procedure, header)
		}
	}
}

// HTTPClientConfig configures the connections of the clients.
type HTTPClientConfig struct {
	// TLS is for https URLs. Nil means the system's roots.
	TLS *tls.Config
	// DialTimeout limits connecting, and separately the TLS handshake. Default: 10 s.
	DialTimeout time.Duration
	// Dial opens the TCP connections, in a simulator or a test. Default: a net.Dialer's DialContext.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// HeaderTimeout is how long a server may take to begin its answer. It does not limit streams that have
	// begun. Default: 60 s, above the longest unary call.
	HeaderTimeout time.Duration
	// HTTP1 uses HTTP/1.1 for http URLs, because of proxies without HTTP/2. Then each call in progress needs its
	// own connection. For https URLs the protocol is negotiated.
	HTTP1 bool
}

// NewHTTPClient returns a client that multiplexes calls and streams over few HTTP/2 connections. It uses h2c
// for http URLs and negotiates for https. It finds dead connections by ping. It follows no redirects, so that
// credentials reach only the intended server.
func NewHTTPClient(cfg HTTPClientConfig) *http.Client {
	plain := newTransport(cfg)
	plain.Protocols = new(http.Protocols)
	if cfg.HTTP1 {
		plain.Protocols.SetHTTP1(true)
		plain.Proxy = http.ProxyFromEnvironment
	} else {
		// With both, net/http would choose HTTP/1.1. Proxies do not support h2c.
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
		// This is shorter than the server's IdleTimeout, because a server that closes first could lose a
		// request that is on its way.
		IdleConnTimeout:     90 * time.Second,
		MaxIdleConnsPerHost: 16,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout:  clientPingAfter,
			PingTimeout:      pingTimeout,
			WriteByteTimeout: writeTimeout,
		},
	}
}

// byScheme uses one transport for http URLs, and another one for https URLs.
type byScheme struct{ plain, secure *http.Transport }

func (t byScheme) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme == "https" {
		return t.secure.RoundTrip(req)
	}
	return t.plain.RoundTrip(req)
}

// CloseIdleConnections closes the idle connections of both transports. http.Client's method of this name calls it.
func (t byScheme) CloseIdleConnections() {
	t.plain.CloseIdleConnections()
	t.secure.CloseIdleConnections()
}
