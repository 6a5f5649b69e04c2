package proxy

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

// If the app's policy allows it, the gateway sends a stream of comments while a request waits for an app at zero. It
// does so only for clients that asked for a stream of events. The reason is that proxies and clients close silent
// connections. The instance's answer then continues that stream. An answer that is an error or is not a stream of
// events becomes an event named "error", whose data is the answer's body.
const (
	// firstBeat is how long a request waits before the stream begins, so that an answer after a short wait
	// keeps its status.
	firstBeat = 2 * time.Second
	// nextBeat is the time between two comments. It is well below 15 s, the shortest time after which proxies close
	// a silent connection.
	nextBeat = 10 * time.Second
)

// beat is the state of a stream that began before the answer.
type beat struct {
	// answered is whether the answer's header has come. failed is whether the answer's content becomes an event.
	answered, failed bool
}

// acceptsEvents reports whether a client asked for a stream of events.
func acceptsEvents(accept []string) bool {
	for _, value := range accept {
		if strings.Contains(strings.ToLower(value), "text/event-stream") {
			return true
		}
	}
	return false
}

// acquireWithComments acquires a lease, and meanwhile sends comments to a client that wants them.
func (c *trip) acquireWithComments(ctx context.Context, want *upstream.Want) (*upstream.Lease, error) {
	x := c.x
	policy := x.route.Hold()
	if !want.Held || x.out == nil || c.req.Method == http.MethodHead || policy == nil || !policy.Heartbeat || !acceptsEvents(c.req.Header.Values("Accept")) {
		return x.route.Acquire(ctx, want)
	}
	// The header of the stream is sent before the answer, so it cannot say that the answer is compressed.
	c.req.Header.Del("Accept-Encoding")
	waiting, gone := context.WithCancelCause(ctx)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		timer := time.NewTimer(max(time.Until(x.start.Add(firstBeat)), 0))
		defer timer.Stop()
		for {
			select {
			case <-stop:
				return
			case <-waiting.Done():
				return
			case <-timer.C:
			}
			if err := x.out.writeComment(); err != nil {
				gone(failGone)
				return
			}
			timer.Reset(nextBeat)
		}
	}()
	lease, err := x.route.Acquire(waiting, want)
	close(stop)
	<-stopped // no comment is written after this
	gone(nil)
	return lease, err
}

// writeComment writes a comment, and the header before the first one.
func (a *answer) writeComment() error {
	if a.beat == nil {
		a.beat = &beat{}
		h := a.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		a.extendDeadline(0)
		a.ResponseWriter.WriteHeader(http.StatusOK)
	}
	if _, err := a.writeRaw([]byte(": waiting\n\n")); err != nil {
		return err
	}
	return a.FlushError()
}

// writeRaw writes bytes that do not count as a part of the answer.
func (a *answer) writeRaw(p []byte) (int, error) {
	limit := a.extendDeadline(len(p))
	begun := time.Now()
	n, err := a.ResponseWriter.Write(p)
	a.countTaken(n, time.Since(begun), limit, err)
	a.restDeadline()
	return n, err
}

// beatHeader handles the header of an answer to a stream that has begun.
func (a *answer) beatHeader(status int) {
	if status < http.StatusOK || a.beat.answered {
		return
	}
	a.x.status, a.beat.answered = status, true
	h := a.Header()
	a.beat.failed = status != http.StatusOK || !strings.HasPrefix(h.Get("Content-Type"), "text/event-stream") || h.Get("Content-Encoding") != ""
	if a.beat.failed {
		_, _ = a.writeRaw([]byte("event: error\ndata: ")) // if the client is gone, the next write returns the error
	}
}

// beatContent returns the content in the form of an event.
func (a *answer) beatContent(p []byte) []byte {
	if !a.beat.failed {
		return p
	}
	return bytes.ReplaceAll(bytes.ReplaceAll(p, []byte("\r"), nil), []byte("\n"), []byte("\ndata: "))
}

// endBeat ends the event that an answer was turned into.
func (a *answer) endBeat() {
	if a.beat != nil && a.beat.failed {
		_, _ = a.writeRaw([]byte("\n\n"))
	}
}
