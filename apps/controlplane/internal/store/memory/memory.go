// Package memory is the store for tests that need virtual time or no database.
// It passes the same suite as mysql.
//
// # Transactions
//
// They are optimistic where mysql waits for locks. A transaction keeps its writes
// to itself and notes, for every row that it wrote or locked, which commit had
// touched it last. At the commit, in one critical section:
//
//	every noted row untouched since?   no -> run fn again
//	unique keys still free?            no -> run fn again
//	apply the writes
//	revisions = head+1, +2 ...; chain; append the changes
//
// and then, outside of it, the listeners are told. A locked row counts as touched by the
// transaction that committed with the lock. So of two transactions that lock one row, the
// second sees all that the first wrote, as if it had waited. Rows that are merely read are not
// checked, as in READ COMMITTED: what would race there races here.
//
// An attempt may see rows from before and after another commit; that its locks
// are then no longer valid is found out at its end, and what it returned is
// thrown away with it, errors included.
//
// Nothing blocks inside the critical section and nothing sleeps outside of it: it
// works inside a synctest bubble, and two transactions may overlap in any order.
//
// # Snapshots
//
// A snapshot holds the tables as they are; the next writer of a table that is held
// copies it first (rows are shared, they never change in place).
package memory

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

// maxTries bounds the attempts of one Update. Each failed attempt means that
// another transaction committed, so only a crowd of ten thousand on one row gets
// here.
const maxTries = 10_000

// Store implements store.Store.
type Store struct {
	now func() int64

	mu        sync.Mutex
	state     *state
	commits   uint64 // number of the newest
	restores  int
	listeners []func(store.Commit)
	observer  func(Written)
}

var _ store.Store = (*Store)(nil)

// New returns an empty store. now is what leases run on, in unix milliseconds.
func New(now func() int64) *Store {
	return &Store{now: now, state: newState()}
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	commit, err := s.Commit(ctx, fn)
	if err == nil && Tells(commit) {
		s.notify(commit)
	}
	return err
}

// UpdateBatched implements store.Store. Transactions do not wait for each other here, so each runs
// alone.
func (s *Store) UpdateBatched(ctx context.Context, _, _ string, fn func(store.Tx) (last func() error, err error)) error {
	return s.Update(ctx, store.Alone(fn))
}

// Commit is Update without the listeners: the caller tells them. It is for stores that are
// shared, where each user has listeners of its own.
func (s *Store) Commit(ctx context.Context, fn func(store.Tx) error) (store.Commit, error) {
	for range maxTries {
		if err := ctx.Err(); err != nil {
			return store.Commit{}, fmt.Errorf("store: begin: %w", err)
		}
		t := newTx(s)
		err := fn(t)
		if err == nil {
			err = ctx.Err()
		}
		if commit, ok, err := s.end(t, err); ok {
			return commit, err
		}
	}
	return store.Commit{}, fmt.Errorf("store: gave up after %d tries: %w", maxTries, model.ErrConflict)
}

// Tells reports whether a commit is one that listeners are told of.
func Tells(c store.Commit) bool { return len(c.Revisions)+len(c.Woken)+len(c.Apps) > 0 }

// end commits t, unless fn failed; ok is false if it has to run again.
func (s *Store) end(t *tx, failed error) (c store.Commit, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.restores != s.restores {
		return c, false, nil
	}
	dirty := len(t.changes) > 0
	for o := range t.used() {
		if !o.valid(s.state) {
			return c, false, nil
		}
		dirty = dirty || o.dirty()
	}
	if failed != nil {
		return c, true, failed
	}
	if !dirty {
		return c, true, nil
	}
	if err := t.checkChanges(s.state); err != nil {
		return c, true, err
	}
	s.commits++
	for o := range t.used() {
		o.apply(s.state, s.commits)
	}
	t.appendChanges(s.state, s.commits)
	if s.observer != nil {
		s.observer(t.written(s.state))
	}
	return t.committed(s.state), true, nil
}

// View implements store.Store.
func (s *Store) View(ctx context.Context, fn func(store.Tx) error) error {
	return s.readOnly(ctx, nil, fn)
}

// Snapshot implements store.Store.
func (s *Store) Snapshot(ctx context.Context, fn func(store.Tx) error) error {
	at, _ := s.freeze()
	return s.readOnly(ctx, at, fn)
}

func (s *Store) readOnly(ctx context.Context, at *state, fn func(store.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("store: begin: %w", err)
	}
	t := newTx(s)
	t.readOnly, t.pinned = true, at
	if err := fn(t); err != nil {
		return err
	}
	if len(t.changes) > 0 {
		return errReadOnly
	}
	return nil
}

// freeze returns the state of this moment, which nothing will change, and the
// number of the commit that made it.
func (s *Store) freeze() (*state, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.snapshot(), s.commits
}

// Clone returns a store with the same content, like a backup that is restored
// elsewhere. Listeners stay behind.
func (s *Store) Clone() *Store {
	c := New(s.now)
	c.Restore(s)
	return c
}

// Restore makes the content what the backup's is, as an operator would who puts an
// old copy of the database in place. Transactions that run meanwhile start again.
func (s *Store) Restore(backup *Store) {
	restored, commits := backup.freeze()
	// Two stores now append to one feed: each needs its own end of it.
	logs := newTable(&logTable.schema)
	for k, r := range logTable.of(restored).rows {
		r.value.changes = slices.Clip(r.value.changes)
		logs.rows[k] = r
	}
	restored.tables[logTable.at] = logs

	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = restored
	s.restores++
	// Its rows carry the numbers of the backup's commits.
	s.commits = max(s.commits, commits)
}

// OnCommit implements store.Store.
func (s *Store) OnCommit(f func(store.Commit)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(slices.Clip(s.listeners), f)
}

func (s *Store) notify(c store.Commit) {
	s.mu.Lock()
	listeners := s.listeners
	s.mu.Unlock()
	for _, f := range listeners {
		f(c)
	}
}

// Ping implements store.Store.
func (s *Store) Ping(ctx context.Context) error { return ctx.Err() }

// Close implements store.Store.
func (s *Store) Close() error { return nil }

// Rows counts what there is of each kind of row; changes of all feeds are one.
func (s *Store) Rows() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := map[string]int{}
	for _, t := range s.state.tables {
		name, rows := t.count()
		counts[name] = rows
	}
	for _, r := range logTable.of(s.state).rows {
		counts["change"] += len(r.value.changes)
	}
	return counts
}

// restored counts restores: a transaction that began before one is void.
func (s *Store) restored() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restores
}
