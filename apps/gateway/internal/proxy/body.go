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
	// pace is who reads's. instance is stopped while the client is waited for, which is waiting.
	pace     pace.Pace
	instance atomic.Pointer[watch]
	waiting  atomic.Bool
	// free: the client may be silent between two parts, because it answers what it gets: the answer
	// has begun, or it is gRPC.
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
	// body the server waits for the next request, or for the client to go away. So both cases
	// clear it. After an error it stays: the server tries to read the rest, and must not wait
	// for it.
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

// readFromClient reads a part of the body. Meanwhile it is the client that is waited for.
func (b *requestBody) readFromClient(p []byte) (int, error) {
	if w := b.instance.Load(); w != nil {
		w.pause()
		defer w.resume()
	}
	b.waiting.Store(true)
	defer b.waiting.Store(false)
	begun := time.Now()
	n, err := b.body.Read(p)
	b.pace.Moved(n, time.Since(begun))
	return n, err
}

// isAwaited reports whether the client is waited for.
func (b *requestBody) isAwaited() bool { return b != nil && b.waiting.Load() }

// isOpen reports whether more of the body may come, or might have come until it failed.
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

// letGo ends a Read that waits for the client, when its request is over. The server then
// reads some of the rest, so that the client finds the answer before the connection is cut.
// letGo sets a deadline for that, because the server clears one that passes during a Read.
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

// leaveHTTP2 ends the body of an HTTP/2 request whose handler returns. A transport may still read from it for
// an instance that wants no more. The stream's deadlines are gone then, and asking for one would end the
// process.
func (b *requestBody) leaveHTTP2() {
	b.mu.Lock()
	b.let = true
	b.mu.Unlock()
}

// extendDeadline extends the time within which the client has to send something.
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
	_ = b.control.SetReadDeadline(time.Now().Add(left)) // a writer that has none is a test's
}

func (b *requestBody) Close() error { return b.body.Close() }

// whyCut returns why the body did not arrive whole.
func (b *requestBody) whyCut() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}
