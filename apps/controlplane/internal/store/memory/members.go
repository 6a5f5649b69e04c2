package memory

import (
	"bytes"
	"cmp"
	"errors"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func (t *tx) InsertMember(m model.Member) error { return memberTable.overlayIn(t).insert(m) }

func (t *tx) UpdateMember(m model.Member) error {
	is, err := t.LockMember(m.WorkspaceID, m.ID)
	if err != nil {
		return err
	}
	is.Name, is.Email, is.Claims = m.Name, m.Email, m.Claims
	is.SignedInAt, is.RemovedAt, is.RemovedBy = m.SignedInAt, m.RemovedAt, m.RemovedBy
	return memberTable.overlayIn(t).put(is)
}

func (t *tx) GetMember(workspaceID, id string) (model.Member, error) {
	m, ok := memberTable.overlayIn(t).get(id)
	return oneRow(m, ok && m.WorkspaceID == workspaceID, "member", id)
}

func (t *tx) LockMember(workspaceID, id string) (model.Member, error) {
	m, ok, err := memberTable.overlayIn(t).lock(id)
	if err != nil {
		return m, err
	}
	return oneRow(m, ok && m.WorkspaceID == workspaceID, "member", id)
}

func (t *tx) LockMemberByIdentity(workspaceID string, identity []byte) (model.Member, error) {
	m, ok := memberTable.overlayIn(t).find(1, workspaceID+"\x00"+string(identity))
	if !ok {
		return m, notFound("member", "by identity")
	}
	return t.LockMember(workspaceID, m.ID)
}

func (t *tx) GetMemberByHash(hash []byte) (model.Member, error) {
	m, ok := memberTable.overlayIn(t).find(0, string(hash))
	return oneRow(m, ok, "member", "by hash")
}

func (t *tx) ListMembers(workspaceID string, p store.Page) ([]model.Member, error) {
	rows := memberTable.overlayIn(t).list(func(m model.Member) bool { return m.WorkspaceID == workspaceID })
	return pageOf(rows, p, func(m model.Member) string { return m.ID }), nil
}

func (t *tx) ListMembersNamed(workspaceID, name string, limit int) ([]model.Member, error) {
	rows := memberTable.overlayIn(t).list(func(m model.Member) bool { return m.WorkspaceID == workspaceID && m.Name == name })
	return pageOf(rows, store.Page{Limit: limit}, func(m model.Member) string { return m.ID }), nil
}

func (t *tx) CountMembers(workspaceID string) (int, error) {
	return len(memberTable.overlayIn(t).list(func(m model.Member) bool { return m.WorkspaceID == workspaceID })), nil
}

func (t *tx) PutSignInRule(r model.SignInRule) error { return signInRuleTable.overlayIn(t).put(r) }

func (t *tx) ListSignInRules(workspaceID string) ([]model.SignInRule, error) {
	return signInRuleTable.overlayIn(t).list(func(r model.SignInRule) bool { return r.WorkspaceID == workspaceID }), nil
}

func (t *tx) ListSignInRulesOfIssuer(issuer string) ([]model.SignInRule, error) {
	return signInRuleTable.overlayIn(t).list(func(r model.SignInRule) bool { return r.Issuer == issuer }), nil
}

func (t *tx) DeleteSignInRule(workspaceID, name string) error {
	key := pair{workspaceID, name}
	if _, ok, err := signInRuleTable.overlayIn(t).lock(key); err != nil {
		return err
	} else if !ok {
		return notFound("sign-in rule", name)
	}
	return signInRuleTable.overlayIn(t).delete(key)
}

func (t *tx) deleteMembersOfWorkspace(id string) error {
	_, members := forgetRows(memberTable.overlayIn(t), 0, func(m model.Member) bool { return m.WorkspaceID == id }, nil)
	_, rules := forgetRows(signInRuleTable.overlayIn(t), 0, func(r model.SignInRule) bool { return r.WorkspaceID == id }, nil)
	return errors.Join(members, rules)
}

func (t *tx) InsertUsedSignIn(u model.UsedSignIn) error {
	return usedSignInTable.overlayIn(t).insert(u)
}

func (t *tx) DeleteUsedSignIns(expiredBefore int64, limit int) (int, error) {
	return forgetRows(usedSignInTable.overlayIn(t), limit, func(u model.UsedSignIn) bool { return u.ExpiresAt < expiredBefore },
		func(a, b model.UsedSignIn) int {
			return cmp.Or(cmp.Compare(a.ExpiresAt, b.ExpiresAt), bytes.Compare(a.Hash, b.Hash))
		})
}

func (t *tx) DeleteIdleMembers(signedInBefore int64, limit int) (int, error) {
	return forgetRows(memberTable.overlayIn(t), limit, func(m model.Member) bool { return m.SignedInAt < signedInBefore && m.RemovedAt == 0 },
		func(a, b model.Member) int {
			return cmp.Or(cmp.Compare(a.SignedInAt, b.SignedInAt), cmp.Compare(a.ID, b.ID))
		})
}
