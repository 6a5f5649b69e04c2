package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/changefeed"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

// checkChain asserts that a whole feed of the first epoch chains up to the head.
func checkChain(t *testing.T, w *fixture, regionID string, feed []model.Change) {
	t.Helper()
	chain := changefeed.Genesis()
	ids := map[string]bool{}
	for i, c := range feed {
		require.EqualValues(t, i+1, c.Revision)
		require.Equal(t, regionID, c.RegionID)
		chain = changefeed.Chain(chain, c.ID)
		require.Equal(t, chain, c.Chain)
		ids[c.ID] = true
	}
	require.Len(t, ids, len(feed), "every change has an id of its own")
	require.Equal(t, model.Head{RegionID: regionID, Epoch: 1, Revision: int64(len(feed)), Chain: chain}, w.headOf(regionID))
}

func testFeed(t *testing.T, setup setup) {
	chainAt := func(region string, revision int64) func(store.Tx) ([]byte, error) {
		return func(tx store.Tx) ([]byte, error) { return tx.ChainAt(region, revision) }
	}

	t.Run("the chain at a revision covers all changes up to it", func(t *testing.T) {
		w := setup(t)
		ids := w.newRegions(2)
		for i := range int64(4) {
			w.commitChange(ids[0], i)
			w.commitChange(ids[1], i)
		}
		feed := w.readFeed(ids[0])
		checkChain(t, w, ids[0], feed)
		for _, c := range feed {
			require.Equal(t, c.Chain, read(w, chainAt(ids[0], c.Revision)))
		}
		require.Equal(t, changefeed.Genesis(), read(w, chainAt(ids[0], 0)))
		requireMissing(w, chainAt(ids[0], 5))
		requireMissing(w, chainAt("reg_x", 1))
		require.NotEqual(t, read(w, chainAt(ids[0], 4)), read(w, chainAt(ids[1], 4)), "two regions have two histories")
	})

	t.Run("changes come by region and revision and up to the limit", func(t *testing.T) {
		w := setup(t)
		ids := w.newRegions(3)
		for i := range int64(3) {
			for _, id := range ids {
				w.commitChange(id, i)
			}
		}
		type at struct {
			region   string
			revision int64
		}
		page := func(after map[string]int64, limit int) []at {
			var got []at
			for _, c := range read(w, func(tx store.Tx) ([]model.Change, error) { return tx.Changes(after, limit) }) {
				got = append(got, at{c.RegionID, c.Revision})
			}
			return got
		}
		require.Equal(t, []at{{ids[0], 2}, {ids[0], 3}, {ids[2], 3}}, page(map[string]int64{ids[2]: 2, ids[0]: 1, ids[1]: 3, "reg_x": 0}, 9))
		require.Equal(t, []at{{ids[0], 1}, {ids[0], 2}, {ids[0], 3}, {ids[1], 1}}, page(map[string]int64{ids[0]: 0, ids[1]: 0}, 4))
		require.Empty(t, page(map[string]int64{ids[0]: 3}, 9))
		require.Empty(t, page(nil, 9))
	})

	t.Run("the sum of heads changes exactly when a head changes", func(t *testing.T) {
		w := setup(t)
		sum := func() model.HeadSum { return read(w, store.Tx.SumHeads) }
		seen := map[model.HeadSum]string{sum(): "nothing"}
		moved := func(what string) {
			t.Helper()
			require.NotContains(t, seen, sum(), what)
			seen[sum()] = what
		}
		ids := w.newRegions(2)
		moved("regions")
		w.commitChange(ids[0], 1)
		moved("a change")
		w.commitChange(ids[1], 1)
		moved("a change of another region")
		write(w, func(tx store.Tx) (model.Head, error) { return tx.BumpEpoch(ids[0], []byte("salt")) })
		moved("an epoch")
		w.update(func(tx store.Tx) error {
			tx.Change(ids[0], model.KindDeployment, "dep_x", 1)
			tx.Change(ids[1], model.KindDeployment, "dep_x", 1)
			return nil
		})
		moved("two changes")

		all := model.HeadSum{}
		for _, h := range read(w, func(tx store.Tx) ([]model.Head, error) { return tx.ListRegionHeads("", 100) }) {
			all = all.With(h)
		}
		require.Equal(t, all, sum())
		h := w.headOf(ids[0])
		require.Equal(t, all, all.With(h).Without(h))

		before := sum()
		w.insertApp("chat")
		write(w, func(tx store.Tx) (int, error) { return tx.CompactChanges(ids[0], 9, 9) })
		require.Equal(t, before, sum())
	})

	t.Run("a new epoch continues the revisions and begins a new chain", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		bump := func(salt string) model.Head {
			h := write(w, func(tx store.Tx) (model.Head, error) { return tx.BumpEpoch(region, []byte(salt)) })
			require.Equal(t, h, w.headOf(region))
			// The agent is sent this position: it must find it again.
			require.Equal(t, h.Chain, read(w, chainAt(region, h.Revision)))
			return h
		}
		first := bump("at revision 0")
		require.Equal(t, model.Head{RegionID: region, Epoch: 2, Chain: first.Chain}, first)
		require.NotEqual(t, changefeed.Genesis(), first.Chain)

		w.commitChange(region, 1)
		w.commitChange(region, 2)
		before := w.headOf(region)
		second := bump("salt")
		require.EqualValues(t, 3, second.Epoch)
		require.EqualValues(t, 2, second.Revision)
		require.NotEqual(t, before.Chain, second.Chain)

		w.commitChange(region, 3)
		feed := w.readFeed(region)
		require.EqualValues(t, 3, feed[2].Revision)
		require.Equal(t, changefeed.Chain(second.Chain, feed[2].ID), feed[2].Chain)
		require.Equal(t, second.Chain, read(w, chainAt(region, 2)), "where the epoch began")
		require.Equal(t, feed[2].Chain, read(w, chainAt(region, 3)))
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { _, err := tx.BumpEpoch("reg_x", nil); return err })
	})

	t.Run("epochs that begin with different salts never agree by accident", func(t *testing.T) {
		w := setup(t)
		ids := w.newRegions(2)
		chains := map[string]bool{}
		for i, id := range ids {
			chains[string(write(w, func(tx store.Tx) (model.Head, error) { return tx.BumpEpoch(id, []byte{byte(i)}) }).Chain)] = true
		}
		require.Len(t, chains, 2)
	})

	t.Run("an epoch may begin twice in a transaction and changes of it are in the last", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		var last model.Head
		w.update(func(tx store.Tx) error {
			tx.Change(region, model.KindDeployment, "dep_x", 1)
			for range 2 {
				var err error
				if last, err = tx.BumpEpoch(region, []byte("salt")); err != nil {
					return err
				}
			}
			return nil
		})
		require.EqualValues(t, 3, last.Epoch)
		got := w.headOf(region)
		require.EqualValues(t, 3, got.Epoch)
		require.EqualValues(t, 1, got.Revision)
		require.Equal(t, changefeed.Chain(last.Chain, w.readFeed(region)[0].ID), got.Chain)
	})

	t.Run("concurrent epochs and changes are all stored", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		const n = 8
		for _, err := range w.runUpdates(2*n, func(i int, tx store.Tx) error {
			if i%2 == 0 {
				_, err := tx.BumpEpoch(region, []byte{byte(i)})
				return err
			}
			tx.Change(region, model.KindDeployment, "dep_x", int64(i))
			return nil
		}) {
			require.NoError(t, err)
		}
		h := w.headOf(region)
		require.EqualValues(t, 1+n, h.Epoch)
		require.EqualValues(t, n, h.Revision)
		require.Equal(t, h.Chain, read(w, chainAt(region, n)))
		require.Len(t, w.readFeed(region), n)
	})

	t.Run("compaction deletes the oldest changes and keeps head and chain", func(t *testing.T) {
		w := setup(t)
		ids := w.newRegions(2)
		for i := range int64(6) {
			w.commitChange(ids[0], i)
			w.commitChange(ids[1], i)
		}
		before := w.headOf(ids[0])
		compact := func(upto int64, limit int) int {
			return write(w, func(tx store.Tx) (int, error) { return tx.CompactChanges(ids[0], upto, limit) })
		}
		require.Equal(t, 2, compact(4, 2))
		require.EqualValues(t, 3, w.readFeed(ids[0])[0].Revision, "the oldest go first")
		require.Equal(t, 2, compact(4, 9))
		require.Equal(t, 0, compact(4, 9))
		require.Equal(t, 0, compact(0, 9))
		feed := w.readFeed(ids[0])
		require.Len(t, feed, 2)
		require.EqualValues(t, 5, feed[0].Revision)
		requireMissing(w, chainAt(ids[0], 4))
		require.Equal(t, feed[0].Chain, read(w, chainAt(ids[0], 5)))
		require.Equal(t, before, w.headOf(ids[0]))
		require.Len(t, w.readFeed(ids[1]), 6, "another region's feed is its own")

		require.Equal(t, 2, compact(99, 9))
		require.Empty(t, w.readFeed(ids[0]))
		w.commitChange(ids[0], 9)
		feed = w.readFeed(ids[0])
		require.EqualValues(t, 7, feed[0].Revision, "revisions go on")
		require.Equal(t, changefeed.Chain(before.Chain, feed[0].ID), feed[0].Chain)
	})
}
