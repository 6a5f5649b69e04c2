// Package batch implements group commit. Requests that arrive during a commit wait, and the next commit takes
// them together. So batches grow with the load, no request waits for a timer, and many requests cost about as
// much as one.
//
//	Do --> lane: waiting requests --> one commit at a time --> a result for each request
//
// Each request belongs to a lane, and each lane has its own commits and limits. When a commit takes longer than
// its lane's patience, the next commit of the lane begins while the first one still runs. Requests of one key
// are committed in order of arrival, and never at the same time.
//
// A batch that fails, by an error or a panic, may fail because of one of its requests. So it is split as
// Config.Split says, until only batches of one request fail.
//
// A Group starts a goroutine when a commit is due, and has none while it is idle.
package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

var (
	// ErrFull is the error of a request that comes while Config.MaxWaiting requests wait.
	ErrFull = errors.New("batch: too many requests wait")
	// ErrClosed is the error of a request that comes after Close was called, or that waits at that time.
	// If Close makes a commit fail, the error of the commit is joined to it.
	ErrClosed = errors.New("batch: the group is closed")
)

// PanicError is the error of a request whose commit panicked, or ended its goroutine with runtime.Goexit.
type PanicError struct {
	// Value is the argument of panic, or nil for runtime.Goexit.
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	if e.Value == nil {
		return "the commit ended its goroutine"
	}
	return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack)
}

// Split is how a batch of several requests is split after its commit failed.
type Split int

const (
	// Halves commits the two halves of the batch, one after the other, and splits a half that fails again.
	Halves Split = iota
	// Singly commits each request separately, one after the other.
	Singly
	// Apart commits each request separately, all at the same time, while the lane continues with the next batch.
	Apart
)

// Limits are the limits of a lane. The group calls Config.Limits before each batch.
type Limits struct {
	// Size is the number of requests in a batch. It must be positive.
	Size int
	// Weight is the sum of weights at which a batch is full. The request that reaches it is still in the
	// batch. 0 means unlimited.
	Weight int
	// Commits is the maximum number of concurrent commits. 0 means unlimited.
	Commits int
	// Patience is how long a commit may run before the next one of its lane begins.
	Patience time.Duration
}

// Config configures a Group. L is the type of lane names. When a commit ends and several lanes may begin one,
// the lane with the lowest name begins first.
type Config[L cmp.Ordered, Req, Res any] struct {
	// Commit carries out the requests and returns a result for each, or an error if it did nothing. It runs
	// on a goroutine of the group.
	Commit func(ctx context.Context, requests []Req) ([]Res, error)
	// Limits returns the limits of a lane. It must not block or call the group.
	Limits func(L) Limits
	// Lane returns the lane of a request. Nil means one lane for all.
	Lane func(Req) L
	// Key returns the key of a request, or "" for none. It may be nil. It cannot be used with Apart.
	Key func(Req) string
	// Weight returns the weight of a request. Nil means 0.
	Weight func(Req) int
	// Split is how a failed batch is split.
	Split Split
	// Adapt halves the size of a lane's batches after a failed batch, and adds one to it after each full
	// batch that succeeded.
	Adapt bool
	// Timeout limits a commit, and the sum of all commits of a failed batch's parts. 0 means none.
	Timeout time.Duration
	// Detached makes Do return when its context ends, while the request's commit continues. Otherwise Do waits
	// for the end of a commit that has begun, and the commit's context ends when the contexts of all its
	// requests have ended.
	Detached bool
	// MaxCommits is the maximum number of concurrent commits in all lanes. 0 means unlimited.
	MaxCommits int
	// MaxWaiting is how many requests may wait in all lanes. 0 means unlimited.
	MaxWaiting int
	// Admit returns an error if a request may not wait, given the requests that already wait. It must not
	// block or call the group. Nil admits all requests.
	Admit func(Req, Waiting[L]) error
	// Observe is called after each commit, including commits of parts. It may be nil.
	Observe func(Outcome)
}

// Outcome is the outcome of a commit.
type Outcome struct {
	// Size is the number of requests.
	Size int
	// Waited is how long the oldest request waited for its first commit to begin.
	Waited time.Duration
	// Took is how long the commit ran.
	Took time.Duration
	// Err is the error of the commit, or nil.
	Err error
}

// Group batches requests. Create it with New.
type Group[L cmp.Ordered, Req, Res any] struct {
	cfg Config[L, Req, Res]
	// base ends when the group closes.
	base context.Context
	end  context.CancelFunc
	work sync.WaitGroup

	mu     sync.Mutex
	closed bool
	// lanes are sorted by name. An idle lane is dropped if there are more than keptLanes.
	lanes []*lane[L, Req, Res]
	// keys has a state for each key of a request that waits or is being committed.
	keys map[string]keyState
	// waiting and running are the sums of the same fields of all lanes.
	waiting, running int
}

// New returns a Group. It panics if Commit or Limits is missing, or with both Key and Apart.
func New[L cmp.Ordered, Req, Res any](cfg Config[L, Req, Res]) *Group[L, Req, Res] {
	if cfg.Commit == nil || cfg.Limits == nil {
		panic("batch: Commit and Limits are required")
	}
	if cfg.Key != nil && cfg.Split == Apart {
		panic("batch: requests that are committed Apart cannot follow each other by Key")
	}
	g := &Group[L, Req, Res]{cfg: cfg, keys: map[string]keyState{}}
	g.base, g.end = context.WithCancel(context.Background())
	return g
}

// Do waits for the commit of a request, and returns its result or the error of its own commit. If ctx ends
// before the commit began (see Config.Detached), it returns ctx's error. It fails at once with ErrFull,
// ErrClosed or the error of Config.Admit. If the commit panics, it returns a *PanicError.
func (g *Group[L, Req, Res]) Do(ctx context.Context, request Req) (Res, error) {
	m := &member[Req, Res]{ctx: ctx, request: request, done: make(chan struct{})}
	var none Res
	l, err := g.enqueueMember(m)
	if err != nil {
		return none, err
	}
	select {
	case <-m.done:
		return m.result, m.err
	case <-ctx.Done():
	}
	if g.removeWaiting(l, m) {
		return none, ctx.Err()
	}
	if !g.cfg.Detached {
		<-m.done
		return m.result, m.err
	}
	select {
	case <-m.done: // the commit ended, too
		return m.result, m.err
	default:
		return none, ctx.Err()
	}
}

// Close fails waiting requests, ends the contexts of running commits, and waits for these commits.
func (g *Group[L, Req, Res]) Close() {
	g.mu.Lock()
	g.closed = true
	for _, l := range g.lanes {
		for _, m := range l.waiting {
			g.countDequeued(l, m)
			m.finishWith(ErrClosed)
		}
		l.waiting = nil
	}
	g.mu.Unlock()
	g.end()
	g.work.Wait()
}

// member is a request, and its result once done is closed.
type member[Req, Res any] struct {
	ctx     context.Context
	request Req
	key     string
	weight  int
	since   time.Time
	// queued reports whether the request waits in its lane.
	queued bool

	done     chan struct{}
	finished bool
	result   Res
	err      error
}

func (m *member[Req, Res]) finishWith(err error) {
	m.err, m.finished = err, true
	close(m.done)
}
