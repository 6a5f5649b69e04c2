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

// Limits are the limits of each request message of a procedure. Zero values stand for the defaults.
type Limits struct {
	// WireBytes is the maximum size of the body as it is sent. Default: twice MessageBytes, so that the limit of
	// messages is reached first.
	WireBytes int64
	// MessageBytes is the maximum size after decompression. Default: DefaultReadMaxBytes.
	MessageBytes int64
	// Elements is the maximum number of messages, and of entries of lists and maps, in one message. It is
	// needed because two bytes on the wire can become a large struct. Default: DefaultElements.
	Elements int
	// Budget is charged for a message from its first byte until the call ends. It may be nil.
	Budget *Budget
}

const (
	// DefaultElements is far above the number in a spec or a page of a list.
	DefaultElements = 20_000
	// elementBytes is the charge of an element: about the size of a small struct and a pointer to it.
	elementBytes = 64
	// maxUncounted is the maximum size of a message whose elements are not counted. Such a message needs little
	// memory with any content.
	maxUncounted = 16 << 10
	// budgetWait is how long a message waits until its budget has room.
	budgetWait = time.Second
	// callerShare limits one caller to 1/callerShare of a budget.
	callerShare = 4
)

// orDefaults returns the limits with defaults for zero values.
func (l Limits) orDefaults() Limits {
	l.MessageBytes = orDefault(l.MessageBytes, DefaultReadMaxBytes)
	l.WireBytes = orDefault(l.WireBytes, 2*l.MessageBytes)
	if l.Elements <= 0 {
		l.Elements = DefaultElements
	}
	return l
}

// limitError returns the error for a request that exceeds a limit.
func limitError(message, fix string) *connect.Error {
	return ErrorWith(connect.CodeResourceExhausted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, Fix: fix,
	}, message)
}

func tooLargeError(kind string, limit int64) *connect.Error {
	return limitError(fmt.Sprintf("the request has more than %d bytes %s", limit, kind), "Send less in one call.")
}

func tooManyError(limit int) *connect.Error {
	return limitError(fmt.Sprintf("the request has more than %d elements in its lists, maps and messages", limit), "Send fewer in one call.")
}

// Budget limits the bytes of request messages in memory at once, in total and for each caller. It is safe for
// concurrent use.
type Budget struct {
	size, share int64
	room        *semaphore.Weighted
	refused     prometheus.Counter

	mu   sync.Mutex
	held map[string]int64 // by caller
	used int64
}

// NewBudget returns a budget of size bytes. name is a label of its metrics.
func NewBudget(name string, size int64, registerer prometheus.Registerer) *Budget {
	b := &Budget{size: size, share: size / callerShare, room: semaphore.NewWeighted(size), held: map[string]int64{}}
	b.registerMetrics(name, registerer)
	return b
}

// chargeCaller charges n bytes to the caller. It waits up to budgetWait for room.
func (b *Budget) chargeCaller(ctx context.Context, caller string, n int64) error {
	if b == nil || n == 0 {
		return nil
	}
	b.mu.Lock()
	// The first charge of a caller may exceed its share.
	fits := b.held[caller] == 0 || b.held[caller]+n <= b.share
	if fits {
		b.held[caller] += n
	}
	b.mu.Unlock()
	if !fits {
		return b.refuseCall("the caller has too many large requests in progress")
	}
	waiting, cancel := context.WithTimeout(ctx, budgetWait)
	defer cancel()
	if err := b.room.Acquire(waiting, n); err != nil {
		b.subtractHeld(caller, n)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return b.refuseCall("requests fill the server's memory budget")
	}
	b.mu.Lock()
	b.used += n
	b.mu.Unlock()
	return nil
}

// refuseCall counts a refusal, and returns its error.
func (b *Budget) refuseCall(why string) error {
	b.refused.Inc()
	err := limitError(why, "Call again in a second.")
	err.Meta().Set("Retry-After", "1")
	return err
}

// subtractHeld subtracts n from the caller's charged bytes.
func (b *Budget) subtractHeld(caller string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held[caller] -= n; b.held[caller] <= 0 {
		delete(b.held, caller)
	}
}

// returnBytes gives n bytes back that were charged to the caller.
func (b *Budget) returnBytes(caller string, n int64) {
	if b == nil || n == 0 {
		return
	}
	b.subtractHeld(caller, n)
	b.mu.Lock()
	b.used -= n
	b.mu.Unlock()
	b.room.Release(n)
}
