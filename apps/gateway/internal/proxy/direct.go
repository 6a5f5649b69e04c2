package proxy

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/balance"
	"github.com/windlass-run/windlass/apps/gateway/internal/decide"
	"github.com/windlass-run/windlass/apps/gateway/internal/engine"
	"github.com/windlass-run/windlass/apps/gateway/internal/http1"
	"github.com/windlass-run/windlass/apps/gateway/internal/pace"
	"github.com/windlass-run/windlass/apps/gateway/internal/pairing"
	"github.com/windlass-run/windlass/apps/gateway/internal/table"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

// soon is how long the gateway waits for an answer before it watches whether the client goes away. Most answers
// begin before that, so a client that has closed only its half of the connection still gets them.
const soon = 20 * time.Millisecond

// direct is the short way for the requests of one connection, one after the other.
type direct struct {
	p *Proxy
	c *engine.Conn
	r *http1.Request
	x exchange
	// trusted is whether the client is a proxy that may name the original client.
	trusted bool
	// name is the host as the last request stated it, and host is the result of table.Host for it.
	name, host string

	// fields and body belong to the request.
	fields requestFields
	body   []byte
	// out is the buffer for writing, and in the buffer for reading an answer.
	out    []byte
	in     *[]byte
	answer http1.Response
	chunks http1.Chunks

	// ctx is the context of the connection while it has a request. want says which instance the request needs.
	ctx  context.Context //nolint:containedctx // it ends with the request
	want upstream.Want
	// got is the result of the last attempt.
	got got

	// gone is whether the client went away. conn is the connection to the instance whose answer is awaited.
	gone atomic.Bool
	conn atomic.Pointer[engine.Socket]
	stop context.CancelCauseFunc
	// late is when the current wait times out, and end is when the request times out. armed is conn's deadline. It
	// is not moved for each read, so it may be before late, but must not be after late.
	late, end, armed time.Time
}

// Handle implements engine.Handler. It is ServeHTTP for requests that come the short way, and leaves all
// other requests to ServeHTTP.
func (p *Proxy) Handle(ctx context.Context, c *engine.Conn, r *http1.Request, body []byte) engine.Outcome {
	d, ok := c.Scratch.(*direct)
	if !ok {
		d = &direct{p: p, c: c, trusted: p.isTrusted(c.Remote())}
		c.Scratch = d
	}
	d.r, d.body = r, body
	now := time.Now()
	if string(r.Host) != d.name {
		d.name = string(r.Host)
		d.host = table.Host(d.name)
	}
	route := p.cfg.Table.Lookup(d.host)
	if route == nil {
		return engine.Other
	}
	spec := route.Now()
	if spec == nil || spec.Policy.CORS != nil || spec.Policy.Payload != nil || r.ContentLength > spec.Policy.MaxBody {
		return engine.Other
	}
	// Only the long way sends a request to two instances. It decodes the escapes in a path, as instances do.
	if spec.HasPairs() && (pairing.Takes(string(r.Method), string(r.Path)) || bytes.IndexByte(r.Path, '%') >= 0) {
		return engine.Other
	}
	kept := d.x.tail.kept
	d.x = exchange{start: now, arrived: now, host: d.host, route: route, spec: spec, policy: &spec.Policy, answerPace: pace.Of(p.cfg.Answers)}
	d.x.tail.kept = kept[:0] // the buffer is used again, without the bytes of the answer before
	if !d.readFields() || spec.NeedsKey(d.host) && !d.x.admitsKey(d) || len(spec.ClosedPaths) > 0 && isClosed(string(r.Path), spec.ClosedPaths) {
		return engine.Other
	}
	d.x.id = requestID(string(d.fields.id), now)
	c.Begin()
	p.underWay.Add(1)
	defer p.underWay.Add(-1)
	defer d.endRequest(ctx)
	p.countLoad(&d.x)
	return d.serveExchange(ctx)
}

// endRequest releases everything that the request holds, and counts and logs the request.
func (d *direct) endRequest(ctx context.Context) {
	d.c.Unwatch()
	if d.stop != nil {
		d.stop(nil)
		d.stop = nil
	}
	d.gone.Store(false)
	d.ctx, d.got = nil, got{}
	if d.in != nil {
		d.p.answers.Put(d.in)
		d.in = nil
	}
	if cap(d.out) > keptOut {
		d.out = nil
	}
	if d.x.passed {
		d.x.load.End()
		return // the long way counts the request
	}
	d.p.countExchange(&d.x)
	lines := d.p.logLines(&d.x)
	if !lines.failure && !lines.access {
		return
	}
	r := seen{method: string(d.r.Method), path: string(d.r.Path), remote: d.c.Remote(), proto: "HTTP/1.1", trace: string(d.fields.trace)}
	d.c.Blocking(func() { d.p.writeLines(ctx, &d.x, &r, lines) })
}

// keptOut is the largest buffer for writing that a connection keeps between requests, in bytes.
const keptOut = 16 << 10

// serveExchange runs an exchange whose request has arrived whole, so that all of it can be sent again.
func (d *direct) serveExchange(ctx context.Context) engine.Outcome {
	x := &d.x
	d.ctx, d.end = ctx, time.Time{}
	if x.policy.Total > 0 {
		d.end = x.start.Add(x.policy.Total)
	}
	d.want = x.wantedInstance(x.affinityKey(d))
	lease, err := x.driveToAnswer(d, d.p.metrics, &d.want, d.isIdempotent())
	switch {
	case err != nil:
		return d.answerFailure(ctx, err)
	case lease == nil:
		x.passed = true
		return engine.Other
	}
	return d.passAnswer(lease)
}

// awaitCrossRegion implements carrier. It leaves the request to the long way, which can hand it over to other
// regions. A gateway that is stopping gives net/http no more connections.
func (d *direct) awaitCrossRegion(want *upstream.Want, why *upstream.Refused) (*upstream.Lease, error) {
	switch {
	case why.Reason == upstream.Held && why.Full:
		return nil, why // the request has no place in a queue
	case d.p.leaving.Load() || why.Reason == upstream.Held: // see leavesHeld
		return d.awaitInstance(want)
	}
	return nil, nil //nolint:nilnil // see carrier
}

// awaitInstance implements carrier.
func (d *direct) awaitInstance(want *upstream.Want) (lease *upstream.Lease, err error) {
	waiting, stop := context.WithCancelCause(d.ctx)
	if !d.end.IsZero() {
		var cancel context.CancelFunc
		waiting, cancel = context.WithDeadlineCause(waiting, d.end, failTotal)
		defer cancel()
	}
	d.watchClient(stop)
	d.c.Blocking(func() { lease, err = d.x.route.Acquire(waiting, want) })
	return lease, err
}

// attemptOn implements carrier. The answer is in d.got and d.answer.
func (d *direct) attemptOn(lease *upstream.Lease) (decide.Attempt, error) {
	x := &d.x
	begun := time.Now() // this may be long after the request's start, because the request may have waited
	d.limitWait(begun.Add(x.policy.Response))
	g := d.sendTo(lease, begun)
	a := decide.Attempt{Status: d.answer.Status, Sent: g.sent, Resendable: true}
	if err := g.err; err != nil {
		if g.conn != nil {
			_ = g.conn.Close() // the rest of an answer may still arrive on the connection
			g.conn = nil
		}
		d.conn.Store(nil)
		a.Status = 0
		a.Failure, err = x.judgeFault(d.attemptFault(err, time.Since(begun)), lease, err)
		a.Over = d.gone.Load() || d.isExpired()
		lease.End()
		return a, err
	}
	d.got = g
	lease.RecordOutcome(decide.Health(d.answer.Status))
	if lease.Observed() {
		d.answer.Fields = takeReport(lease, d.answer.Fields, decide.Work(d.answer.Status) == balance.Failed)
	}
	return a, nil
}

// asksModel implements carrier.
func (d *direct) asksModel() bool { return decide.AsksModel(string(d.r.Method), string(d.r.Path)) }

// modelKey implements carrier.
func (d *direct) modelKey() uint64 { return hashRequestedModel(string(d.r.Path), d.body) }

// dropAnswer implements carrier.
func (d *direct) dropAnswer(lease *upstream.Lease) {
	_ = d.got.conn.Close() // that drops the rest of the answer
	lease.End()
}

// watchClient watches the client until the request ends, and calls stop when the client has gone away.
func (d *direct) watchClient(stop context.CancelCauseFunc) {
	if stop != nil {
		d.c.Unwatch()
		if d.stop != nil {
			d.stop(nil)
		}
		d.stop = stop
	}
	d.c.Watch(func() {
		d.gone.Store(true)
		if d.stop != nil {
			d.stop(context.Canceled)
		}
		if conn := d.conn.Load(); conn != nil {
			_ = conn.SetReadDeadline(time.Unix(1, 0)) // it fails only for a closed connection, which needs no deadline
		}
	})
}

// got is the result of an attempt. The answer's header is in direct.answer.
type got struct {
	conn *engine.Socket
	// rest is the part of the content that was read with the header.
	rest []byte
	// whole is whether the instance got the whole request.
	whole bool
	// sent is whether the instance may have got a part of the request.
	sent bool
	err  error
}

// sendTo sends the request to an instance, on an idle connection or on a new one.
func (d *direct) sendTo(lease *upstream.Lease, begun time.Time) (g got) {
	for fresh := false; ; {
		g = got{}
		if !fresh {
			g.conn = d.p.pool.Get(lease.Address(), begun)
		}
		if fresh = g.conn == nil; fresh {
			if g.conn, g.err = d.connectTo(lease.Address()); g.err != nil {
				return g
			}
		}
		d.c.Adopt(g.conn)
		d.conn.Store(g.conn)
		if g.err = d.armDeadline(g.conn, begun.Add(soon)); g.err == nil {
			d.askInstance(&g, begun)
		}
		if g.err == nil || fresh || d.gone.Load() {
			return g
		}
		if g.sent {
			// The instance may have closed the idle connection just now, so a new connection is tried. But a
			// request that is not idempotent may have been read, and is not sent again.
			if !d.isIdempotent() || timedOut(g.err) || len(g.rest) > 0 {
				return g
			}
			fresh = true
		}
		_ = g.conn.Close() // the connection failed, and the next round uses another one
	}
}

func (d *direct) connectTo(address string) (*engine.Socket, error) {
	limit := d.x.policy.Connect
	if !d.end.IsZero() {
		limit = min(limit, time.Until(d.end))
		if limit <= 0 {
			return nil, failTotal
		}
	}
	return d.p.connectTo(d.ctx, d.c, address, limit)
}

// askInstance writes the request and reads the header of its answer.
func (d *direct) askInstance(g *got, begun time.Time) {
	d.appendRequest()
	switch {
	case d.gone.Load():
		g.err = context.Canceled
		return
	case !g.conn.Quiet(!d.isIdempotent()): // a request that cannot be sent again must not use a connection that just ended
		g.err = errUnfit
		return
	}
	n, err := g.conn.Write(d.out, max(d.late.Sub(begun), time.Millisecond))
	if g.sent, g.whole = n > 0, n == len(d.out); n == 0 {
		g.err = err
		return
	}
	// A write error is ignored here: an instance may answer before it has the whole request, and then close.
	if d.in == nil {
		d.in = d.p.answers.Get()
	}
	// head[begin:filled] is the header that is being read. Interim answers before it stay in the buffer until
	// there is no room, because moving the header after each of them would take quadratic time.
	begin, filled, interim := 0, 0, 0
	d.answer.Reset()
	for {
		head := (*d.in)[answerRoom : len(*d.in)-answerTail]
		if filled == len(head) {
			head = d.growRoom(begin)
			begin, filled = 0, filled-begin
			d.answer.Reset() // the buffer with the answer's header was moved
		}
		n, err := d.readNext(g.conn, head[filled:])
		if err != nil {
			g.rest, g.err = head[begin:filled], err
			return
		}
		for filled += n; ; {
			n, err := d.answer.Parse(head[begin:filled])
			if err != nil {
				g.rest, g.err = head[begin:filled], err
				return
			}
			if n == 0 {
				break
			}
			if d.answer.Status >= 200 {
				g.rest = head[begin+n : filled]
				d.x.firstByte = time.Now()
				return
			}
			if interim++; interim > maxInterim || d.answer.Status == http.StatusSwitchingProtocols {
				g.rest, g.err = head[begin:filled], errInterim
				return
			}
			if g.err = d.passInterim(); g.err != nil {
				d.gone.Store(true) // the client did not take the interim answer
				return
			}
			begin += n
			d.answer.Reset()
		}
	}
}

// growRoom makes room after the bytes of an answer that were read. The bytes before begin are no longer needed.
func (d *direct) growRoom(begin int) (head []byte) {
	head = (*d.in)[answerRoom : len(*d.in)-answerTail]
	if begin > 0 {
		copy(head, head[begin:])
		return head
	}
	larger := make([]byte, 2*len(*d.in))
	copy(larger[answerRoom:], head)
	d.p.answers.Put(d.in)
	d.in = &larger
	return larger[answerRoom : len(larger)-answerTail]
}

// errUnfit means that nothing was sent.
var errUnfit = errors.New("the connection to the instance has ended, or bytes came on it before a request was sent")

var errInterim = errors.New("the instance sent too many interim answers (1xx), or switched protocols although the request did not ask for it")

// readNext reads from an instance until d.late at most. After soon it also watches the client.
func (d *direct) readNext(conn *engine.Socket, p []byte) (int, error) {
	for {
		n, err := conn.Read(p)
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if err := d.whyOverdue(conn); err != nil {
			return 0, err
		}
	}
}

// whyOverdue returns the error of a deadline that has passed. It returns nil if the wait may go on until a later
// deadline.
func (d *direct) whyOverdue(conn *engine.Socket) error {
	if !d.gone.Load() {
		if d.isExpired() {
			return failTotal
		}
		if !time.Now().Before(d.late) {
			return failTimeout
		}
		d.watchClient(nil)
		if err := d.armDeadline(conn, d.late); err != nil {
			return err
		}
	}
	if d.gone.Load() { // the client may have gone just before the deadline was set again
		return context.Canceled
	}
	return nil
}

// armDeadline sets the deadline of reads.
func (d *direct) armDeadline(conn *engine.Socket, at time.Time) error {
	d.armed = at
	return conn.SetReadDeadline(at)
}

// limitWait sets the time at which the next wait ends.
func (d *direct) limitWait(at time.Time) {
	if d.late = at; !d.end.IsZero() && d.end.Before(at) {
		d.late = d.end
	}
}

// isExpired reports whether the time for the whole request has passed.
func (d *direct) isExpired() bool { return !d.end.IsZero() && !time.Now().Before(d.end) }

// attemptFault returns the fault of an attempt that failed with err. silent is how long the gateway waited for the
// answer to begin. 0: the answer has begun.
func (d *direct) attemptFault(err error, silent time.Duration) decide.Fault {
	f := instanceFault(err)
	f.ClientGone, f.TotalPassed, f.Silent = d.gone.Load(), d.isExpired(), silent
	f.TimedOut, f.Late = errors.Is(err, failTimeout), decide.IsLate(time.Since(d.late), 0)
	return f
}

// answerFailure answers with a failure of the gateway.
func (d *direct) answerFailure(ctx context.Context, err error) engine.Outcome {
	x := &d.x
	waiting := ctx
	if d.gone.Load() {
		gone, cancel := context.WithCancel(ctx)
		cancel()
		waiting = gone
	}
	x.failure, x.cause = classifyError(waiting, x, err)
	x.status = x.failure.status
	x.absolveInstance()
	if x.failure == failGone {
		return engine.Cut
	}
	closing := d.closesAfter()
	fields, body := x.failure.fieldsAndBody()
	d.out = append(d.out[:0], "HTTP/1.1 "...)
	d.out = strconv.AppendInt(d.out, int64(x.status), 10)
	d.out = append(append(append(d.out, ' '), http.StatusText(x.status)...), "\r\n"...)
	for _, f := range fields {
		d.out = appendField(d.out, f[0], f[1])
	}
	d.appendOwnFields(closing, false)
	if string(d.r.Method) != http.MethodHead {
		d.out = append(d.out, body...)
		x.sent = int64(len(body))
	}
	return d.outcomeOf(d.writeOut(d.out), closing)
}

// closesAfter reports whether the connection ends with the answer.
func (d *direct) closesAfter() bool { return d.r.Close || d.p.leaving.Load() }

func (d *direct) outcomeOf(err error, closing bool) engine.Outcome {
	switch {
	case err != nil:
		return engine.Cut
	case closing:
		return engine.End
	}
	return engine.Next
}

func (d *direct) writeOut(p []byte) error {
	_, err := d.c.WritePaced(p, d.p.cfg.SlowClient, &d.x.answerPace)
	d.x.notTaken(err)
	return err
}
