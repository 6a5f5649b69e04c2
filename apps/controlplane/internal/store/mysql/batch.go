package mysql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/batch"
)

// # Group commit
//
// Requests of a key that arrive while a transaction of that key runs share the next transaction. It has about as many
// statements as the transaction of a single request. First all requests run their first part, one after the
// other, and then all run their last part. In their last parts they take the lock that all of them need, so that
// the lock is held briefly. See shared for how statements are shared.
//
// A request that fails is removed from the transaction. It gets its error after the other requests are durable,
// because their writes may be the cause of the error. If it cannot be removed, or anything else fails, nothing is
// written, and each request runs again by itself, like in Update.
const (
	// maxBatch is how many requests share a transaction. After a transaction that failed, the limit is halved. It
	// grows by one after each full transaction that did not fail.
	maxBatch = 32
	// patience is how long a transaction may run before the next one begins concurrently. So a transaction that waits
	// for a row's lock delays no other transaction.
	patience = 250 * time.Millisecond
	// sharedTimeout bounds a transaction of several requests. Each request also has its own deadline.
	sharedTimeout = 30 * time.Second
)

// batches are the waiting requests, by key.
type batches = batch.Group[string, *request, error]

// request is one call of UpdateBatched.
type request struct {
	ctx context.Context
	key string
	// app is the id or name of the app that fn reads or changes. Empty: unknown.
	app  string
	fn   func(store.Tx) (last func() error, err error)
	last func() error
	err  error
}

func (s *Store) newBatches() *batches {
	return batch.New(batch.Config[string, *request, error]{
		Commit: s.commitBatch,
		Lane:   func(r *request) string { return r.key },
		Limits: func(string) batch.Limits { return batch.Limits{Size: maxBatch, Patience: s.patience} },
		Split:  batch.Apart,
		Adapt:  true,
		Observe: func(o batch.Outcome) {
			s.metrics.batch.Observe(float64(o.Size))
			if o.Size > 1 && o.Err != nil {
				s.metrics.parted.Inc()
			}
		},
	})
}

// UpdateBatched implements store.Store.
func (s *Store) UpdateBatched(ctx context.Context, key, app string, fn func(store.Tx) (last func() error, err error)) error {
	if key == "" {
		return s.Update(ctx, store.Alone(fn))
	}
	result, err := s.batches.Do(ctx, &request{ctx: ctx, key: key, app: app, fn: fn})
	if p, ok := errors.AsType[*batch.PanicError](err); ok {
		panic(p) // the same as without a batch
	}
	if err != nil {
		return fmt.Errorf("store: begin: %w", err)
	}
	return result
}

// commitBatch runs the requests in one transaction. If it returns an error, none of their writes is durable.
func (s *Store) commitBatch(ctx context.Context, requests []*request) ([]error, error) {
	if len(requests) == 1 {
		return []error{s.Update(ctx, store.Alone(requests[0].fn))}, nil
	}
	if err := s.shareTx(ctx, requests); err != nil {
		return nil, err
	}
	errs := make([]error, len(requests))
	for i, r := range requests {
		errs[i] = r.err
	}
	return errs, nil
}

// shareTx runs several requests in one transaction, and sets the error of each that was removed from it.
func (s *Store) shareTx(ctx context.Context, requests []*request) (err error) {
	defer s.observeQuery("together", time.Now(), &err)
	ctx, cancel := context.WithTimeout(ctx, sharedTimeout)
	defer cancel()
	sqlTx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("store: begin: %w", err)
	}
	defer func() { _ = sqlTx.Rollback() }() // as in try

	t := s.newTx(ctx, sqlTx, sqlTx, false)
	t.shared = newShared(t, requests)
	first := func(r *request) (err error) {
		r.last, err = r.fn(t)
		return err
	}
	last := func(r *request) error {
		if r.last == nil {
			return nil
		}
		return r.last()
	}
	for n, part := range []func(*request) error{first, last} {
		if n > 0 {
			t.shared.prefetched = nil // all requests have changed their apps
		}
		for i, r := range requests {
			if r.err != nil {
				continue
			}
			t.shared.member = i
			clear(t.locked) // locked may have rows of a request that will be removed
			if r.err = r.ctx.Err(); r.err == nil {
				r.err = part(r)
			}
			if err := cmp.Or(t.broken, t.shared.failed); err != nil {
				return err
			}
			if r.err == nil {
				continue
			}
			if !t.shared.dropMember(i) {
				return r.err
			}
		}
	}
	commit, err := t.commit(sqlTx)
	if errors.Is(err, model.ErrOutcomeUnknown) {
		for _, r := range requests {
			r.err = cmp.Or(r.err, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	s.notify(commit)
	return nil
}
