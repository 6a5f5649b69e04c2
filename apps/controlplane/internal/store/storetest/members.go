package storetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func testMembers(t *testing.T, setup setup) {
	member := func(w *fixture, n int) model.Member {
		return model.Member{
			ID: fmt.Sprintf("mem_%d", n), WorkspaceID: w.ws, Issuer: "https://id.example", Subject: fmt.Sprintf("u-%d", n),
			Name: "ada@example.com", Email: "ada@example.com", Claims: map[string][]string{"groups": {"ml", "ops"}, "sub": {"u"}},
			Hash: fmt.Appendf(nil, "%032d", n), CreatedAt: now, SignedInAt: now + int64(n),
		}
	}
	insert := func(w *fixture, rows ...model.Member) {
		for _, m := range rows {
			w.update(func(tx store.Tx) error { return tx.InsertMember(m) })
		}
	}
	get := func(w *fixture, id string) func(store.Tx) (model.Member, error) {
		return func(tx store.Tx) (model.Member, error) { return tx.GetMember(w.ws, id) }
	}

	t.Run("a member is found by id, hash and identity, in its workspace only", func(t *testing.T) {
		w := setup(t)
		m := member(w, 1)
		m.RemovedAt, m.RemovedBy = now, "ann"
		insert(w, m)
		require.Equal(t, m, read(w, get(w, m.ID)))
		require.Equal(t, m, read(w, func(tx store.Tx) (model.Member, error) { return tx.GetMemberByHash(m.Hash) }))
		w.update(func(tx store.Tx) error {
			found, err := tx.LockMemberByIdentity(w.ws, m.Identity())
			require.Equal(t, m, found)
			return err
		})
		w.update(func(tx store.Tx) error {
			found, err := tx.LockMember(w.ws, m.ID)
			require.Equal(t, m, found)
			return err
		})
		requireMissing(w, func(tx store.Tx) (model.Member, error) { return tx.GetMember("ws_other", m.ID) })
		requireMissing(w, func(tx store.Tx) (model.Member, error) { return tx.GetMemberByHash([]byte("other")) })
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { _, err := tx.LockMember("ws_other", m.ID); return err })
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { _, err := tx.LockMemberByIdentity("", m.Identity()); return err })
	})

	t.Run("an identity is once in a workspace", func(t *testing.T) {
		w := setup(t)
		insert(w, member(w, 1))
		again := member(w, 2)
		again.Subject = "u-1"
		w.requireFails(model.ErrExists, func(tx store.Tx) error { return tx.InsertMember(again) })
		again.WorkspaceID = ""
		insert(w, again)
		require.Equal(t, 1, read(w, func(tx store.Tx) (int, error) { return tx.CountMembers(w.ws) }))
	})

	t.Run("an update changes what a sign-in and a removal change", func(t *testing.T) {
		w := setup(t)
		m := member(w, 1)
		insert(w, m)
		m.Name, m.Email, m.Claims, m.SignedInAt, m.RemovedAt, m.RemovedBy = "b@example.com", "", map[string][]string{"x": {"y"}}, now+9, now+10, "bob"
		w.update(func(tx store.Tx) error { return tx.UpdateMember(m) })
		require.Equal(t, m, read(w, get(w, m.ID)))
		m.WorkspaceID = "ws_other"
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.UpdateMember(m) })
	})

	t.Run("members are listed by id and by name", func(t *testing.T) {
		w := setup(t)
		other := member(w, 3)
		other.Name = "bob@example.com"
		insert(w, member(w, 2), member(w, 1), other)
		ids := func(rows []model.Member) (out []string) {
			for _, m := range rows {
				out = append(out, m.ID)
			}
			return out
		}
		list := func(p store.Page) []string {
			return ids(read(w, func(tx store.Tx) ([]model.Member, error) { return tx.ListMembers(w.ws, p) }))
		}
		require.Equal(t, []string{"mem_1", "mem_2"}, list(store.Page{Limit: 2}))
		require.Equal(t, []string{"mem_3"}, list(store.Page{Limit: 2, After: "mem_2"}))
		require.Equal(t, []string{"mem_1", "mem_2"}, ids(read(w, func(tx store.Tx) ([]model.Member, error) {
			return tx.ListMembersNamed(w.ws, "ada@example.com", 9)
		})))
	})

	t.Run("a rule is what was put last, by its name", func(t *testing.T) {
		w := setup(t)
		r := filledRow[model.SignInRule]()
		r.WorkspaceID, r.Name, r.Issuer = w.ws, "ml", "https://ci.example"
		other := model.SignInRule{WorkspaceID: "", Name: "ml", Role: windlassv1.Role_ROLE_OPERATOR, Conditions: []model.ClaimCondition{{Claim: "groups", Value: "ops"}}}
		w.update(func(tx store.Tx) error { return tx.PutSignInRule(r) })
		r.Role = windlassv1.Role_ROLE_VIEWER
		w.update(func(tx store.Tx) error { return tx.PutSignInRule(r) })
		w.update(func(tx store.Tx) error { return tx.PutSignInRule(other) })
		list := func(f func(store.Tx) ([]model.SignInRule, error)) []model.SignInRule { return read(w, f) }
		require.Equal(t, []model.SignInRule{r}, list(func(tx store.Tx) ([]model.SignInRule, error) { return tx.ListSignInRules(w.ws) }))
		require.Equal(t, []model.SignInRule{r}, list(func(tx store.Tx) ([]model.SignInRule, error) { return tx.ListSignInRulesOfIssuer("https://ci.example") }))
		require.Equal(t, []model.SignInRule{other}, list(func(tx store.Tx) ([]model.SignInRule, error) { return tx.ListSignInRulesOfIssuer("") }))
		w.update(func(tx store.Tx) error { return tx.DeleteSignInRule(w.ws, "ml") })
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.DeleteSignInRule(w.ws, "ml") })
		require.Len(t, list(func(tx store.Tx) ([]model.SignInRule, error) { return tx.ListSignInRules("") }), 1)
	})

	t.Run("members and rules are deleted with their workspace", func(t *testing.T) {
		w := setup(t)
		insert(w, member(w, 1))
		w.update(func(tx store.Tx) error { return tx.PutSignInRule(model.SignInRule{WorkspaceID: w.ws, Name: "r"}) })
		w.update(func(tx store.Tx) error { return tx.DeleteWorkspace(w.ws) })
		requireMissing(w, get(w, "mem_1"))
		require.Empty(t, read(w, func(tx store.Tx) ([]model.SignInRule, error) { return tx.ListSignInRules(w.ws) }))
	})

	t.Run("a sign-in is used once, and forgotten after its expiry", func(t *testing.T) {
		w := setup(t)
		use := func(hash string, expires int64) func(store.Tx) error {
			return func(tx store.Tx) error {
				return tx.InsertUsedSignIn(model.UsedSignIn{Hash: []byte(hash), ExpiresAt: expires})
			}
		}
		w.update(use("a", now))
		w.update(use("b", now+9))
		w.requireFails(model.ErrExists, use("a", now+99))
		w.update(func(tx store.Tx) error {
			n, err := tx.DeleteUsedSignIns(now+5, 10)
			require.Equal(t, 1, n)
			return err
		})
		w.update(use("a", now))
		w.requireFails(model.ErrExists, use("b", now))
	})

	t.Run("idle members are forgotten, unless they were removed", func(t *testing.T) {
		w := setup(t)
		removed := member(w, 1)
		removed.RemovedAt = now
		insert(w, removed, member(w, 2), member(w, 3), member(w, 4))
		w.update(func(tx store.Tx) error {
			n, err := tx.DeleteIdleMembers(now+4, 1)
			require.Equal(t, 1, n)
			return err
		})
		requireMissing(w, get(w, "mem_2"))
		w.update(func(tx store.Tx) error { _, err := tx.DeleteIdleMembers(now+4, 9); return err })
		requireMissing(w, get(w, "mem_3"))
		read(w, get(w, "mem_1"))
		read(w, get(w, "mem_4"))
	})
}
