package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func testDomains(t *testing.T, setup setup) {
	of := func(w *fixture, appIDs ...string) []model.Domain {
		w.t.Helper()
		return read(w, func(tx store.Tx) ([]model.Domain, error) { return tx.DomainsOfApps(appIDs) })
	}
	insert := func(w *fixture, d model.Domain) {
		w.t.Helper()
		w.update(func(tx store.Tx) error { return tx.InsertDomain(d) })
	}
	wait := func(w *fixture, appID, name string) model.Domain {
		return model.Domain{Name: name, WorkspaceID: w.ws, AppID: appID, Token: "t-" + appID, CreatedBy: "ada", CreatedAt: now}
	}

	t.Run("several apps may wait for a domain, and one has it", func(t *testing.T) {
		w := setup(t)
		one, other := wait(w, "app_1", "chat.example.com"), wait(w, "app_2", "chat.example.com")
		insert(w, one)
		insert(w, other)
		w.requireFails(model.ErrExists, func(tx store.Tx) error { return tx.InsertDomain(one) })
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { _, err := tx.HolderOfDomain(one.Name); return err })
		require.Equal(t, []model.Domain{one, other}, of(w, "app_2", "app_1", "app_none"))

		w.update(func(tx store.Tx) error { return tx.VerifyDomain("app_2", other.Name, now+1) })
		other.VerifiedAt, other.CheckedAt = now+1, now+1
		holder := read(w, func(tx store.Tx) (model.Domain, error) { return tx.HolderOfDomain(one.Name) })
		require.Equal(t, other, holder)
		w.requireFails(model.ErrExists, func(tx store.Tx) error { return tx.VerifyDomain("app_1", one.Name, now+2) })
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.VerifyDomain("app_3", one.Name, now+2) })
		require.Equal(t, []model.Domain{one, other}, of(w, "app_1", "app_2"))

		w.update(func(tx store.Tx) error { return tx.DeleteDomain("app_2", other.Name) })
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.DeleteDomain("app_2", other.Name) })
		w.update(func(tx store.Tx) error { return tx.VerifyDomain("app_1", one.Name, now+2) })
		w.update(func(tx store.Tx) error { return tx.VerifyDomain("app_1", one.Name, now+2) })
		one.VerifiedAt, one.CheckedAt = now+2, now+2
		require.Equal(t, []model.Domain{one}, of(w, "app_1", "app_2"))

		w.update(func(tx store.Tx) error { return tx.ReleaseDomain("app_1", one.Name) })
		one.VerifiedAt, one.CheckedAt = 0, 0
		require.Equal(t, []model.Domain{one}, of(w, "app_1"))
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { _, err := tx.HolderOfDomain(one.Name); return err })
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.ReleaseDomain("app_2", one.Name) })
	})

	t.Run("held domains are checked, the oldest check first", func(t *testing.T) {
		w := setup(t)
		var all []model.Domain
		for i, name := range []string{"a.example.com", "b.example.com", "c.example.com", "d.example.com"} {
			d := wait(w, "app_1", name)
			insert(w, d)
			if i < 3 {
				at := now + int64(3-i)
				w.update(func(tx store.Tx) error { return tx.VerifyDomain("app_1", name, at) })
				d.VerifiedAt, d.CheckedAt = at, at
			}
			all = append(all, d)
		}
		a, b, c := &all[0], &all[1], &all[2]
		due := func(before int64, limit int) []model.Domain {
			return read(w, func(tx store.Tx) ([]model.Domain, error) { return tx.DomainsToCheck(before, limit) })
		}
		require.Equal(t, []model.Domain{*c, *b, *a}, due(now+9, 9))
		require.Equal(t, []model.Domain{*c, *b}, due(now+3, 9))
		require.Equal(t, []model.Domain{*c}, due(now+9, 1))
		note := func(checks model.DomainChecks, at int64) {
			w.update(func(tx store.Tx) error { return tx.NoteDomainChecks(checks, at) })
		}
		note(model.DomainChecks{Found: []string{a.Name}, Missing: []string{b.Name}, Unanswered: []string{c.Name, "d.example.com", "none.example.com"}}, now+10)
		a.CheckedAt, b.CheckedAt, c.CheckedAt, b.MissingSince = now+10, now+10, now+10, now+10
		require.Equal(t, all, of(w, "app_1"))
		note(model.DomainChecks{Missing: []string{b.Name, c.Name}, Lapsed: []string{b.Name}}, now+20)
		b.CheckedAt, c.CheckedAt, c.MissingSince, b.LapsedAt = now+20, now+20, now+20, now+20
		require.Equal(t, all, of(w, "app_1"))
		w.update(func(tx store.Tx) error {
			got, err := tx.LockHeldDomains([]string{"d.example.com", b.Name, a.Name})
			require.Equal(t, all[:2], got)
			return err
		})
		note(model.DomainChecks{Found: []string{b.Name}}, now+30)
		b.CheckedAt, b.MissingSince, b.LapsedAt = now+30, 0, 0
		require.Equal(t, all, of(w, "app_1"))
		note(model.DomainChecks{Missing: []string{b.Name}, Lapsed: []string{b.Name}}, now+40)
		w.update(func(tx store.Tx) error { return tx.VerifyDomain("app_1", b.Name, now+50) })
		b.VerifiedAt, b.CheckedAt = now+50, now+50
		require.Equal(t, all, of(w, "app_1"))
	})

	t.Run("domains are listed by name and app, and are deleted with the app", func(t *testing.T) {
		w := setup(t)
		a1, b1, b2 := wait(w, "app_1", "a.example.com"), wait(w, "app_1", "b.example.com"), wait(w, "app_2", "b.example.com")
		elsewhere := wait(w, "app_9", "a.example.com")
		elsewhere.WorkspaceID = "ws_other"
		for _, d := range []model.Domain{b2, b1, elsewhere, a1} {
			insert(w, d)
		}
		list := func(appID, after string, n int) []model.Domain {
			return read(w, func(tx store.Tx) ([]model.Domain, error) {
				return tx.ListDomains(w.ws, appID, store.Page{After: after, Limit: n})
			})
		}
		require.Equal(t, []model.Domain{a1, b1}, list("", "", 2))
		require.Equal(t, []model.Domain{b2}, list("", "b.example.com\x00app_1", 2))
		require.Equal(t, []model.Domain{b1}, list("app_1", "a.example.com\x00app_1", 9))
		w.update(func(tx store.Tx) error { return tx.DeleteDomainsOf("app_1") })
		require.Equal(t, []model.Domain{b2}, list("", "", 9))
		require.Equal(t, []model.Domain{elsewhere}, of(w, "app_9"))
	})
}
