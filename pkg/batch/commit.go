package batch

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"
)

// runWorker commits batches, the first one of lane l. After each batch it continues with the lane that
// runBatch returns. It ends if runBatch returns nil.
func (g *Group[L, Req, Res]) runWorker(l *lane[L, Req, Res]) {
	defer g.work.Done()
	for l != nil {
		l = g.runBatch(l)
	}
}

// runBatch takes a batch of the lane and commits it. It returns the lane with which the worker continues, or nil.
func (g *Group[L, Req, Res]) runBatch(l *lane[L, Req, Res]) (next *lane[L, Req, Res]) {
	b := g.takeBatch(l)
	whole, returned := true, false
	// Commit may end the goroutine with runtime.Goexit. Deferred functions still run then, and another
	// goroutine continues.
	defer func() {
		if !returned {
			failUnfinished(b.members)
		}
		next = g.endBatch(l, b, whole)
		if !returned && next != nil {
			g.startWorker(next)
		}
	}()
	if b != nil {
		whole = g.commitBatch(b.members)
	}
	returned = true
	return nil
}

// failUnfinished gives a PanicError to members without a result, because Commit has ended its goroutine.
func failUnfinished[Req, Res any](members []*member[Req, Res]) {
	for _, m := range members {
		if !m.finished {
			m.finishWith(&PanicError{Stack: debug.Stack()})
		}
	}
}

// commitBatch commits a batch. If that fails, it commits the parts of the batch. It reports whether it did not
// split the batch.
func (g *Group[L, Req, Res]) commitBatch(members []*member[Req, Res]) (whole bool) {
	open, err := g.commitOnce(g.base, members)
	if g.settleMembers(open, err) {
		return true
	}
	if g.cfg.Split == Apart {
		for _, m := range open {
			g.work.Go(func() {
				one := []*member[Req, Res]{m}
				defer failUnfinished(one)
				g.commitPart(g.base, one)
			})
		}
		return false
	}
	ctx, cancel := withTimeout(g.base, g.cfg.Timeout)
	defer cancel()
	g.commitParts(ctx, open)
	return false
}

// commitParts splits a failed batch into parts, and commits each of them.
func (g *Group[L, Req, Res]) commitParts(ctx context.Context, members []*member[Req, Res]) {
	size := 1
	if g.cfg.Split == Halves {
		size = (len(members) + 1) / 2
	}
	for part := range slices.Chunk(members, size) {
		g.commitPart(ctx, part)
	}
}

// commitPart commits a part, and splits it if that fails.
func (g *Group[L, Req, Res]) commitPart(ctx context.Context, members []*member[Req, Res]) {
	if open, err := g.commitOnce(ctx, members); !g.settleMembers(open, err) {
		g.commitParts(ctx, open)
	}
}

// settleMembers reports whether an attempt needs no further attempts: it succeeded, or it failed for one member or
// because the group is closed. In the last two cases it gives the members the error.
func (g *Group[L, Req, Res]) settleMembers(members []*member[Req, Res], err error) bool {
	if err == nil {
		return true
	}
	if len(members) > 1 && !errors.Is(err, ErrClosed) {
		return false
	}
	for _, m := range members {
		m.finishWith(err)
	}
	return true
}

// commitOnce commits once the members whose contexts have not ended. If that fails, it returns these members,
// which have no result yet.
func (g *Group[L, Req, Res]) commitOnce(ctx context.Context, members []*member[Req, Res]) ([]*member[Req, Res], error) {
	open := dropEnded(members)
	if len(open) == 0 {
		return nil, nil
	}
	requests := make([]Req, len(open))
	for i, m := range open {
		requests[i] = m.request
	}
	ctx, cancel := g.commitContext(ctx, open)
	defer cancel()
	begun := time.Now()
	results, err := g.callCommit(ctx, requests)
	if err != nil && g.base.Err() != nil {
		err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	if g.cfg.Observe != nil {
		g.cfg.Observe(Outcome{Size: len(open), Waited: begun.Sub(open[0].since), Took: time.Since(begun), Err: err})
	}
	if err != nil {
		return open, err
	}
	for i, m := range open {
		m.result = results[i]
		m.finishWith(nil)
	}
	return nil, nil
}

// dropEnded returns the members whose contexts have not ended. It gives the other members the errors of their
// contexts.
func dropEnded[Req, Res any](members []*member[Req, Res]) []*member[Req, Res] {
	ended := func(m *member[Req, Res]) bool { return m.ctx.Err() != nil }
	if !slices.ContainsFunc(members, ended) {
		return members
	}
	var open []*member[Req, Res]
	for _, m := range members {
		if err := m.ctx.Err(); err != nil {
			m.finishWith(err)
		} else {
			open = append(open, m)
		}
	}
	return open
}

// callCommit calls Config.Commit, and returns a panic as an error.
func (g *Group[L, Req, Res]) callCommit(ctx context.Context, requests []Req) (results []Res, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	results, err = g.cfg.Commit(ctx, requests)
	if err == nil && len(results) != len(requests) {
		return nil, fmt.Errorf("batch: Commit returned %d results for %d requests", len(results), len(requests))
	}
	return results, err
}

// commitContext returns the context of a commit of the members. It ends when the context within ends, or as
// Config.Detached says.
func (g *Group[L, Req, Res]) commitContext(within context.Context, members []*member[Req, Res]) (context.Context, context.CancelFunc) {
	if g.cfg.Detached {
		return withTimeout(within, g.cfg.Timeout)
	}
	ctx, cancel := joinContexts(members, g.cfg.Timeout)
	stop := context.AfterFunc(within, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// joinContexts returns a context with the values of the first member's context. It ends when the contexts of all
// members have ended, or after the timeout.
func joinContexts[Req, Res any](members []*member[Req, Res], timeout time.Duration) (context.Context, context.CancelFunc) {
	if len(members) == 1 {
		return withTimeout(members[0].ctx, timeout)
	}
	ctx, end := withTimeout(context.WithoutCancel(members[0].ctx), timeout)
	var left atomic.Int64
	left.Store(int64(len(members)))
	stops := make([]func() bool, len(members))
	for i, m := range members {
		stops[i] = context.AfterFunc(m.ctx, func() {
			if left.Add(-1) == 0 {
				end()
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		end()
	}
}

// withTimeout returns a context with the timeout, or without one for 0.
func withTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, timeout)
}
