package rpc

import (
	"context"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Limits bound each request message of a procedure. Zero values take the defaults.
type Limits struct {
	// WireBytes of the request's body as it is sent. Default: twice MessageBytes, so that
	// a message that is too large is refused as such.
	WireBytes int64
	// MessageBytes after decompression. Default: DefaultReadMaxBytes.
	MessageBytes int64
	// Elements are the messages and the entries of lists and maps in one message. Two
	// bytes on the wire can become a struct of hundreds. Default: DefaultElements.
	Elements int
	// Budget that messages count against from their first byte until their call ends.
	// nil: none.
	Budget *Budget
}

const (
	// DefaultElements is far above what a spec or a page of a list has.
	DefaultElements = 20_000
	// elementBytes is what an element adds to the charge of its message: about a small
	// struct and the pointer to it.
	elementBytes = 64
	// uncounted messages are so small that no content makes them costly.
	uncounted = 16 << 10
	// budgetWait is how long a message waits for room in its budget.
	budgetWait = time.Second
	// One caller may hold at most 1/callerShare of a budget.
	callerShare = 4
)

func (l Limits) orDefaults() Limits {
	l.MessageBytes = orDefault(l.MessageBytes, DefaultReadMaxBytes)
	l.WireBytes = orDefault(l.WireBytes, 2*l.MessageBytes)
	if l.Elements <= 0 {
		l.Elements = DefaultElements
	}
	return l
}

func tooMuch(message, fix string) *connect.Error {
	return ErrorWith(connect.CodeResourceExhausted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, Fix: fix,
	}, message)
}

func tooLarge(kind string, limit int64) *connect.Error {
	return tooMuch(fmt.Sprintf("the request has more than %d bytes %s", limit, kind), "Send less in one call.")
}

func tooMany(limit int) *connect.Error {
	return tooMuch(fmt.Sprintf("the request has more than %d elements in its lists, maps and messages", limit), "Send fewer in one call.")
}

// Budget bounds the bytes of request messages that a process holds at once, and what one
// caller may hold of them. Safe for concurrent use.
type Budget struct {
	size, share int64
	room        *semaphore.Weighted
	refused     prometheus.Counter

	mu   sync.Mutex
	held map[string]int64 // by caller
	used int64
}

// NewBudget makes a budget of size bytes, whose name labels its metrics.
func NewBudget(name string, size int64, registerer prometheus.Registerer) *Budget {
	b := &Budget{size: size, share: size / callerShare, room: semaphore.NewWeighted(size), held: map[string]int64{}}
	b.registerMetrics(name, registerer)
	return b
}

// take charges n bytes to the caller. It waits a moment for room.
func (b *Budget) take(ctx context.Context, caller string, n int64) error {
	if b == nil || n == 0 {
		return nil
	}
	b.mu.Lock()
	// Any one message may be sent alone, whatever the share is.
	fits := b.held[caller] == 0 || b.held[caller]+n <= b.share
	if fits {
		b.held[caller] += n
	}
	b.mu.Unlock()
	if !fits {
		return b.refuse("the caller has too many large requests under way")
	}
	waiting, cancel := context.WithTimeout(ctx, budgetWait)
	defer cancel()
	if err := b.room.Acquire(waiting, n); err != nil {
		b.forget(caller, n)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return b.refuse("the server holds as many bytes of requests as it may")
	}
	b.mu.Lock()
	b.used += n
	b.mu.Unlock()
	return nil
}

func (b *Budget) refuse(why string) error {
	b.refused.Inc()
	err := tooMuch(why, "Call again in a second.")
	err.Meta().Set("Retry-After", "1")
	return err
}

func (b *Budget) forget(caller string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held[caller] -= n; b.held[caller] <= 0 {
		delete(b.held, caller)
	}
}

// give returns n bytes.
func (b *Budget) give(caller string, n int64) {
	if b == nil || n == 0 {
		return
	}
	b.forget(caller, n)
	b.mu.Lock()
	b.used -= n
	b.mu.Unlock()
	b.room.Release(n)
}
