package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/decide"
	"github.com/windlass-run/windlass/apps/gateway/internal/engine"
	"github.com/windlass-run/windlass/apps/gateway/internal/hold"
	"github.com/windlass-run/windlass/apps/gateway/internal/http1"
	"github.com/windlass-run/windlass/apps/gateway/internal/remoteregions"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
	"github.com/windlass-run/windlass/pkg/conns"
)

const (
	// Replayable is the largest body in bytes that is kept to be sent again: a long prompt. What
	// is larger is streamed, and repeated only if none of it was read.
	Replayable = 64 << 10
	// maxInterim is how many interim answers may come before the final one. For an instance that
	// reports progress every 10 s that is hours.
	maxInterim = 2000
)

// transport places a request at an instance, and at another, or in another region, where that
// is safe.
type transport struct {
	metrics *metrics
	holds   *hold.Holds
	regions *remoteregions.Regions
	here    protocols
	across  across
	// upgradedIdle is how long a connection that switched protocols may be silent.
	upgradedIdle time.Duration
}

// protocols to whom there is no TLS: plain speaks HTTP/1.1; h2c is for gRPC, which has nothing
// else.
type protocols struct{ plain, h2c *http.Transport }

func newProtocols(dial dialer) protocols {
	p := protocols{plain: base(dial), h2c: base(dial)}
	p.plain.Protocols.SetHTTP1(true)
	p.h2c.Protocols.SetUnencryptedHTTP2(true)
	p.h2c.HTTP2 = keepAlive()
	return p
}

func (p protocols) close() {
	p.plain.CloseIdleConnections()
	p.h2c.CloseIdleConnections()
}

// of a request.
func (p protocols) of(req *http.Request) *http.Transport {
	if isGRPC(req) {
		return p.h2c
	}
	return p.plain
}

func isGRPC(req *http.Request) bool {
	return req.ProtoMajor == 2 && strings.HasPrefix(req.Header.Get("Content-Type"), "application/grpc")
}

func base(dial dialer) *http.Transport {
	return &http.Transport{
		DialContext:         dial,
		DisableCompression:  true, // what the client did not ask for is not ours to add
		MaxIdleConnsPerHost: engine.IdlePerInstance,
		IdleConnTimeout:     engine.IdleConnection,
		// An instance that answers 100 late or never gets the body anyhow.
		ExpectContinueTimeout: time.Second,
		// What is too large, connection is to find: it says so.
		MaxResponseHeaderBytes: 2 * http1.MaxResponseHeader,
		Protocols:              new(http.Protocols),
	}
}

func keepAlive() *http.HTTP2Config {
	return &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second}
}

func (t *transport) close() {
	t.here.close()
	t.across.close()
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// dialError: no connection was had.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// connectKey finds the time that a dial may take.
type connectKey struct{}

// dial connects to an instance. Where this process has run out of something, it lets go of what it can
// and tries again.
func (p *Proxy) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := dialBy(ctx, &net.Dialer{}, network, address)
	if err != nil && conns.Local(err) {
		p.relieve()
		return dialBy(ctx, &net.Dialer{}, network, address)
	}
	return conn, err
}

// dialBy is dial with the dialer, whose times it sets.
func dialBy(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error) {
	limit := upstream.DefaultPolicy().Connect
	if l, ok := ctx.Value(connectKey{}).(time.Duration); ok {
		limit = l
	}
	d.Timeout, d.KeepAlive = limit, 15*time.Second
	begun := time.Now()
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, failedDial(err, limit, time.Since(begun))
	}
	return newConnection(conn), nil
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	x := exchangeOf(req.Context())
	body, err := keep(req, x)
	if err != nil {
		return nil, err
	}
	c := &trip{t: t, req: req, x: x, body: body}
	want := x.want(x.affinity(c))
	if _, err := x.drive(c, t.metrics, &want, idempotent(req)); err != nil {
		return nil, err
	}
	return c.res, nil
}

// trip carries a request by net/http.
type trip struct {
	t    *transport
	req  *http.Request
	x    *exchange
	body []byte
	// res is the answer: an instance's, or another region's.
	res *http.Response
}

// values implements fields: what goes to an instance, and the key.
func (c *trip) values(name string) []string {
	if strings.EqualFold(name, c.x.key.field) {
		return []string{c.x.key.value}
	}
	return c.req.Header.Values(name)
}

func (c *trip) await(want *upstream.Want) (*upstream.Lease, error) {
	return c.wait(c.req.Context(), want)
}

func (c *trip) attempt(lease *upstream.Lease) (a decide.Attempt, err error) {
	c.res, a, err = c.t.attempt(c.req, c.x, instance{lease}, c.body) //nolint:bodyclose // by drop, or by ReverseProxy, which passes it on
	return a, err
}

func (c *trip) drop(*upstream.Lease) { _ = c.res.Body.Close() }

// resendable reports whether the request's body can be sent again.
func resendable(x *exchange, body []byte) bool {
	return body != nil || x.in == nil || !x.in.touched.Load()
}

// destination is where an attempt goes.
type destination interface {
	// to is where a request is sent, by which transport.
	to(*transport, *http.Request) (scheme, host string, through *http.Transport)
	// RecordOutcome says how it went, as far as that tells about the destination; End is the end of it.
	judged
	End()
}

// instance of this region.
type instance struct{ *upstream.Lease }

func (i instance) to(t *transport, req *http.Request) (scheme, host string, through *http.Transport) {
	return "http", i.Address(), t.here.of(req)
}

// kept reports whether keep keeps the body.
func kept(req *http.Request) bool { return req.ContentLength > 0 && req.ContentLength <= Replayable }

// keep reads a body that is small enough to be sent again; nil: there is none, or it is
// streamed.
func keep(req *http.Request, x *exchange) ([]byte, error) {
	if x.in == nil || req.Body == nil || !kept(req) {
		return nil, nil
	}
	// The client was told to go on by our reading; the instance need not be asked.
	req.Header.Del("Expect")
	body := make([]byte, req.ContentLength)
	if _, err := io.ReadFull(req.Body, body); err != nil {
		return nil, fmt.Errorf("read the request's body: %w", err)
	}
	// The end is read, too, so that the server knows that the connection is at the next
	// request.
	if _, err := req.Body.Read(make([]byte, 1)); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the request's body: %w", err)
	}
	return body, nil
}

// attempt sends the request to the destination, which ends with the answer's body, or before
// attempt returns an error.
func (t *transport) attempt(req *http.Request, x *exchange, at destination, body []byte) (*http.Response, decide.Attempt, error) {
	ctx, cancel := context.WithCancelCause(context.WithValue(req.Context(), connectKey{}, x.policy.Connect))
	late := startWatch(x.policy.Response, func() { cancel(failTimeout) })
	if body == nil && x.in != nil {
		x.in.instance.Store(late)
	}
	var conn atomic.Pointer[connection]
	var before atomic.Int64
	u := *req.URL
	var through *http.Transport
	u.Scheme, u.Host, through = at.to(t, req)
	interim := 0
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			c, ok := info.Conn.(*connection)
			if ok && through.Protocols.HTTP1() {
				c.begin(ctx, info.Reused)
			}
			if secure, is := info.Conn.(*tls.Conn); is { // which may have been told something by now
				c, ok = secure.NetConn().(*connection)
			}
			if ok {
				before.Store(c.written.Load())
				conn.Store(c)
			}
		},
		Got1xxResponse: func(_ int, header textproto.MIMEHeader) error {
			dropHop(http.Header(header)) // before ReverseProxy's looks at it
			if interim++; interim > maxInterim {
				cancel(failBroken)
			}
			return nil // what ReverseProxy's returns counts
		},
	})
	out := req.WithContext(ctx)
	out.URL = &u
	if body != nil {
		out.Body = io.NopCloser(bytes.NewReader(body))
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	}
	res, err := through.RoundTrip(out)
	silent := late.end()
	if err == nil {
		if err = unfit(res); err != nil {
			_ = res.Body.Close()
		}
	}
	if err != nil {
		fault := faultOf(req, x, err, context.Cause(ctx), silent)
		cancel(nil)
		var failed decide.Failure
		failed, err = x.judge(fault, at, err)
		at.End()
		c := conn.Load()
		return nil, decide.Attempt{
			Sent: failed != decide.Connect && c != nil && c.written.Load() > before.Load(), Over: req.Context().Err() != nil,
			Failure: failed, Resendable: resendable(x, body),
		}, err
	}
	x.firstByte = time.Now()
	answered := decide.Attempt{Status: res.StatusCode, Sent: true, Resendable: resendable(x, body)}
	at.RecordOutcome(decide.Health(res.StatusCode))
	if in, ok := at.(instance); ok && in.Observed() {
		observe(in.Lease, res)
	}
	b := &responseBody{ReadCloser: res.Body, res: res, x: x, req: req, at: at, cancel: cancel, limit: x.policy.Idle}
	b.ctx = ctx
	b.idle = time.AfterFunc(x.policy.Idle, func() { cancel(failTimeout) })
	if res.StatusCode == http.StatusSwitchingProtocols {
		b.idle.Stop()
		if rw, ok := res.Body.(io.ReadWriteCloser); ok {
			res.Body = newUpgraded(rw, b, t.upgradedIdle)
			return res, answered, nil
		}
	}
	res.Body = b
	return res, answered, nil
}

// unfit returns why an answer that net/http took cannot be passed on. connection has looked at those
// of HTTP/1 without TLS before.
func unfit(res *http.Response) error {
	if res.StatusCode < http.StatusContinue { // 000, say, which a ResponseWriter panics at
		return fmt.Errorf("the instance answered status %03d", res.StatusCode)
	}
	return bounded(res.Header)
}

// bounded returns why h, the header or trailers of an answer, is too large.
func bounded(h http.Header) error {
	fields := 0
	for _, values := range h {
		fields += len(values)
	}
	if fields > http1.MaxResponseFields {
		return http1.ErrTooLarge
	}
	return nil
}

// faultOf is what err says of an attempt. silent is how long the answer did not begin; 0: it did.
func faultOf(req *http.Request, x *exchange, err, cause error, silent time.Duration) decide.Fault {
	f := instanceFault(err)
	f.ClientGone = req.Context().Err() != nil && !errors.Is(context.Cause(req.Context()), failTotal)
	f.ClientBroke = x.in.failed() != nil
	f.TotalPassed, f.BodyAwaited, f.Silent = errors.Is(cause, failTotal), x.in.awaited(), silent
	f.TimedOut, f.Late = errors.Is(cause, failTimeout), decide.IsLate(silent, x.policy.Response)
	return f
}

// instanceFault is what err says of an instance and of the way to it, whichever transport met it.
func instanceFault(err error) decide.Fault {
	_, noConn := errors.AsType[*dialError](err)
	return decide.Fault{NoConnection: noConn, Local: isLocal(err), TooLarge: errors.Is(err, http1.ErrTooLarge)}
}

// idempotent requests may be sent twice.
func idempotent(req *http.Request) bool {
	return decide.Idempotent(req.Method, req.Header.Get("Idempotency-Key") != "", req.Header.Get("Upgrade") != "")
}

// responseBody ends the lease with the last byte of the answer.
type responseBody struct {
	io.ReadCloser

	res    *http.Response
	ctx    context.Context //nolint:containedctx // it is the attempt's, and ends with the body
	x      *exchange
	req    *http.Request
	at     destination
	cancel context.CancelCauseFunc
	idle   *time.Timer
	limit  time.Duration
}

func (b *responseBody) Read(p []byte) (int, error) {
	b.idle.Reset(b.limit)
	n, err := b.ReadCloser.Read(p)
	// What the client takes its time with is not the instance's.
	b.idle.Stop()
	if errors.Is(err, io.EOF) {
		if large := bounded(b.res.Trailer); large != nil {
			err = large
		}
	}
	if errors.Is(err, io.EOF) {
		if in, ok := b.at.(instance); ok && in.Observed() {
			observeEnd(in.Lease, b.res)
		}
		keepTrailers(b.res.Trailer)
	} else if err != nil {
		b.broke(err)
	}
	return n, err
}

func (b *responseBody) broke(err error) {
	b.x.broke(b.x.judge(faultOf(b.req, b.x, err, context.Cause(b.ctx), 0), b.at, err))
}

// failureOf is the place that judge gave an error among failures; nil: none, the client went away.
func failureOf(err error) *failure {
	own, _ := errors.AsType[*failure](err)
	return own
}

func (b *responseBody) Close() error {
	err := b.ReadCloser.Close()
	b.idle.Stop()
	b.cancel(nil)
	b.at.End()
	return err
}
