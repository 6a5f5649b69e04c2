package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/changefeed"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/memory"
)

// counted is a store that counts reads of many heads, and fails while away is set.
type counted struct {
	Store
	heads atomic.Int64
	away  atomic.Bool
}

type countedTx struct {
	Tx
	of *counted
}

func (c *counted) View(ctx context.Context, fn func(Tx) error) error {
	if c.away.Load() {
		return errors.New("away")
	}
	return c.Store.View(ctx, func(tx Tx) error { return fn(countedTx{tx, c}) })
}

func (t countedTx) GetHeads(ids []string) ([]model.Head, error) {
	t.of.heads.Add(1)
	return t.Tx.GetHeads(ids)
}

func TestTailer_ReadsHeadsOnlyWhenOneMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const beat = 200 * time.Millisecond
		db := memory.New(func() int64 { return time.Now().UnixMilli() })
		commit := func(fn func(tx store.Tx)) {
			t.Helper()
			require.NoError(t, db.Update(t.Context(), func(tx store.Tx) error { fn(tx); return nil }))
		}
		region := func(id string) {
			t.Helper()
			require.NoError(t, db.Update(t.Context(), func(tx store.Tx) error {
				return tx.InsertRegion(model.Region{ID: id, WorkspaceID: "ws_1", Name: id, ResourceVersion: 1})
			}))
		}
		change := func(id string) {
			t.Helper()
			commit(func(tx store.Tx) { tx.Change(id, model.KindDeployment, "dep_1", 1) })
		}
		s := &counted{Store: store.Bind[Tx](db)}
		tailer := newTailer(s, slog.New(slog.DiscardHandler), beat, func() float64 { return 0.5 })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- tailer.Run(ctx) }()
		// beats returns how often heads were read in the time d.
		beats := func(d time.Duration) int64 {
			before := s.heads.Load()
			time.Sleep(d)
			synctest.Wait()
			return s.heads.Load() - before
		}
		subscribe := func(id string) *subscription {
			t.Helper()
			var head model.Head
			require.NoError(t, db.View(t.Context(), func(tx store.Tx) (err error) {
				head, err = tx.GetHead(id)
				return err
			}))
			sub, _ := tailer.subscribeAgent(id, changefeed.Position{Epoch: 1}, head)
			return sub
		}
		// owed returns the revision up to which the stream was signalled.
		owed := func(sub *subscription) int64 {
			t.Helper()
			b, _, reset := sub.takeBatch()
			require.False(t, reset)
			return b.Upto.Revision
		}

		require.Zero(t, beats(time.Minute), "no region has a subscription")
		region("reg_1")
		region("reg_2")
		one := subscribe("reg_1")
		require.Positive(t, beats(2*beat))
		require.Zero(t, beats(time.Minute), "nothing moved")

		change("reg_1") // without a nudge
		require.EqualValues(t, 1, beats(time.Minute))
		require.EqualValues(t, 1, owed(one))
		change("reg_2")
		require.EqualValues(t, 1, beats(time.Minute), "a change of a region without a subscription")

		two := subscribe("reg_2")
		require.Positive(t, beats(2*beat))
		require.Zero(t, beats(time.Minute))

		// A nudged change is published at once, and its head is read neither now nor later.
		change("reg_1")
		change("reg_2")
		before := s.heads.Load()
		tailer.Nudge("reg_1", "reg_2")
		synctest.Wait()
		require.EqualValues(t, 2, owed(one))
		require.EqualValues(t, 2, owed(two))
		require.Zero(t, s.heads.Load()-before+beats(time.Minute))
		// A nudge does not hide an earlier change without a nudge.
		change("reg_1")
		change("reg_2")
		tailer.Nudge("reg_1")
		synctest.Wait()
		require.EqualValues(t, 3, owed(one))
		require.EqualValues(t, 1, beats(time.Minute))
		require.EqualValues(t, 3, owed(two))

		// Changes during an outage of the database are found afterwards.
		s.away.Store(true)
		change("reg_1")
		tailer.Nudge("reg_1")
		beats(time.Minute)
		s.away.Store(false)
		require.Positive(t, beats(time.Minute))
		require.EqualValues(t, 4, owed(one))
		require.Zero(t, beats(time.Minute))

		// A restored database that has reached the same revision with other changes.
		commit(func(tx store.Tx) {
			_, err := tx.BumpEpoch("reg_2", []byte("salt"))
			require.NoError(t, err)
		})
		require.EqualValues(t, 1, beats(time.Minute))
		_, _, reset := two.takeBatch()
		require.True(t, reset)

		one.close()
		two.close()
		require.Zero(t, beats(time.Minute))
		cancel()
		require.NoError(t, <-done)
	})
}

func TestTailer_NewEpochEndsSubscriptionsOfTheOld(t *testing.T) {
	db := memory.New(func() int64 { return time.Now().UnixMilli() })
	tailer := newTailer(store.Bind[Tx](db), slog.New(slog.DiscardHandler), time.Minute, func() float64 { return 0.5 })
	old, _ := tailer.subscribeAgent("reg_1", changefeed.Position{Epoch: 1}, model.Head{RegionID: "reg_1", Epoch: 1, Revision: 7})
	head := model.Head{RegionID: "reg_1", Epoch: 2, Revision: 3, Chain: []byte("salt")}
	fresh, at := tailer.subscribeAgent("reg_1", changefeed.Position{Epoch: 2}, head)
	require.Equal(t, changefeed.Position{Epoch: 2, Revision: 3, Chain: []byte("salt")}, at)
	_, _, reset := old.takeBatch()
	require.True(t, reset)
	_, _, reset = fresh.takeBatch()
	require.False(t, reset)

	// A head that was read before the new epoch ends its own subscription alone.
	late, at := tailer.subscribeAgent("reg_1", changefeed.Position{Epoch: 1}, model.Head{RegionID: "reg_1", Epoch: 1, Revision: 7})
	require.Equal(t, int64(2), at.Epoch)
	_, _, reset = late.takeBatch()
	require.True(t, reset)
	_, _, reset = fresh.takeBatch()
	require.False(t, reset)
	for _, sub := range []*subscription{old, fresh, late} {
		sub.close()
	}
}
