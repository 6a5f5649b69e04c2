// Package memory is the store for tests that need virtual time or no database. It passes the same test suite
// as mysql.
//
// # Transactions
//
// Transactions are optimistic, where mysql waits for locks. A transaction buffers its writes. For every row
// that it wrote or locked, it notes which commit last touched that row. At the commit, in one critical
// section:
//
//	every noted row untouched since?   no -> run fn again
//	unique keys still free?            no -> run fn again
//	apply the writes
//	revisions = head+1, +2 ...; chain; append the changes
//
// Then, after the critical section, the listeners are called. A locked row counts as touched by the transaction that
// committed with the lock. So if two transactions lock one row, the second sees everything that the first
// wrote, as if it had waited. Rows that are only read are not checked, and may race as in READ COMMITTED.
//
// An attempt may see rows from before and after another commit. Its end then finds that its locks are no
// longer valid, and discards its result, including errors.
//
// Nothing blocks inside the critical section and nothing sleeps outside of it. So the store works inside a
// synctest bubble, and two transactions may overlap in any order.
//
// # Snapshots
//
// A snapshot keeps the tables of its time. The next write to such a table copies it first. Rows are shared,
// because they never change in place.
package memory

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

// maxTries is the maximum number of attempts of one Update. Each failed attempt means that another transaction
// committed, so only a very large number of transactions on one row reaches it.
const maxTries = 10_000

// Store implements store.Store.
type Store struct {
	now func() int64

	mu        sync.Mutex
	state     *state
	commits   uint64 // number of the newest commit
	restores  int
	listeners []func(store.Commit)
	observer  func(Written)
}

var _ store.Store = (*Store)(nil)

// New returns an empty store. now is the clock of leases, in unix milliseconds.
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

// UpdateBatched implements store.Store. Transactions do not wait for each other here, so each runs by itself.
func (s *Store) UpdateBatched(ctx context.Context, _, _ string, fn func(store.Tx) (last func() error, err error)) error {
	return s.Update(ctx, store.Alone(fn))
}

// Commit is Update without a call of the listeners. The caller must call them. It is for shared stores whose users
// have their own listeners.
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
		if commit, ok, err := s.endTx(t, err); ok {
			return commit, err
		}
	}
	return store.Commit{}, fmt.Errorf("store: gave up after %d tries: %w", maxTries, model.ErrConflict)
}

// Tells reports whether listeners are called for the commit.
func Tells(c store.Commit) bool { return len(c.Revisions)+len(c.Woken)+len(c.Apps) > 0 }

// endTx commits t, unless fn failed. ok is false if fn has to run again.
func (s *Store) endTx(t *tx, failed error) (c store.Commit, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.restores != s.restores {
		return c, false, nil
	}
	dirty := len(t.changes) > 0
	for o := range t.usedTables() {
		if !o.isValid(s.state) {
			return c, false, nil
		}
		dirty = dirty || o.isDirty()
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
	for o := range t.usedTables() {
		o.apply(s.state, s.commits)
	}
	t.appendChanges(s.state, s.commits)
	if s.observer != nil {
		s.observer(t.writtenBy(s.state))
	}
	return t.commitOf(s.state), true, nil
}

// View implements store.Store.
func (s *Store) View(ctx context.Context, fn func(store.Tx) error) error {
	return s.readOnly(ctx, nil, fn)
}

// Snapshot implements store.Store.
func (s *Store) Snapshot(ctx context.Context, fn func(store.Tx) error) error {
	at, _ := s.freezeState()
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

// freezeState returns the current state, which is never changed, and the number of the commit that made it.
func (s *Store) freezeState() (*state, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.snapshotState(), s.commits
}

// Clone returns a store with the same content, like a backup that is restored elsewhere. It has no listeners.
func (s *Store) Clone() *Store {
	c := New(s.now)
	c.Restore(s)
	return c
}

// Restore replaces the content with the backup's, as if an operator had restored an old copy of the database.
// Concurrent transactions run again.
func (s *Store) Restore(backup *Store) {
	restored, commits := backup.freezeState()
	// Two stores now append to one feed, so each needs its own end of it.
	logs := newTable(&logTable.schema)
	for k, r := range logTable.tableOf(restored).rows {
		r.value.changes = slices.Clip(r.value.changes)
		logs.rows[k] = r
	}
	restored.tables[logTable.at] = logs

	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = restored
	s.restores++
	// The rows have the numbers of the backup's commits.
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

// Rows counts the rows of each kind. The changes of all feeds are one kind.
func (s *Store) Rows() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := map[string]int{}
	for _, t := range s.state.tables {
		name, rows := t.count()
		counts[name] = rows
	}
	for _, r := range logTable.tableOf(s.state).rows {
		counts["change"] += len(r.value.changes)
	}
	return counts
}

// restoreCount counts restores. A transaction that began before a restore is void.
func (s *Store) restoreCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restores
}
