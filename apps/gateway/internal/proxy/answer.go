package proxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/payload"
)

// answer is the way back to the client: it counts, and has a client that takes nothing
// cut off.
type answer struct {
	http.ResponseWriter

	p       *Proxy
	r       *http.Request
	x       *exchange
	control *http.ResponseController
	slow    time.Duration
	// streams: it is HTTP/2's.
	streams bool
	// until is when the connection's deadline is.
	until time.Time
}

// Unwrap lets an http.ResponseController find the writer below.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) WriteHeader(status int) {
	switch {
	case status < 200:
		a.Header().Del("Connection")
	case a.x.status > 0 && a.x.status < 200:
		a.p.say(a.Header(), a.r, a.x) // ReverseProxy cleared the header with the one before
	}
	if in := a.x.in; status >= 200 && in != nil && in.duplex && in.open() {
		a.Header().Set("Connection", "close") // what comes next on it is the rest
	}
	if a.x.status < 200 {
		a.x.status = status
	}
	if status < 200 && !a.r.ProtoAtLeast(1, 1) {
		return // HTTP/1.0 has none (RFC 9110, section 15.2)
	}
	if _, typed := a.Header()["Content-Type"]; !typed && status >= 200 {
		a.Header()["Content-Type"] = nil // net/http would guess one, which browsers go by
	}
	a.extend()
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	a.extend()
	if a.x.sent == 0 && strings.HasPrefix(a.Header().Get("Content-Type"), "text/event-stream") {
		a.x.firstToken = time.Now()
	}
	if a.x.payload != nil {
		a.x.payload.Answer.Write(p)
	}
	if a.x.instance != "" { // another region counts its own
		if a.x.sent == 0 {
			a.x.tail.begin(a.Header().Get("Content-Type"), a.Header().Get("Content-Encoding"))
		}
		a.x.tail.write(p)
	}
	n, err := a.ResponseWriter.Write(p)
	a.x.sent += int64(n)
	a.rest()
	return n, err
}

// Flush is found by type in places that do not ask a ResponseController.
func (a *answer) Flush() { _ = a.FlushError() }

// FlushError is what a ResponseController calls.
func (a *answer) FlushError() error {
	a.extend()
	defer a.rest()
	return a.control.Flush()
}

// extend the deadline. On HTTP/1 at most once in a quarter of it: tokens come by the
// thousand, and one that passes while nothing is written does nothing.
func (a *answer) extend() {
	if now := time.Now(); a.streams || a.until.Sub(now) < a.slow*3/4 {
		a.until = now.Add(a.slow)
		_ = a.control.SetWriteDeadline(a.until) // a writer that has none is a test's
	}
}

// rest: on HTTP/2 a deadline that passes ends the stream, also between two writes.
func (a *answer) rest() {
	if a.streams {
		_ = a.control.SetWriteDeadline(time.Time{})
	}
}

// requestBody is what the client sends. It is read by one at a time; whether it failed
// is asked from elsewhere.
type requestBody struct {
	body    io.ReadCloser
	control *http.ResponseController
	slow    time.Duration
	streams bool
	// touched: a part was read, so that it cannot be sent again.
	touched atomic.Bool
	// duplex: an answer may begin before it ends, on HTTP/1.
	duplex bool
	// reading is held by who reads.
	reading sync.Mutex
	mu      sync.Mutex
	err     error
	// whole: it was read to its end; let: the request is over, whatever was read, and deadlines
	// are no longer Read's to set.
	whole, let bool
	// payload keeps what is read, nil for nothing.
	payload *payload.Body
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	b.touched.Store(true)
	b.extend()
	n, err := b.body.Read(p)
	if b.payload != nil {
		b.payload.Write(p[:n])
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// One that passes while nobody reads ends an HTTP/2 stream; and after the end of the
	// body the server looks for the next request, or for the client's going away. After
	// an error it stays: the server tries to read the rest, and is not to wait for it.
	if !b.let && ((err == nil && b.streams) || errors.Is(err, io.EOF)) {
		_ = b.control.SetReadDeadline(time.Time{})
	}
	if errors.Is(err, io.EOF) {
		b.whole = true
	} else if err != nil && !errors.Is(err, http.ErrBodyReadAfterClose) {
		b.err = err
	}
	return n, err
}

// open tells whether there is more of it, or was until it failed.
func (b *requestBody) open() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.whole
}

// over is called before the handler of its request returns.
func (b *requestBody) over() {
	switch {
	case b.duplex:
		b.letGo()
	case b.streams:
		b.leave()
	}
}

// letGo ends a Read that waits for the client, when its request is over. The server then
// reads some of the rest, so that the client finds the answer before the connection is
// cut, and is to have a deadline: it takes away one that passes under a Read.
func (b *requestBody) letGo() {
	b.mu.Lock()
	b.let = true
	over := b.whole || b.err != nil
	if !over {
		_ = b.control.SetReadDeadline(time.Now())
	}
	b.mu.Unlock()
	if over {
		return
	}
	b.reading.Lock()
	defer b.reading.Unlock()
	_ = b.control.SetReadDeadline(time.Now().Add(b.slow))
}

// leave is the end of a request of HTTP/2: its handler returns, and a transport may yet be reading
// for an instance that wants no more. The stream's deadlines are gone then, and asking for one would
// end the process.
func (b *requestBody) leave() {
	b.mu.Lock()
	b.let = true
	b.mu.Unlock()
}

// extend the time within which the client has to send something.
func (b *requestBody) extend() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.let {
		return
	}
	_ = b.control.SetReadDeadline(time.Now().Add(b.slow)) // a writer that has none is a test's
}

func (b *requestBody) Close() error { return b.body.Close() }

// failed returns why it did not arrive whole.
func (b *requestBody) failed() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// seen is what of a request is logged as it came.
type seen struct{ method, path, remote, proto, trace string }

// finish counts and logs a request that has ended, however. kinds tells what is logged of its
// payload beside.
func (p *Proxy) finish(ctx context.Context, x *exchange, r *seen, kinds func(*payload.Facts)) {
	took := time.Since(x.start)
	x.used, _ = x.tail.usage()
	p.metrics.ended(x, took)
	if x.payload != nil {
		facts := payload.Facts{
			Time: x.start, RequestID: x.id, App: x.spec.AppName, DeploymentID: x.deployment, Version: x.version,
			Method: r.method, Path: r.path, Status: x.status,
		}
		kinds(&facts)
		p.cfg.Payloads.End(x.payload, facts)
	}
	every := max(p.cfg.AccessEvery, 1)
	if x.failure != nil && x.failure.status >= 500 && x.cause != nil {
		p.cfg.Log.WarnContext(ctx, "request failed", "request_id", x.id, "host", x.host,
			"instance_id", x.instance, "code", x.failure.code, "error", x.cause)
	}
	if p.cfg.Access == nil || (p.counted.Add(1)%every != 0 && x.failure == nil) {
		return
	}
	attrs := make([]slog.Attr, 0, 20)
	attrs = append(attrs,
		slog.String("request_id", x.id), slog.String("remote", r.remote),
		slog.String("method", r.method), slog.String("host", x.host), slog.String("path", r.path), slog.String("proto", r.proto),
		slog.Int("status", x.status), slog.Int64("bytes", x.sent), slog.Float64("ms", millis(took)),
	)
	if x.route != nil {
		attrs = append(attrs, slog.String("app", x.spec.AppName), slog.Int64("generation", x.spec.Generation))
	}
	if x.instance != "" {
		attrs = append(attrs, slog.String("deployment_id", x.deployment), slog.Int("version", int(x.version)),
			slog.String("instance_id", x.instance), slog.Int("attempts", x.attempts))
	}
	if x.key != "" {
		attrs = append(attrs, slog.String("api_key", x.key))
	}
	if x.crossed != "" {
		attrs = append(attrs, slog.String("handed_to", x.crossed))
	}
	if x.handed != "" {
		attrs = append(attrs, slog.String("handed_over", x.handed))
	}
	if !x.firstByte.IsZero() {
		attrs = append(attrs, slog.Float64("first_byte_ms", millis(x.firstByte.Sub(x.start))))
	}
	if !x.firstToken.IsZero() {
		attrs = append(attrs, slog.Float64("first_token_ms", millis(x.firstToken.Sub(x.start))))
	}
	if x.used != (usage{}) {
		attrs = append(attrs, slog.Uint64("prompt_tokens", x.used.Prompt), slog.Uint64("completion_tokens", x.used.Completion))
	}
	if x.grpcCode != "" {
		attrs = append(attrs, slog.String("grpc_status", x.grpcCode))
	}
	if r.trace != "" {
		attrs = append(attrs, slog.String("traceparent", r.trace))
	}
	if x.failure != nil {
		attrs = append(attrs, slog.String("code", x.failure.code))
	}
	p.cfg.Access.LogAttrs(ctx, slog.LevelInfo, "request", attrs...)
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// buffers are what bodies are copied through: 32 KiB, as io.Copy has them.
type buffers struct{ pool sync.Pool }

func newBuffers() *buffers {
	return &buffers{pool: sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}}
}

func (b *buffers) Get() []byte { return *b.pool.Get().(*[]byte) }

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
