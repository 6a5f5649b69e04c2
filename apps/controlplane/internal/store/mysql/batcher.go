package mysql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/joint"
)

// # Batches
//
// While a transaction of one key runs, requests of that key that arrive wait, and share the
// next one. So a batch is as large as the load makes it, no request waits for a timer, and a
// transaction has about as many statements as a single request. A transaction that takes long,
// because it waits for a row's lock, delays no other batch. All requests run their first part,
// one after the other, and then all run their last, in which they take the lock that all of
// them need: it is held as briefly as one request would. See batch for how statements are shared.
//
// A request that fails is taken out, and gets its error once the others are durable, since
// what they wrote may be the reason. Where that is not possible, or anything else fails,
// nothing is written, and each request runs again by itself, as Update does.
const (
	// maxTogether works share one: a statement's part is a thirtieth by then. After one that
	// had to be parted they are half as many, and one more after each that had not.
	maxTogether = 32
	// patience is how long a transaction may take before the next one begins beside it.
	patience = 250 * time.Millisecond
	// sharedTimeout bounds a transaction of many, whose works have deadlines of their own.
	sharedTimeout = 30 * time.Second
)

// work is what UpdateBatched runs.
type work = func(store.Tx) (last func() error, err error)

// batcher has the requests that wait, by key.
type batcher struct {
	mu     sync.Mutex
	queues map[string]*queue
	// most is how many share the next transaction of a key, where that is less than it may be.
	most map[string]int
}

func newBatcher() batcher { return batcher{queues: map[string]*queue{}, most: map[string]int{}} }

// queue exists while a request leads a transaction of its key, and no longer than patience.
type queue struct{ waiting []*request }

// request waits for its turn.
type request struct {
	ctx context.Context
	// app that the work is about, by id or name; empty: unknown.
	app  string
	work work
	// turn says that the request is to lead the next transaction, or else that it is done.
	turn chan bool
	// leads is set with that.
	leads bool
	last  func() error
	err   error
	// alone: it must run again, by itself.
	alone bool
}

// Together implements store.Store.
func (s *Store) UpdateBatched(ctx context.Context, key, app string, fn func(store.Tx) (last func() error, err error)) error {
	if key == "" {
		return s.Update(ctx, store.Alone(fn))
	}
	g := &request{ctx: ctx, app: app, work: fn, turn: make(chan bool, 1)}
	led, err := s.batcher.join(key, g)
	if err != nil {
		return fmt.Errorf("store: begin: %w", err)
	}
	if led {
		s.lead(key) //nolint:contextcheck // its transaction is that of many, and outlasts any one of them
	}
	if g.alone {
		return s.alone(g)
	}
	return g.err
}

func (s *Store) alone(g *request) error {
	return s.Update(g.ctx, store.Alone(g.work))
}

// join waits until the request leads, or is done. It fails if ctx ends before anything began.
func (c *batcher) join(key string, g *request) (leads bool, err error) {
	c.mu.Lock()
	l, busy := c.queues[key]
	if !busy {
		l = &queue{}
		c.queues[key] = l
	}
	l.waiting = append(l.waiting, g)
	c.mu.Unlock()
	if !busy {
		return true, nil
	}
	select {
	case leads = <-g.turn:
		return leads, nil
	case <-g.ctx.Done():
	}
	c.mu.Lock()
	if at := slices.Index(l.waiting, g); at >= 0 && !g.leads {
		l.waiting = slices.Delete(l.waiting, at, at+1)
		c.mu.Unlock()
		return false, g.ctx.Err()
	}
	c.mu.Unlock()
	return <-g.turn, nil // it is under way, and its end is known
}

// take returns those whose turn it is.
func (c *batcher) take(key string) []*request {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.queues[key]
	n := min(len(l.waiting), cmp.Or(c.most[key], maxTogether))
	group := slices.Clone(l.waiting[:n])
	l.waiting = slices.Delete(l.waiting, 0, n)
	return group
}

// learn how many of a key went together, or did not.
func (c *batcher) learn(key string, n int, parted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	most := cmp.Or(c.most[key], maxTogether)
	switch {
	case parted:
		most = max(n/2, 1)
	case n == most:
		most++
	}
	if c.most[key] = most; most >= maxTogether {
		delete(c.most, key)
	}
}

// leave has the first that waits lead the next transaction.
func (c *batcher) leave(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.queues[key]
	if len(l.waiting) > 0 {
		l.waiting[0].leads = true
		l.waiting[0].turn <- true
		return
	}
	delete(c.queues, key)
}

// lead one transaction of all who wait, of whom the caller is the first.
func (s *Store) lead(key string) {
	// Before anybody else can be made to lead: the caller is no longer one of those who wait.
	group := s.batcher.take(key)
	leave := sync.OnceFunc(func() { s.batcher.leave(key) })
	defer leave()
	defer time.AfterFunc(s.patience, leave).Stop()
	if len(group) == 1 {
		group[0].err = s.alone(group[0])
		s.batcher.learn(key, 1, false)
		return
	}
	err := s.share(group)
	s.batcher.learn(key, len(group), err != nil)
	for _, g := range group {
		g.alone = err != nil
	}
	if err != nil {
		s.metrics.parted.Inc()
	}
	for _, g := range group[1:] {
		g.turn <- false
	}
}

// share runs the works in one transaction. With an error nothing of it is durable.
func (s *Store) share(group []*request) (err error) {
	defer s.observe("together", time.Now(), &err)
	var all []context.Context
	for _, g := range group {
		all = append(all, g.ctx)
	}
	ctx, cancel := joint.Context(sharedTimeout, all...)
	defer cancel()
	// A work that panics does so once more, alone.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	sqlTx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("store: begin: %w", err)
	}
	defer func() { _ = sqlTx.Rollback() }() // as in try

	t := s.newTx(ctx, sqlTx, sqlTx, false)
	t.batch = newBatch(t, group)
	first := func(g *request) (err error) {
		g.last, err = g.work(t)
		return err
	}
	last := func(g *request) error {
		if g.last == nil {
			return nil
		}
		return g.last()
	}
	for n, part := range []func(*request) error{first, last} {
		if n > 0 {
			t.batch.prefetched = nil // all of them have changed their apps
		}
		for i, g := range group {
			if g.err != nil {
				continue
			}
			t.batch.member = i
			clear(t.locked) // it may be what another is still to take back
			if g.err = g.ctx.Err(); g.err == nil {
				g.err = part(g)
			}
			if err := cmp.Or(t.broken, t.batch.failed); err != nil {
				return err
			}
			if g.err == nil {
				continue
			}
			if !t.batch.drop(i) {
				return g.err
			}
		}
	}
	commit, err := t.commit(sqlTx)
	if errors.Is(err, model.ErrOutcomeUnknown) {
		for _, g := range group {
			g.err = cmp.Or(g.err, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	s.notify(commit)
	return nil
}
