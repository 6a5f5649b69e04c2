package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func testPeers(t *testing.T, setup setup) {
	const minute = 60_000
	put := func(w *fixture, rows ...model.Peer) {
		w.t.Helper()
		for _, p := range rows {
			w.update(func(tx store.Tx) error { return tx.PutPeer(p) })
		}
	}
	list := func(w *fixture, within int64) []model.Peer {
		w.t.Helper()
		return read(w, func(tx store.Tx) ([]model.Peer, error) { return tx.ListPeers(within) })
	}
	ids := func(rows []model.Peer) (ids []string) {
		for _, p := range rows {
			ids = append(ids, p.ID)
		}
		return ids
	}

	t.Run("a peer that is seen again gets its new address and keeps its start time", func(t *testing.T) {
		w := setup(t)
		put(w, model.Peer{ID: "cp_1", Address: "10.0.0.1:7702", StartedAt: now, LastSeen: 1})
		first := list(w, minute)
		require.Len(t, first, 1)
		require.Greater(t, first[0].LastSeen, int64(1), "on the database's clock, not on the caller's")
		put(w, model.Peer{ID: "cp_1", Address: "10.0.0.9:7702", StartedAt: now + 5})
		again := list(w, minute)
		require.Len(t, again, 1)
		require.Equal(t, "10.0.0.9:7702", again[0].Address)
		require.Equal(t, now, again[0].StartedAt)
		require.GreaterOrEqual(t, again[0].LastSeen, first[0].LastSeen)
	})

	t.Run("peers are listed and forgotten by when they were seen", func(t *testing.T) {
		w := setup(t)
		put(w, model.Peer{ID: "cp_2", Address: "b:1"}, model.Peer{ID: "cp_1", Address: "a:1"})
		require.Equal(t, []string{"cp_1", "cp_2"}, ids(list(w, minute)))
		// No process was seen within a negative duration, unless a clock runs backwards.
		require.Empty(t, list(w, -minute))
		forget := func(unseen int64) int {
			return write(w, func(tx store.Tx) (int, error) { return tx.DeletePeers(unseen) })
		}
		require.Equal(t, 0, forget(minute))
		require.Equal(t, 2, forget(-minute))
		require.Empty(t, list(w, minute))
		// It was only slow: it is there again with its next beat.
		put(w, model.Peer{ID: "cp_1", Address: "a:1"})
		require.Equal(t, []string{"cp_1"}, ids(list(w, minute)))
		for range 2 {
			w.update(func(tx store.Tx) error { return tx.DeletePeer("cp_1") })
		}
		require.Empty(t, list(w, minute))
	})

	t.Run("a region's stream is where its agent watched last", func(t *testing.T) {
		w := setup(t)
		regions := w.newRegions(2)
		get := func(id string) string {
			return read(w, func(tx store.Tx) (string, error) { return tx.GetStream(id) })
		}
		requireMissing(w, func(tx store.Tx) (string, error) { return tx.GetStream(regions[0]) })
		for _, peer := range []string{"cp_1", "cp_2", "cp_2"} {
			w.update(func(tx store.Tx) error { return tx.PutStream(regions[0], peer) })
			require.Equal(t, peer, get(regions[0]))
		}
		w.update(func(tx store.Tx) error { return tx.PutStream(regions[1], "cp_3") })
		count := func() int { return read(w, func(tx store.Tx) (int, error) { return tx.CountStreams() }) }
		require.Zero(t, count(), "no region is connected")
		for n, id := range regions {
			w.update(func(tx store.Tx) error {
				_, _, err := tx.StartSession(id, "session", minute, model.Region{})
				return err
			})
			require.Equal(t, n+1, count())
		}
		w.update(func(tx store.Tx) error { return tx.DeleteRegion(regions[0]) })
		requireMissing(w, func(tx store.Tx) (string, error) { return tx.GetStream(regions[0]) })
		require.Equal(t, "cp_3", get(regions[1]))
	})
}
