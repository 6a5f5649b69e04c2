package storetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func testBrowserSessions(t *testing.T, setup setup) {
	value := func(hash, session, key string, expires int64) model.BrowserSession {
		return model.BrowserSession{
			Hash: []byte(hash), SessionID: session, WorkspaceID: "ws_1", KeyID: key, KeyHash: []byte("of " + key),
			SignedInAt: now, ExpiresAt: expires,
		}
	}
	insert := func(w *fixture, rows ...model.BrowserSession) {
		for _, r := range rows {
			w.update(func(tx store.Tx) error { return tx.InsertBrowserSession(r) })
		}
	}
	get := func(hash string) func(store.Tx) (model.BrowserSession, error) {
		return func(tx store.Tx) (model.BrowserSession, error) { return tx.GetBrowserSession([]byte(hash)) }
	}
	alive := func(w *fixture, session string, at int64) bool {
		return read(w, func(tx store.Tx) (bool, error) { return tx.IsBrowserSession(session, at) })
	}

	t.Run("every field survives the round trip, and a value is unique", func(t *testing.T) {
		w := setup(t)
		link := value("a", "bs_1", "key_1", now+hour)
		link.IsLink = true
		insert(w, link)
		require.Equal(t, link, read(w, get("a")))
		requireMissing(w, get("b"))
		w.requireFails(model.ErrExists, func(tx store.Tx) error { return tx.InsertBrowserSession(link) })
	})

	t.Run("a value is used up once", func(t *testing.T) {
		w := setup(t)
		insert(w, value("a", "bs_1", "key_1", now+hour))
		w.update(func(tx store.Tx) error { return tx.DeleteBrowserSession([]byte("a")) })
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.DeleteBrowserSession([]byte("a")) })
	})

	t.Run("a session lives as long as the last of its values", func(t *testing.T) {
		w := setup(t)
		insert(w, value("old", "bs_1", "key_1", now+hour), value("new", "bs_1", "key_1", now+2*hour))
		w.update(func(tx store.Tx) error { return tx.ShortenBrowserSession([]byte("old"), now+9) })
		w.update(func(tx store.Tx) error { return tx.ShortenBrowserSession([]byte("old"), now+hour) })
		require.Equal(t, now+9, read(w, get("old")).ExpiresAt, "it is never made longer")
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.ShortenBrowserSession([]byte("gone"), now) })
		require.True(t, alive(w, "bs_1", now+hour))
		require.False(t, alive(w, "bs_1", now+2*hour))
		require.False(t, alive(w, "bs_2", now))
	})

	t.Run("sign-out ends one session or all of a key", func(t *testing.T) {
		w := setup(t)
		insert(w, value("a", "bs_1", "key_1", now+hour), value("b", "bs_1", "key_1", now+hour), value("c", "bs_2", "key_1", now+hour),
			value("d", "bs_3", "key_1", now+hour), value("e", "bs_4", "key_2", now+hour))
		w.update(func(tx store.Tx) error { return tx.DeleteBrowserSessionByID("bs_1") })
		requireMissing(w, get("a"))
		requireMissing(w, get("b"))
		require.True(t, alive(w, "bs_2", now))
		w.update(func(tx store.Tx) error { return tx.DeleteBrowserSessionsOfKey("key_1") })
		require.False(t, alive(w, "bs_2", now))
		require.False(t, alive(w, "bs_3", now))
		require.True(t, alive(w, "bs_4", now))
	})

	t.Run("a sign-out ends the session whatever renewals are under way", func(t *testing.T) {
		w := setup(t)
		for round := range 20 {
			id, old := fmt.Sprintf("bs_%d", round), fmt.Sprintf("z%d", round)
			insert(w, value(old, id, "key_1", now+hour))
			err := runTogether(2, func(i int) error {
				return w.s.Update(t.Context(), func(tx store.Tx) error {
					if i == 0 {
						return tx.DeleteBrowserSessionByID(id)
					}
					if err := tx.ShortenBrowserSession([]byte(old), now+9); errors.Is(err, model.ErrNotFound) {
						return nil
					} else if err != nil {
						return err
					}
					// It comes before the old one in the index that the sign-out reads.
					return tx.InsertBrowserSession(value(fmt.Sprintf("a%d", round), id, "key_1", now+2*hour))
				})
			})
			require.NoError(t, errors.Join(err...))
			require.False(t, alive(w, id, now))
		}
	})

	t.Run("the good values of a key are counted", func(t *testing.T) {
		w := setup(t)
		link := value("c", "bs_3", "key_1", now+hour)
		link.IsLink = true
		insert(w, value("a", "bs_1", "key_1", now), value("b", "bs_2", "key_1", now+1), link, value("d", "bs_4", "key_2", now+hour))
		require.Equal(t, 2, read(w, func(tx store.Tx) (int, error) { return tx.CountBrowserSessionsOfKey("key_1", now) }))
	})

	t.Run("values that expired are forgotten up to the limit", func(t *testing.T) {
		w := setup(t)
		insert(w, value("c", "bs_1", "key_1", now), value("b", "bs_2", "key_1", now+1), value("a", "bs_3", "key_1", now+2), value("d", "bs_4", "key_1", now+3))
		for _, want := range []int{2, 1, 0} {
			require.Equal(t, want, write(w, func(tx store.Tx) (int, error) { return tx.DeleteBrowserSessions(now+3, 2) }))
			require.Equal(t, want == 2, alive(w, "bs_3", now), "the oldest go first")
		}
		require.Equal(t, "bs_4", read(w, get("d")).SessionID)
	})
}
