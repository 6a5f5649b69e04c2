package storetest

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func testWakes(t *testing.T, setup setup) {
	const hour = 3_600_000
	due := func(w *fixture, lostAfter, againAfter int64) []string {
		w.t.Helper()
		return appsOf(read(w, func(tx store.Tx) ([]model.Wake, error) { return tx.DueWakes(lostAfter, againAfter, 100) }))
	}
	last := func(w *fixture) (at int64) {
		w.t.Helper()
		for _, r := range read(w, func(tx store.Tx) ([]model.Wake, error) { return tx.DueWakes(0, 0, 100) }) {
			at = max(at, r.Due)
		}
		return at
	}

	t.Run("an app is reported as woken only if its row turned from unset or later to due", func(t *testing.T) {
		w := setup(t)
		var woken []string
		w.s.OnCommit(func(c store.Commit) { woken = slices.AppendSeq(woken, maps.Keys(c.Woken)) })
		wake := func(in int64) []string {
			woken = nil
			w.update(func(tx store.Tx) error { return tx.Wake([]string{"app_1"}, now+in, now) })
			return woken
		}
		require.Empty(t, wake(2*hour), "it is not due")
		require.Empty(t, wake(hour), "it is earlier, and not due")
		require.Equal(t, []string{"app_1"}, wake(0), "it turned from later to due")
		require.Empty(t, wake(0), "it was due")
		require.Empty(t, wake(hour), "it keeps the earlier time")
		require.Equal(t, []string{"app_1"}, due(w, 0, hour))
		w.update(func(tx store.Tx) error { return tx.ClearWakes([]string{"app_1"}) })
		require.Empty(t, due(w, 0, 0))
		require.Equal(t, []string{"app_1"}, wake(-5), "it turned from unset to due")
		require.Equal(t, []string{"app_1"}, due(w, 0, hour))
	})

	t.Run("several apps are woken at once and each once", func(t *testing.T) {
		w := setup(t)
		w.update(func(tx store.Tx) error { return tx.Wake([]string{"app_2"}, now, now) })
		var commits []store.Commit
		w.s.OnCommit(func(c store.Commit) { commits = append(commits, c) })
		w.update(func(tx store.Tx) error { return tx.Wake([]string{"app_3", "app_1", "app_2", "app_1"}, now, now) })
		require.Len(t, commits, 1)
		require.Equal(t, map[string]time.Duration{"app_1": 0, "app_3": 0}, commits[0].Woken)
		w.update(func(tx store.Tx) error { return tx.Wake(nil, now, now) })
		require.Len(t, commits, 1)
	})

	t.Run("apps that are woken together have each its own time", func(t *testing.T) {
		w := setup(t)
		var woken []string
		w.s.OnCommit(func(c store.Commit) { woken = append(woken, slices.Sorted(maps.Keys(c.Woken))...) })
		w.update(func(tx store.Tx) error {
			return tx.WakeAt(map[string]int64{"app_1": now + hour, "app_2": now, "app_3": now - 5}, now)
		})
		require.Equal(t, []string{"app_2", "app_3"}, woken)
		require.Equal(t, []string{"app_3", "app_2"}, due(w, 0, hour))
		w.update(func(tx store.Tx) error { return tx.WakeAt(map[string]int64{"app_1": now, "app_2": now + hour}, now) })
		require.Equal(t, []string{"app_2", "app_3", "app_1"}, woken)
		w.update(func(tx store.Tx) error { return tx.ClearWakes([]string{"app_3", "app_x", "app_1", "app_3"}) })
		require.Equal(t, []string{"app_2"}, due(w, 0, hour))
		w.update(func(tx store.Tx) error {
			if err := tx.ClearWakes([]string{"app_1", "app_2"}); err != nil {
				return err
			}
			return tx.WakeAt(map[string]int64{"app_1": now, "app_2": now + hour}, now)
		})
		require.Equal(t, []string{"app_1"}, due(w, 0, hour), "only one of the cleared apps had a row")
	})

	t.Run("an app whose row is due soon is reported with the time until then, and other processes find it then", func(t *testing.T) {
		w := setup(t)
		var commits []store.Commit
		w.s.OnCommit(func(c store.Commit) { commits = append(commits, c) })
		wake := func(in time.Duration) map[string]time.Duration {
			commits = nil
			w.update(func(tx store.Tx) error { return tx.Wake([]string{"app_1"}, now+in.Milliseconds(), now) })
			if len(commits) == 0 {
				return nil
			}
			return commits[0].Woken
		}
		require.Empty(t, wake(store.WakeWindow+time.Hour), "that is not soon")
		require.Equal(t, map[string]time.Duration{"app_1": store.WakeWindow}, wake(store.WakeWindow))
		require.Empty(t, wake(store.WakeWindow), "it has an earlier wake-up")
		require.Eventually(t, func() bool { return len(due(w, hour, hour)) == 1 }, time.Minute, 5*time.Millisecond)
	})

	t.Run("clearing takes the row away and clearing nothing is no error", func(t *testing.T) {
		w := setup(t)
		w.update(func(tx store.Tx) error { return tx.ClearWakes([]string{"app_1"}) })
		w.update(func(tx store.Tx) error { return tx.Wake([]string{"app_1"}, now, now) })
		w.update(func(tx store.Tx) error { return tx.ClearWakes([]string{"app_1"}) })
		require.Empty(t, due(w, 0, 0))
	})

	t.Run("a row goes by the database's clock, whatever the writer's says", func(t *testing.T) {
		w := setup(t)
		for id, clock := range map[string]int64{"app_ahead": now + 24*hour, "app_behind": now - 24*hour} {
			w.update(func(tx store.Tx) error { return tx.Wake([]string{id}, clock, clock) })
			w.update(func(tx store.Tx) error { return tx.Wake([]string{id + "_later"}, clock+hour, clock) })
		}
		require.ElementsMatch(t, []string{"app_ahead", "app_behind"}, due(w, 0, hour))
	})

	t.Run("rows come oldest first when they are due, and rest for a while after they were sent", func(t *testing.T) {
		w := setup(t)
		for i, in := range []int64{-1000, -3000, hour, -2000} {
			w.update(func(tx store.Tx) error { return tx.Wake([]string{fmt.Sprintf("app_%d", i)}, now+in, now) })
		}
		require.Equal(t, []string{"app_1", "app_3", "app_0"}, due(w, 0, hour))
		require.Equal(t, []string{"app_1", "app_3"}, due(w, 1500, hour), "the others may be on their way")
		require.Len(t, read(w, func(tx store.Tx) ([]model.Wake, error) { return tx.DueWakes(0, hour, 2) }), 2)
		w.update(func(tx store.Tx) error {
			return tx.MarkWakesSent([]string{"app_1", "app_0", "app_2", "app_x"}, last(w))
		})
		require.Equal(t, []string{"app_3"}, due(w, 0, hour))
		require.Equal(t, []string{"app_1", "app_3", "app_0"}, due(w, 0, 0), "they were sent long ago")
		w.update(func(tx store.Tx) error { return tx.MarkWakesSent(nil, now) })

		w.update(func(tx store.Tx) error {
			n, err := tx.UnsendWakes()
			require.EqualValues(t, 3, n, "not the one that waits")
			return err
		})
		require.Equal(t, []string{"app_1", "app_3", "app_0"}, due(w, hour, hour), "they were sent and lost")
	})

	t.Run("a late report that a step was sent does not touch a newer row", func(t *testing.T) {
		w := setup(t)
		w.update(func(tx store.Tx) error { return tx.Wake([]string{"app_1"}, now-1000, now) })
		read := last(w)
		w.update(func(tx store.Tx) error { return tx.ClearWakes([]string{"app_1"}) })
		w.update(func(tx store.Tx) error { return tx.Wake([]string{"app_1"}, now, now) })
		w.update(func(tx store.Tx) error { return tx.MarkWakesSent([]string{"app_1"}, read) })
		require.Equal(t, []string{"app_1"}, due(w, 0, hour))
	})

	t.Run("a row that waits is due at its time, and was not sent before", func(t *testing.T) {
		w := setup(t)
		w.update(func(tx store.Tx) error { return tx.Wake([]string{"app_1"}, now+3000, now) })
		w.update(func(tx store.Tx) error { return tx.MarkWakesSent([]string{"app_1"}, now) })
		require.Eventually(t, func() bool { return len(due(w, hour, hour)) == 1 }, time.Minute, 5*time.Millisecond)
	})

	t.Run("a wake-up that races the step which clears it is never lost", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		d := w.insertDeployment(app, 1)
		w.put(newTopology(d, region, 1))
		for round := range model.Guard(20) {
			// A wake-up is pending, so that the report's wake-up changes nothing. Then either the step reads what the
			// report wrote, or there is a wake-up after it.
			guard := round + 1
			w.update(func(tx store.Tx) error { return tx.Wake([]string{app.ID}, now, now) })
			var seen model.Guard
			for _, err := range w.runUpdates(2, func(i int, tx store.Tx) error {
				if i == 0 {
					if err := tx.PutObserved([]model.Observed{newReport(d, region, guard)}); err != nil {
						return err
					}
					return tx.Wake([]string{app.ID}, now, now)
				}
				if err := tx.ClearWakes([]string{app.ID}); err != nil {
					return err
				}
				rows, err := tx.ListObserved([]string{app.ID})
				if len(rows) > 0 {
					seen = rows[0].Guard
				}
				return err
			}) {
				require.NoError(t, err)
			}
			if seen != guard {
				require.Equal(t, []string{app.ID}, due(w, 0, hour))
			}
		}
	})
}

func appsOf(wakes []model.Wake) []string {
	var ids []string
	for _, w := range wakes {
		ids = append(ids, w.AppID)
	}
	return ids
}
