package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/decide"
	"github.com/windlass-run/windlass/apps/gateway/internal/pairing"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

// This file sends a request to a pair of instances. Package pairing makes the bodies of the two legs, package
// upstream chooses the pair, and package decide says what happens after a failed leg. The client gets the answer of
// the instance that decodes. The answer is passed on once the first byte of its body has come. Until then, another
// pair can be tried.

// maxPrefillAnswer limits the answer of a prefill server, in bytes. Block numbers of a million tokens fit.
const maxPrefillAnswer = 16 << 20

// readRequest reads the request if it may go to a pair. It ignores Content-Encoding, as engines do: a body that is
// JSON without decoding may have fields that only the gateway may set. It waits for memory until the given time at
// most.
func (c *trip) readRequest(ctx context.Context, until time.Time) error {
	req := c.req
	if !pairing.Takes(req.Method, req.URL.Path) {
		c.request = &pairing.Request{Unfit: pairing.Path}
		return nil
	}
	c.request = &pairing.Request{Unfit: pairing.NotJSON}
	if c.x.in == nil || req.Body == nil {
		return nil
	}
	if c.body != nil {
		if err := c.holdMemory(ctx, int64(len(c.body)), until); err != nil {
			return err
		}
		c.request = pairing.Read(c.body)
		return nil
	}
	if req.ContentLength > pairing.MaxBody {
		c.request.Unfit = pairing.Large
		return nil
	}
	req.Header.Del("Expect") // see keepBody
	// A body of unknown length is usually short. Memory for the largest body is taken only if the body is longer than
	// first.
	most, first := req.ContentLength, req.ContentLength
	if most < 0 {
		most, first = pairing.MaxBody, Replayable
	}
	if err := c.holdMemory(ctx, first, until); err != nil {
		return err
	}
	body, err := readUpTo(req.Body, first)
	if err == nil && int64(len(body)) > first && first < most {
		if err = c.holdMemory(ctx, most, until); err == nil {
			var rest []byte
			rest, err = readUpTo(req.Body, most-int64(len(body)))
			body = append(body, rest...)
		}
	}
	if err != nil {
		return fmt.Errorf("read the request's body: %w", err)
	}
	if len(body) > pairing.MaxBody {
		c.request.Unfit = pairing.Large
		req.Body = &rejoined{io.MultiReader(bytes.NewReader(body), req.Body), req.Body}
		return nil
	}
	if err := c.holdMemory(ctx, int64(len(body)), until); err != nil {
		return err
	}
	c.body, c.request = body, pairing.Read(body)
	return nil
}

// readUpTo reads n bytes, and one byte more if the reader has more.
func readUpTo(r io.Reader, n int64) ([]byte, error) { return io.ReadAll(io.LimitReader(r, n+1)) }

// rejoined is a body of which a part was read before.
type rejoined struct {
	io.Reader
	io.Closer
}

// attemptAlone sends a request for a completion to a decode server alone.
func (c *trip) attemptAlone(lease *upstream.Lease) (a decide.Attempt, err error) {
	if lease.Pairing.Refuses(lease.Alone) {
		lease.End()
		switch {
		case lease.Pairing.Engine == pairing.Unknown:
			return decide.Attempt{Over: true}, failPairEngine
		case lease.Alone == pairing.Large:
			return decide.Attempt{Over: true}, failPairBody
		case lease.Alone == pairing.NotJSON:
			return decide.Attempt{Over: true}, failPairJSON
		}
		return decide.Attempt{Over: true}, failPairEngine
	}
	c.t.metrics.countUnpaired(c.x, lease.Alone)
	req, body := c.req, c.body
	if c.request.HasGatewayFields() {
		body = c.request.Alone()
		req = withBody(req.Context(), req, body)
	}
	c.res, a, err = c.t.roundTrip(req, c.x, instance{Lease: lease}, body) //nolint:bodyclose // dropAnswer or ReverseProxy closes it
	return a, err
}

// withBody returns the request with another body of its own.
func withBody(ctx context.Context, req *http.Request, body []byte) *http.Request {
	out := req.Clone(ctx)
	out.ContentLength, out.TransferEncoding = int64(len(body)), nil
	return out
}

// pair is one attempt at a pair.
type pair struct {
	c      *trip
	decode *upstream.Lease
	// prefill is the lease of the instance that prefills. It ends when the cache was transferred, because the
	// instance must not stop before that. later is whether the lease ends after the attempt.
	prefill *upstream.Lease
	later   bool
	// stopDecode cancels the decode leg.
	stopDecode context.CancelCauseFunc
	// of is the exchange for the prefill leg. The client never sees that leg, so its failures are not the request's.
	of *exchange
}

// attemptPair sends the request to a pair.
func (c *trip) attemptPair(lease *upstream.Lease) (decide.Attempt, error) {
	x := c.x
	x.prefill = lease.Prefill.InstanceID()
	p := &pair{c: c, decode: lease, prefill: lease.Prefill, of: &exchange{id: x.id, start: x.start, host: x.host, route: x.route, spec: x.spec, policy: x.policy}}
	var a decide.Attempt
	var err error
	if lease.Pairing.Engine == pairing.NIXL {
		a, err = p.inTurn()
	} else {
		a, err = p.atOnce()
	}
	if !p.later {
		p.prefill.End()
	}
	a.Pair, a.Resendable = true, true
	return a, err
}

// legAnswer is the answer to a leg. res has the whole body of a prefill leg, or the first byte of a decode leg.
type legAnswer struct {
	res  *http.Response
	body []byte
	a    decide.Attempt
	err  error
}

// hasSucceeded reports whether the leg succeeded.
func (l *legAnswer) hasSucceeded() bool { return l.err == nil && l.a.Status < http.StatusBadRequest }

// inTurn sends vLLM's legs one after the other.
func (p *pair) inTurn() (decide.Attempt, error) {
	prefillCtx := newLegContext(p.c.req.Context())
	one := p.sendPrefill(prefillCtx, p.c.request.PrefillNIXL())
	prefillCtx.end(nil)
	var body []byte
	switch {
	case one.err == nil && one.a.Status >= http.StatusBadRequest && one.a.Status < http.StatusInternalServerError && one.a.Status != http.StatusTooManyRequests:
		// The decode server says what is wrong with the request, because the prefill server got a changed request.
		p.c.t.metrics.countUnpaired(p.c.x, pairing.NoPrefill)
		body = p.c.request.Alone()
	case one.hasSucceeded():
		var err error
		if body, err = p.c.request.DecodeNIXL(one.body); err != nil {
			p.decode.End()
			return decide.Attempt{Sent: true, Failure: decide.Broken, Leg: decide.Prefill}, fmt.Errorf("%w: %w", failBroken, err)
		}
	default:
		p.decode.End()
		return p.failedPrefill(&one)
	}
	return p.passDecode(p.sendDecode(p.c.req.Context(), body), true)
}

// failedPrefill returns the result of an attempt whose prefill leg failed. The client gets its answer if no other pair
// is tried.
func (p *pair) failedPrefill(l *legAnswer) (decide.Attempt, error) {
	l.a.Leg = decide.Prefill
	if l.err == nil {
		p.c.res = l.res
		p.c.res.Body = io.NopCloser(bytes.NewReader(l.body))
		p.c.x.instance = p.prefill.InstanceID()
	}
	return l.a, l.err
}

// atOnce sends SGLang's legs at the same time.
func (p *pair) atOnce() (decide.Attempt, error) {
	toPrefill, toDecode := p.c.request.SGLang(p.prefill.Address(), p.prefill.BootstrapPort, rand.Int64)
	prefillCtx := newLegContext(p.c.req.Context())
	decodeCtx, stopDecode := context.WithCancelCause(p.c.req.Context())
	p.stopDecode = stopDecode // the answer may go on after this attempt, and the end of the request ends it
	prefilled, decoded := make(chan legAnswer, 1), make(chan legAnswer, 1)
	go func() { prefilled <- p.sendPrefill(prefillCtx, toPrefill) }()
	go func() { decoded <- p.sendDecode(decodeCtx, toDecode) }()
	var one, two legAnswer
	select {
	case one = <-prefilled:
		prefillCtx.end(nil)
		if one.hasSucceeded() {
			return p.passDecode(<-decoded, true)
		}
		p.stopDecode(context.Canceled)
		two = <-decoded
	case two = <-decoded:
		if two.hasSucceeded() { // so the cache of the first prompt was transferred
			p.later = true
			prefillCtx.unlink() // the request may end before
			go p.endLater(p.c.req.Context(), prefillCtx, prefilled)
			return p.passDecode(two, true)
		}
		select {
		case one = <-prefilled: // if the prefill server has gone, its leg says so
		case <-time.After(soon):
			prefillCtx.end(context.Canceled)
			one = <-prefilled
			return p.passDecode(two, one.a.Sent)
		}
		prefillCtx.end(nil)
		if one.hasSucceeded() || two.err == nil && two.a.Status < http.StatusInternalServerError {
			return p.passDecode(two, one.a.Sent)
		}
	}
	two.dropAnswer()
	a, err := p.failedPrefill(&one)
	a.Sent = a.Sent || two.a.Sent
	if a.Status >= http.StatusInternalServerError {
		a.Leg = decide.Both // the transfer between the instances may have failed
	}
	return a, err
}

// endLater ends the prefill leg of a request whose answer has begun. If the request has several prompts, their caches are
// transferred while the answer goes on, so the leg may go on until shortly after the request.
func (p *pair) endLater(request context.Context, ctx *legContext, prefilled <-chan legAnswer) {
	select {
	case <-prefilled:
	case <-request.Done():
		select {
		case <-prefilled:
		case <-time.After(time.Second):
			ctx.end(context.Canceled)
			<-prefilled
		}
	}
	ctx.end(nil)
	p.prefill.End()
}

// passDecode returns the result of the decode leg. prefillSent is whether the prefill server may have got its leg. Then
// the attempt counts as a retry even if the decode server got nothing.
func (p *pair) passDecode(l legAnswer, prefillSent bool) (decide.Attempt, error) {
	p.c.res, l.a.Sent = l.res, l.a.Sent || prefillSent
	if l.a.Status >= http.StatusInternalServerError {
		l.a.Leg = decide.Both // the transfer between the instances may have failed
	}
	return l.a, l.err
}

// legContext is the context of a prefill leg. It ends with the request until it is unlinked. It has no values of the
// request, because one of them is a trace that passes interim answers on to the client.
type legContext struct {
	context.Context //nolint:containedctx // it is the context of one call

	unlink func() bool
	end    context.CancelCauseFunc
}

func newLegContext(of context.Context) *legContext {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &legContext{ctx, context.AfterFunc(of, func() { cancel(context.Cause(of)) }), cancel}
}

// sendPrefill sends the prefill leg, and reads all of its answer.
func (p *pair) sendPrefill(ctx context.Context, body []byte) (l legAnswer) {
	begun := time.Now()
	req := withBody(ctx, p.c.req, body)
	req.Header.Del("Accept-Encoding")                                                            // the gateway reads the answer
	l.res, l.a, l.err = p.c.t.roundTrip(req, p.of, instance{Lease: p.prefill, held: true}, body) //nolint:bodyclose // it is closed below
	if l.err == nil {
		l.res.Request = p.c.req // the client may get the answer
		l.body, l.err = io.ReadAll(io.LimitReader(l.res.Body, maxPrefillAnswer+1))
		_ = l.res.Body.Close()
		switch {
		case l.err != nil:
			l.a = brokenOff(ctx, p.of)
			l.err = p.of.wrapFailure(l.err)
		case len(l.body) > maxPrefillAnswer:
			l.a = decide.Attempt{Sent: true, Failure: decide.Broken}
			l.err = fmt.Errorf("%w: the answer of the prefill server is larger than %d bytes", failBroken, maxPrefillAnswer)
		}
	}
	p.c.t.metrics.countLeg(p.c.x, p.prefill, legEnd{decide.Prefill, l.statusCode(), l.err, time.Since(begun)})
	return l
}

// sendDecode sends the decode leg, and waits for the first byte of the answer's body.
func (p *pair) sendDecode(ctx context.Context, body []byte) (l legAnswer) {
	x := p.c.x
	begun := time.Now()
	l.res, l.a, l.err = p.c.t.roundTrip(withBody(ctx, p.c.req, body), x, instance{Lease: p.decode}, body) //nolint:bodyclose // drop or ReverseProxy closes it
	if l.err == nil {
		var first [1]byte
		b, limited := l.res.Body.(*responseBody)
		if limited {
			b.limit = x.policy.Response // the first token may take as long as an answer
		}
		n, err := io.ReadFull(l.res.Body, first[:])
		if limited {
			b.limit = x.policy.Idle
		}
		if err != nil && !errors.Is(err, io.EOF) {
			l.dropAnswer()
			l.res = nil
			l.a = brokenOff(ctx, x)
			l.err = x.wrapFailure(err)
			x.failure, x.cause = nil, nil // another pair may answer
		} else {
			l.res.Body = &rejoined{io.MultiReader(bytes.NewReader(first[:n]), l.res.Body), l.res.Body}
		}
	}
	p.c.t.metrics.countLeg(x, p.decode, legEnd{decide.Decode, l.statusCode(), l.err, time.Since(begun)})
	return l
}

// dropAnswer drops the answer, which ends the lease of a decode leg.
func (l *legAnswer) dropAnswer() {
	if l.res != nil {
		_ = l.res.Body.Close()
	}
}

// statusCode returns the status of the leg's answer, or 0 if there is none.
func (l *legAnswer) statusCode() int {
	if l.err != nil {
		return 0
	}
	return l.a.Status
}

// wrapFailure wraps err in the failure of an answer that broke off.
func (x *exchange) wrapFailure(err error) error {
	if x.failure == nil {
		return err // the client went away
	}
	return fmt.Errorf("%w: %w", x.failure, err)
}

// brokenOff returns the attempt of a leg whose answer broke off. x has the failure.
func brokenOff(ctx context.Context, x *exchange) decide.Attempt {
	a := decide.Attempt{Sent: true, Failure: decide.Broken, Over: ctx.Err() != nil}
	switch x.failure {
	case failTimeout:
		a.Failure = decide.Timeout
	case failTotal:
		a.Failure = decide.Total
	}
	return a
}
