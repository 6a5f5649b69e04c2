package mysql

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/batch"
	"github.com/windlass-run/windlass/pkg/ident"
)

// Patient makes transactions of the store wait for the previous one, however long it takes. Call it before the first
// transaction.
func (s *Store) Patient() *Store {
	s.patience = time.Minute
	return s
}

// Hasty makes transactions of the store never wait for another one.
func (s *Store) Hasty() *Store {
	s.patience = 0
	return s
}

// Hold makes the requests of a key wait until n requests wait, or until 2 s have passed. Then they begin.
func (s *Store) Hold(tb testing.TB, key string, n int) {
	tb.Helper()
	held := make(chan struct{})
	var holder sync.WaitGroup
	holder.Go(func() {
		_ = s.UpdateBatched(tb.Context(), key, "", func(store.Tx) (func() error, error) {
			close(held)
			look, enough := time.NewTicker(100*time.Microsecond), time.After(2*time.Second)
			defer look.Stop()
			for s.Waiting(key) < n {
				select {
				case <-look.C:
				case <-enough:
					return nil, nil
				}
			}
			return nil, nil
		})
	})
	<-held
	tb.Cleanup(holder.Wait)
}

// Waiting returns the number of waiting requests of the key.
func (s *Store) Waiting(key string) int {
	n := 0
	s.batches.Look(func(w batch.Waiting[string]) { n = w.Lane(key).Requests })
	return n
}

// Queries returns how many statements of a name were sent.
func (s *Store) Queries(name string) float64 {
	return testutil.ToFloat64(s.metrics.queries.WithLabelValues(name))
}

// Parted returns how many transactions failed, so that each of their requests ran again by itself.
func (s *Store) Parted() float64 { return testutil.ToFloat64(s.metrics.parted) }

// Accompanied returns the store with a second request in each transaction that writes.
func Accompanied(tb testing.TB, s *Store) store.Store { return accompanied{s.Patient(), tb} }

type accompanied struct {
	*Store
	tb testing.TB
}

func (a accompanied) Update(ctx context.Context, fn func(store.Tx) error) error {
	key := ident.New("key")
	a.Hold(a.tb, key, 2)
	var companion sync.WaitGroup
	companion.Go(func() {
		_ = a.UpdateBatched(a.tb.Context(), key, "", func(store.Tx) (func() error, error) { return nil, nil })
	})
	defer companion.Wait()
	calls := 0
	return a.UpdateBatched(ctx, key, "", func(tx store.Tx) (func() error, error) {
		if calls++; calls == 1 && !tx.Batched() {
			a.tb.Error("the request was alone in its transaction")
		}
		return nil, fn(tx)
	})
}
