package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/pace"
	"github.com/windlass-run/windlass/apps/gateway/internal/payload"
)

// requestBody is the body that the client sends. One goroutine reads it at a time. Other goroutines may ask
// whether reading failed.
type requestBody struct {
	body    io.ReadCloser
	control *http.ResponseController
	slow    time.Duration
	streams bool
	// touched is whether a part was read, so that the body cannot be sent again.
	touched atomic.Bool
	// duplex is whether the answer may begin before the body ends, on HTTP/1.
	duplex bool
	// reading is held by the goroutine that reads.
	reading sync.Mutex
	mu      sync.Mutex
	err     error
	// whole is whether the body was read to its end. let is whether the request has ended, even if the body
	// has not. Then Read sets no deadlines any more.
	whole, let bool
	// payload keeps the read bytes. Nil: they are not kept.
	payload *payload.Body
	// pace belongs to the goroutine that reads. While it waits for the client, instance is stopped.
	pace     pace.Pace
	instance atomic.Pointer[watch]
	waiting  atomic.Bool
	// free is whether the client may be silent between two parts, because it reacts to the answer: the answer
	// has begun, or the request is gRPC.
	free atomic.Bool
}

func newRequestBody(r *http.Request, x *exchange, slow time.Duration, least pace.Least) *requestBody {
	b := &requestBody{body: r.Body, control: x.control, slow: slow, streams: r.ProtoMajor > 1, pace: pace.Of(least)}
	b.free.Store(x.grpc)
	return b
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	b.touched.Store(true)
	b.extendDeadline()
	n, err := b.readFromClient(p)
	if b.payload != nil {
		b.payload.Write(p[:n])
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// A deadline that passes between two Reads would end an HTTP/2 stream. After the end of the
	// body the server waits for the next request, or for the client to go away. So the deadline is
	// cleared in both cases. After an error the deadline stays, because the server tries to read the
	// rest of the body and must not wait for it.
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

// readFromClient reads a part of the body. The client's pace counts the time until the part arrives.
func (b *requestBody) readFromClient(p []byte) (int, error) {
	if w := b.instance.Load(); w != nil {
		w.pauseWatch()
		defer w.resumeWatch()
	}
	b.waiting.Store(true)
	defer b.waiting.Store(false)
	begun := time.Now()
	n, err := b.body.Read(p)
	b.pace.Moved(n, time.Since(begun))
	return n, err
}

// isAwaited reports whether a read waits for the client.
func (b *requestBody) isAwaited() bool { return b != nil && b.waiting.Load() }

// isOpen reports whether more of the body may come, or could have come before it failed.
func (b *requestBody) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.whole
}

// endWithHandler is called before the handler of the request returns.
func (b *requestBody) endWithHandler() {
	switch {
	case b.duplex:
		b.letGo()
	case b.streams:
		b.leaveHTTP2()
	}
}

// letGo ends a Read that waits for the client, because the request has ended. The server then
// reads some of the rest, so that the client gets the answer before the connection is cut.
// letGo sets a deadline for that, because the server clears a deadline that passes during a Read.
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

// leaveHTTP2 ends the body of an HTTP/2 request whose handler returns. A transport may still read the body,
// although the instance needs no more of it. The stream has no deadlines then, and setting one would panic.
func (b *requestBody) leaveHTTP2() {
	b.mu.Lock()
	b.let = true
	b.mu.Unlock()
}

// extendDeadline extends the time in which the client must send the next part.
func (b *requestBody) extendDeadline() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.let {
		return
	}
	left := b.slow
	if !b.free.Load() {
		left = b.pace.Left(0, b.slow)
	}
	_ = b.control.SetReadDeadline(time.Now().Add(left)) // only writers in tests do not support deadlines
}

func (b *requestBody) Close() error { return b.body.Close() }

// whyCut returns why the body did not arrive completely.
func (b *requestBody) whyCut() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}
