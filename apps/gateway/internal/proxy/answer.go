package proxy

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/payload"
)

// answer writes the answer to the client. It counts the bytes that the client takes, and cuts off a client that
// takes none.
type answer struct {
	http.ResponseWriter

	p       *Proxy
	r       *http.Request
	x       *exchange
	control *http.ResponseController
	slow    time.Duration
	// streams is whether the answer is on an HTTP/2 stream.
	streams bool
	// until is the connection's deadline.
	until time.Time
	// beat is set once comments were sent before the answer; see type beat.
	beat *beat
}

// Unwrap lets an http.ResponseController find the writer below.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) WriteHeader(status int) {
	if a.beat != nil {
		a.beatHeader(status)
		return
	}
	switch {
	case status < 200:
		a.Header().Del("Connection")
	case a.x.status > 0 && a.x.status < 200:
		a.p.setHeaders(a.Header(), a.r, a.x) // ReverseProxy cleared the header after an interim answer
	}
	if in := a.x.in; status >= 200 && in != nil && in.duplex && in.isOpen() {
		a.Header().Set("Connection", "close") // the next bytes on the connection are the rest of the request
	}
	if a.x.status < 200 {
		a.x.status = status
	}
	if status < 200 && !a.r.ProtoAtLeast(1, 1) {
		return // HTTP/1.0 has no interim answers (RFC 9110, section 15.2)
	}
	if _, typed := a.Header()["Content-Type"]; !typed && status >= 200 {
		a.Header()["Content-Type"] = nil // net/http would guess one, and browsers rely on it
	}
	if in := a.x.in; in != nil && status >= 200 {
		in.free.Store(true)
	}
	a.extendDeadline(0)
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	limit := a.extendDeadline(len(p))
	if a.x.sent == 0 {
		a.x.beginContent(a.Header().Get("Content-Type"), a.Header().Get("Content-Encoding"))
	}
	a.x.countContent(p)
	begun := time.Now()
	var n int
	var err error
	if a.beat == nil {
		n, err = a.ResponseWriter.Write(p)
	} else if _, err = a.ResponseWriter.Write(a.beatContent(p)); err == nil {
		n = len(p)
	}
	a.x.sent -= int64(len(p) - n)
	a.countTaken(n, time.Since(begun), limit, err)
	a.restDeadline()
	return n, err
}

// countTaken counts the n bytes that the client took of the answer. It also notices a stream that ended with its
// deadline, because the error of that stream does not say so.
func (a *answer) countTaken(n int, waited, limit time.Duration, err error) {
	a.x.answerMu.Lock()
	defer a.x.answerMu.Unlock()
	a.x.answerPace.Moved(n, waited)
	if err != nil && waited >= limit {
		err = errors.Join(os.ErrDeadlineExceeded, err)
	}
	a.x.notTaken(err)
}

// Hijack implements http.Hijacker.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := a.control.Hijack()
	if err == nil {
		a.x.noteHijack(conn)
	}
	return conn, rw, err
}

// Flush is for callers that look for an http.Flusher instead of a ResponseController.
func (a *answer) Flush() { _ = a.FlushError() }

// FlushError is called by a ResponseController.
func (a *answer) FlushError() error {
	limit := a.extendDeadline(0)
	defer a.restDeadline()
	begun := time.Now()
	err := a.control.Flush()
	a.countTaken(0, time.Since(begun), limit, err)
	return err
}

// extendDeadline moves the deadline on for n bytes, and returns how long to wait for the client. On HTTP/1 it
// moves the deadline at most once in a quarter of that time, because an answer may have thousands of tokens. On
// HTTP/1 a deadline that passes while nothing is written has no effect.
func (a *answer) extendDeadline(n int) time.Duration {
	limit := a.x.answerPace.Left(n, a.slow)
	now := time.Now()
	if left := a.until.Sub(now); a.streams || left < limit*3/4 || left > limit {
		a.until = now.Add(limit)
		_ = a.control.SetWriteDeadline(a.until) // only writers in tests do not support deadlines
	}
	return limit
}

// restDeadline removes the deadline between two writes, because on HTTP/2 a deadline that passes between them
// ends the stream.
func (a *answer) restDeadline() {
	if a.streams {
		_ = a.control.SetWriteDeadline(time.Time{})
	}
}

// beginContent begins the content of an answer with this Content-Type and Content-Encoding.
func (x *exchange) beginContent(kind, coded string) {
	x.streams = strings.HasPrefix(kind, "text/event-stream")
	if x.handedTo == "" { // another region counts the tokens of its answers
		x.tail.beginContent(kind, coded)
	}
}

// countContent counts content of an answer before it is written to the client.
func (x *exchange) countContent(p []byte) {
	if len(p) == 0 {
		return
	}
	if x.streams && x.sent == 0 {
		x.firstToken = time.Now()
	}
	if x.payload != nil {
		x.payload.Answer.Write(p)
	}
	x.tail.write(p)
	x.sent += int64(len(p))
}

// notTaken records the failure if err says that the client did not take the answer in time.
func (x *exchange) notTaken(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) && x.failure == nil {
		x.failure, x.cause = failSlowAnswer, err
	}
}

// seen has the parts of a request that are logged unchanged.
type seen struct{ method, path, remote, proto, trace string }

// finishExchange counts and logs a request that has ended. kinds adds facts to the log of its payload.
func (p *Proxy) finishExchange(ctx context.Context, x *exchange, r *seen, kinds func(*payload.Facts)) {
	p.countExchange(x)
	if x.payload != nil {
		facts := payload.Facts{
			Time: x.start, RequestID: x.id, App: x.spec.AppName, DeploymentID: x.deployment, Version: x.version,
			Method: r.method, Path: r.path, Status: x.status,
		}
		kinds(&facts)
		p.cfg.Payloads.End(x.payload, facts)
	}
	p.writeLines(ctx, x, r, p.logLines(x))
}

// countExchange adds a request that has ended to the metrics.
func (p *Proxy) countExchange(x *exchange) {
	x.took = time.Since(x.start)
	x.used, _ = x.tail.lastUsage()
	p.metrics.countEnd(x, x.took)
}

// lines says which logs get a line about a request.
type lines struct{ failure, access bool }

// logLines returns the log lines of a request that was counted. It is called once for each request.
func (p *Proxy) logLines(x *exchange) lines {
	every := max(p.cfg.AccessEvery, 1)
	return lines{
		failure: x.failure != nil && x.failure.status >= 500 && x.cause != nil,
		access:  p.cfg.Access != nil && (p.counted.Add(1)%every == 0 || x.failure != nil),
	}
}

// writeLines writes the log lines. It may block.
func (p *Proxy) writeLines(ctx context.Context, x *exchange, r *seen, to lines) {
	if to.failure {
		p.cfg.Log.WarnContext(ctx, "request failed", "request_id", x.id, "host", x.host,
			"instance_id", x.instance, "code", x.failure.code, "error", x.cause)
	}
	if !to.access {
		return
	}
	attrs := make([]slog.Attr, 0, 20)
	attrs = append(attrs,
		slog.String("request_id", x.id), slog.String("remote", r.remote),
		slog.String("method", r.method), slog.String("host", x.host), slog.String("path", r.path), slog.String("proto", r.proto),
		slog.Int("status", x.status), slog.Int64("bytes", x.sent), slog.Float64("ms", inMillis(x.took)),
	)
	if x.route != nil {
		attrs = append(attrs, slog.String("app", x.spec.AppName), slog.Int64("generation", x.spec.Generation))
	}
	if x.instance != "" {
		attrs = append(attrs, slog.String("deployment_id", x.deployment), slog.Int("version", int(x.version)),
			slog.String("instance_id", x.instance), slog.Int("attempts", x.attempts))
	}
	if x.key.field != "" {
		attrs = append(attrs, slog.String("api_key", x.key.name))
	}
	if x.handedTo != "" {
		attrs = append(attrs, slog.String("handed_to", x.handedTo))
	}
	if x.handedOver != "" {
		attrs = append(attrs, slog.String("handed_over", x.handedOver))
	}
	if x.prefill != "" {
		attrs = append(attrs, slog.String("prefill_instance_id", x.prefill))
	}
	if x.held > 0 {
		attrs = append(attrs, slog.Float64("held_ms", inMillis(x.held)))
	}
	if !x.firstByte.IsZero() {
		attrs = append(attrs, slog.Float64("first_byte_ms", inMillis(x.firstByte.Sub(x.start))))
	}
	if !x.firstToken.IsZero() {
		attrs = append(attrs, slog.Float64("first_token_ms", inMillis(x.firstToken.Sub(x.start))))
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

func inMillis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// buffers are used to copy bodies. They have 32 KiB, as in io.Copy.
type buffers struct{ pool sync.Pool }

func newBuffers() *buffers {
	return &buffers{pool: sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}}
}

func (b *buffers) Get() []byte { return *b.pool.Get().(*[]byte) }

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
