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

// worker commits batches of the lane, and then of lanes that wait for a commit to end.
func (g *Group[L, Req, Res]) worker(l *lane[L, Req, Res]) {
	defer g.work.Done()
	for l != nil {
		l = g.turn(l)
	}
}

// turn commits one batch and returns the lane with which the worker continues, or nil.
func (g *Group[L, Req, Res]) turn(l *lane[L, Req, Res]) (next *lane[L, Req, Res]) {
	b := g.take(l)
	together, returned := true, false
	// This is deferred, because Commit may end the goroutine. Then another goroutine continues with the lane.
	defer func() {
		if !returned {
			abandon(b.members)
		}
		next = g.release(l, b, together)
		if !returned && next != nil {
			g.begin(next)
		}
	}()
	if b != nil {
		together = g.commit(b.members)
	}
	returned = true
	return nil
}

// abandon fails members without a result, because Commit has ended its goroutine.
func abandon[Req, Res any](members []*member[Req, Res]) {
	for _, m := range members {
		if !m.finished {
			m.finish(&PanicError{Stack: debug.Stack()})
		}
	}
}

// commit commits a batch, and its parts if that fails. It reports whether no parts were needed.
func (g *Group[L, Req, Res]) commit(members []*member[Req, Res]) (together bool) {
	here, err := g.attempt(g.base, members)
	if g.settled(here, err) {
		return true
	}
	if g.cfg.Split == Apart {
		for _, m := range here {
			g.work.Go(func() {
				one := []*member[Req, Res]{m}
				defer abandon(one)
				g.part(g.base, one)
			})
		}
		return false
	}
	ctx, cancel := withTimeout(g.base, g.cfg.Timeout)
	defer cancel()
	g.split(ctx, here)
	return false
}

// split commits the parts of a failed batch.
func (g *Group[L, Req, Res]) split(ctx context.Context, members []*member[Req, Res]) {
	size := 1
	if g.cfg.Split == Halves {
		size = (len(members) + 1) / 2
	}
	for part := range slices.Chunk(members, size) {
		g.part(ctx, part)
	}
}

func (g *Group[L, Req, Res]) part(ctx context.Context, members []*member[Req, Res]) {
	if here, err := g.attempt(ctx, members); !g.settled(here, err) {
		g.split(ctx, here)
	}
}

// settled reports whether all members of an attempt have their results. It gives them the error if the
// attempt is not tried again.
func (g *Group[L, Req, Res]) settled(members []*member[Req, Res], err error) bool {
	if err == nil {
		return true
	}
	if len(members) > 1 && !errors.Is(err, ErrClosed) {
		return false
	}
	for _, m := range members {
		m.finish(err)
	}
	return true
}

// attempt commits the members whose contexts have not ended, once. If that fails, it returns these members,
// which have no result yet.
func (g *Group[L, Req, Res]) attempt(ctx context.Context, members []*member[Req, Res]) ([]*member[Req, Res], error) {
	here := present(members)
	if len(here) == 0 {
		return nil, nil
	}
	requests := make([]Req, len(here))
	for i, m := range here {
		requests[i] = m.request
	}
	ctx, cancel := g.context(ctx, here)
	defer cancel()
	begun := time.Now()
	results, err := g.guarded(ctx, requests)
	if err != nil && g.base.Err() != nil {
		err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	if g.cfg.Observe != nil {
		g.cfg.Observe(Outcome{Size: len(here), Waited: begun.Sub(here[0].since), Took: time.Since(begun), Err: err})
	}
	if err != nil {
		return here, err
	}
	for i, m := range here {
		m.result = results[i]
		m.finish(nil)
	}
	return nil, nil
}

// present returns the members whose contexts have not ended, and gives the others their results.
func present[Req, Res any](members []*member[Req, Res]) []*member[Req, Res] {
	ended := func(m *member[Req, Res]) bool { return m.ctx.Err() != nil }
	if !slices.ContainsFunc(members, ended) {
		return members
	}
	var here []*member[Req, Res]
	for _, m := range members {
		if err := m.ctx.Err(); err != nil {
			m.finish(err)
		} else {
			here = append(here, m)
		}
	}
	return here
}

// guarded calls Commit and turns a panic into an error.
func (g *Group[L, Req, Res]) guarded(ctx context.Context, requests []Req) (results []Res, err error) {
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

// context returns the context of a commit. It ends when within ends.
func (g *Group[L, Req, Res]) context(within context.Context, members []*member[Req, Res]) (context.Context, context.CancelFunc) {
	if g.cfg.Detached {
		return withTimeout(within, g.cfg.Timeout)
	}
	ctx, cancel := joint(members, g.cfg.Timeout)
	stop := context.AfterFunc(within, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// joint returns a context with the values of the first member's context. It ends when the contexts of all
// members have ended, or after the timeout.
func joint[Req, Res any](members []*member[Req, Res], timeout time.Duration) (context.Context, context.CancelFunc) {
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
