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
	"github.com/windlass-run/windlass/apps/gateway/internal/pairing"
	"github.com/windlass-run/windlass/apps/gateway/internal/remoteregions"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
	"github.com/windlass-run/windlass/pkg/conns"
)

const (
	// Replayable is the largest body, in bytes, that is kept so that it can be sent again. A long prompt fits. Larger
	// bodies are streamed, and the request is repeated only if no part of the body was read.
	Replayable = 64 << 10
	// maxInterim is how many interim answers may come before the final answer. An instance that reports progress
	// every 10 s needs hours for that number.
	maxInterim = 2000
)

// transport sends a request to an instance. It repeats the request at another instance or another region if that is
// safe.
type transport struct {
	metrics *metrics
	holds   *hold.Holds
	// pairMemory limits the memory for the bodies of requests to pairs.
	pairMemory *pairMemory
	regions    *remoteregions.Regions
	here       protocols
	toRegions  regionTransports
	// upgradedIdle is how long a connection that switched protocols may be silent.
	upgradedIdle time.Duration
}

// protocols are the transports without TLS: plain speaks HTTP/1.1, and h2c is for gRPC, which needs HTTP/2.
type protocols struct{ plain, h2c *http.Transport }

func newProtocols(dial dialer) protocols {
	p := protocols{plain: newTransport(dial), h2c: newTransport(dial)}
	p.plain.Protocols.SetHTTP1(true)
	p.h2c.Protocols.SetUnencryptedHTTP2(true)
	p.h2c.HTTP2 = keepAlive()
	return p
}

func (p protocols) close() {
	p.plain.CloseIdleConnections()
	p.h2c.CloseIdleConnections()
}

// transportFor returns the transport for a request.
func (p protocols) transportFor(req *http.Request) *http.Transport {
	if isGRPC(req) {
		return p.h2c
	}
	return p.plain
}

func isGRPC(req *http.Request) bool {
	return req.ProtoMajor == 2 && strings.HasPrefix(req.Header.Get("Content-Type"), "application/grpc")
}

func newTransport(dial dialer) *http.Transport {
	return &http.Transport{
		DialContext:         dial,
		DisableCompression:  true, // the gateway must not add compression that the client did not ask for
		MaxIdleConnsPerHost: engine.IdlePerInstance,
		IdleConnTimeout:     engine.IdleConnection,
		// The instance gets the body after this time even if it has not answered 100.
		ExpectContinueTimeout: time.Second,
		// connection must find headers that are too large, because it reports them.
		MaxResponseHeaderBytes: 2 * http1.MaxResponseHeader,
		Protocols:              new(http.Protocols),
	}
}

func keepAlive() *http.HTTP2Config {
	return &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second}
}

func (t *transport) close() {
	t.here.close()
	t.toRegions.close()
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// dialError is the error of a request that could not connect.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// connectKey is the context key of the time that a dial may take.
type connectKey struct{}

// dialInstance connects to an instance. If the process has run out of descriptors or ports, dialInstance closes idle
// connections and tries again.
func (p *Proxy) dialInstance(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := dialBy(ctx, &net.Dialer{}, network, address)
	if err != nil && conns.Local(err) {
		p.closeIdle()
		return dialBy(ctx, &net.Dialer{}, network, address)
	}
	return conn, err
}

// dialBy is dialInstance with the dialer d, whose time limits it sets.
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

// errAnswered is the error when net/http asks for a request's body again after the answer.
var errAnswered = errors.New("the request was answered")

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	x := exchangeOf(req.Context())
	body, err := keepBody(req, x)
	if err != nil {
		return nil, err
	}
	c := &trip{t: t, req: req, x: x, body: body}
	defer c.dropBodies()
	if x.spec.HasPairs() {
		if err := c.readRequest(req.Context(), time.Now().Add(x.policy.QueueWait)); err != nil {
			return nil, err
		}
	}
	x.arrived = time.Now()
	want := x.wantedInstance(x.affinityKey(c))
	want.Request = c.request
	if _, err := x.driveToAnswer(c, t.metrics, &want, isIdempotentRequest(req)); err != nil {
		return nil, err
	}
	return c.res, nil
}

// trip carries a request through net/http.
type trip struct {
	t    *transport
	req  *http.Request
	x    *exchange
	body []byte
	// request is the request if it may go to a pair. Nil: it goes to one instance.
	request *pairing.Request
	// memory is how many bytes of pairMemory the trip holds.
	memory int64
	// res is the answer of an instance or of another region.
	res *http.Response
}

// fieldValues implements fields. It returns the values of the request for an instance, or the value with the app key.
func (c *trip) fieldValues(name string) []string {
	if strings.EqualFold(name, c.x.key.field) {
		return []string{c.x.key.value}
	}
	return c.req.Header.Values(name)
}

func (c *trip) awaitInstance(want *upstream.Want) (*upstream.Lease, error) {
	return c.acquireWithComments(c.req.Context(), want)
}

func (c *trip) attemptOn(lease *upstream.Lease) (a decide.Attempt, err error) {
	c.x.prefill = ""
	switch {
	case lease.Prefill != nil:
		return c.attemptPair(lease)
	case lease.Pairing != nil && c.request != nil && c.request.Unfit != pairing.Path:
		return c.attemptAlone(lease)
	}
	c.res, a, err = c.t.roundTrip(c.req, c.x, instance{Lease: lease}, c.body) //nolint:bodyclose // dropAnswer or ReverseProxy closes it
	return a, err
}

func (c *trip) asksModel() bool { return decide.AsksModel(c.req.Method, c.req.URL.Path) }

func (c *trip) modelKey() uint64 { return hashRequestedModel(c.req.URL.Path, c.body) }

func (c *trip) dropAnswer(*upstream.Lease) { _ = c.res.Body.Close() }

// canResend reports whether the request's body can be sent again.
func canResend(x *exchange, body []byte) bool {
	return body != nil || x.in == nil || !x.in.touched.Load()
}

// destination is an instance or another region, to which an attempt goes.
type destination interface {
	// resolveTarget returns the scheme and host of the URL to which a request is sent, and the transport that sends it.
	resolveTarget(*transport, *http.Request) (scheme, host string, through *http.Transport)
	// RecordOutcome records what the result says about the destination. End ends the attempt.
	judged
	End()
}

// instance is an instance of this region as a destination.
type instance struct {
	*upstream.Lease

	// held means that the lease does not end with the answer.
	held bool
}

// End ends the attempt.
func (i instance) End() {
	if !i.held {
		i.Lease.End()
	}
}

func (i instance) resolveTarget(t *transport, req *http.Request) (scheme, host string, through *http.Transport) {
	return "http", i.Address(), t.here.transportFor(req)
}

// isKept reports whether keepBody keeps the body.
func isKept(req *http.Request) bool { return req.ContentLength > 0 && req.ContentLength <= Replayable }

// keepBody reads a body that is small enough to be sent again. It returns nil if the request has no body, or if the
// body is streamed.
func keepBody(req *http.Request, x *exchange) ([]byte, error) {
	if x.in == nil || req.Body == nil || !isKept(req) {
		return nil, nil
	}
	// Reading the body made the server send 100 Continue to the client. So the instance need not send it.
	req.Header.Del("Expect")
	body := make([]byte, req.ContentLength)
	if _, err := io.ReadFull(req.Body, body); err != nil {
		return nil, fmt.Errorf("read the request's body: %w", err)
	}
	// The end is read, too, so that the server knows that the next request can follow on the connection.
	if _, err := req.Body.Read(make([]byte, 1)); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the request's body: %w", err)
	}
	return body, nil
}

// roundTrip sends the request to the destination. It calls at.End when the answer's body ends, or before it returns
// an error.
func (t *transport) roundTrip(req *http.Request, x *exchange, at destination, body []byte) (*http.Response, decide.Attempt, error) {
	ctx, cancel := context.WithCancelCause(context.WithValue(req.Context(), connectKey{}, x.policy.Connect))
	late := startWatch(x.policy.Response, func() { cancel(failTimeout) })
	if body == nil && x.in != nil {
		x.in.instance.Store(late)
	}
	var conn atomic.Pointer[connection]
	var before atomic.Int64
	u := *req.URL
	var through *http.Transport
	u.Scheme, u.Host, through = at.resolveTarget(t, req)
	interim := 0
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			c, ok := info.Conn.(*connection)
			if ok && through.Protocols.HTTP1() {
				c.beginRequest(ctx, info.Reused)
			}
			if secure, is := info.Conn.(*tls.Conn); is { // a TLS connection may have received bytes by now
				c, ok = secure.NetConn().(*connection)
			}
			if ok {
				before.Store(c.written.Load())
				conn.Store(c)
			}
		},
		Got1xxResponse: func(_ int, header textproto.MIMEHeader) error {
			dropHop(http.Header(header)) // before ReverseProxy's hook gets the header
			if interim++; interim > maxInterim {
				cancel(failBroken)
			}
			return nil // the result of ReverseProxy's hook counts
		},
	})
	out := req.WithContext(ctx)
	out.URL = &u
	var again atomic.Pointer[[]byte]
	if body != nil {
		again.Store(&body)
		out.Body = &sentBody{bytes.NewReader(body)}
		out.GetBody = func() (io.ReadCloser, error) {
			if body := again.Load(); body != nil {
				return &sentBody{bytes.NewReader(*body)}, nil
			}
			return nil, errAnswered
		}
	}
	res, err := through.RoundTrip(out)
	again.Store(nil)
	silent := late.endWatch()
	if err == nil {
		if err = whyUnfit(res); err != nil {
			_ = res.Body.Close()
		}
	}
	if err != nil {
		fault := faultOf(req, x, err, context.Cause(ctx), silent)
		cancel(nil)
		var failed decide.Failure
		failed, err = x.judgeFault(fault, at, err)
		at.End()
		c := conn.Load()
		return nil, decide.Attempt{
			Sent: failed != decide.Connect && c != nil && c.written.Load() > before.Load(), Over: req.Context().Err() != nil,
			Failure: failed, Resendable: canResend(x, body),
		}, err
	}
	x.firstByte = time.Now()
	answered := decide.Attempt{Status: res.StatusCode, Sent: true, Resendable: canResend(x, body)}
	at.RecordOutcome(decide.Health(res.StatusCode))
	if in, ok := at.(instance); ok && in.Observed() {
		observeReport(in.Lease, res)
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

// whyUnfit returns why an answer that net/http accepted cannot be passed on. For HTTP/1 without TLS, type connection
// has checked the answer before.
func whyUnfit(res *http.Response) error {
	if res.StatusCode < http.StatusContinue { // a ResponseWriter panics with such a status, for example 000
		return fmt.Errorf("the instance answered status %03d", res.StatusCode)
	}
	return whyTooLarge(res.Header)
}

// whyTooLarge returns why h, the header or trailers of an answer, is too large.
func whyTooLarge(h http.Header) error {
	fields := 0
	for _, values := range h {
		fields += len(values)
	}
	if fields > http1.MaxResponseFields {
		return http1.ErrTooLarge
	}
	return nil
}

// faultOf returns the fault of an attempt that failed with err. silent is how long the gateway waited for the answer
// to begin. 0: the answer has begun.
func faultOf(req *http.Request, x *exchange, err, cause error, silent time.Duration) decide.Fault {
	f := instanceFault(err)
	f.ClientGone = req.Context().Err() != nil && !errors.Is(context.Cause(req.Context()), failTotal)
	f.ClientBroke = x.in.whyCut() != nil
	f.TotalPassed, f.BodyAwaited, f.Silent = errors.Is(cause, failTotal), x.in.isAwaited(), silent
	f.TimedOut, f.Late = errors.Is(cause, failTimeout), decide.IsLate(silent, x.policy.Response)
	return f
}

// instanceFault returns what err says about an instance and the connection to it, for any transport.
func instanceFault(err error) decide.Fault {
	_, noConn := errors.AsType[*dialError](err)
	return decide.Fault{NoConnection: noConn, Local: isLocal(err), TooLarge: errors.Is(err, http1.ErrTooLarge)}
}

// isIdempotentRequest reports whether the request may be sent twice.
func isIdempotentRequest(req *http.Request) bool {
	return decide.Idempotent(req.Method, req.Header.Get("Idempotency-Key") != "", req.Header.Get("Upgrade") != "")
}

// responseBody ends the lease with the last byte of the answer.
type responseBody struct {
	io.ReadCloser

	res    *http.Response
	ctx    context.Context //nolint:containedctx // the attempt's context, which ends with the body
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
	// The limit for the instance does not count the time that the client takes.
	b.idle.Stop()
	if errors.Is(err, io.EOF) {
		if large := whyTooLarge(b.res.Trailer); large != nil {
			err = large
		}
	}
	if errors.Is(err, io.EOF) {
		if in, ok := b.at.(instance); ok && in.Observed() {
			observeEnd(in.Lease, b.res)
		}
		keepTrailers(b.res.Trailer)
	} else if err != nil {
		b.breakOff(err)
	}
	return n, err
}

func (b *responseBody) breakOff(err error) {
	b.x.failBegun(b.x.judgeFault(faultOf(b.req, b.x, err, context.Cause(b.ctx), 0), b.at, err))
}

// failureOf returns the failure that judgeFault wrapped in an error. Nil: the error has no failure, because the client
// went away.
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
