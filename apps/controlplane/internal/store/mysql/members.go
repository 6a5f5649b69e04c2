package mysql

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func memberFromRow(r gen.Member) (model.Member, error) {
	m := model.Member{
		ID: r.ID, WorkspaceID: r.WorkspaceID, Issuer: r.Issuer, Subject: r.Subject, Name: r.Name, Email: r.Email,
		Hash: blobOrNil(r.Hash), CreatedAt: r.CreatedAt, SignedInAt: r.SignedInAt, RemovedAt: r.RemovedAt, RemovedBy: r.RemovedBy,
	}
	if err := decodeJSON(r.Claims, &m.Claims); err != nil {
		return m, fmt.Errorf("claims of member %s: %w", r.ID, err)
	}
	return m, nil
}

func (t *tx) InsertMember(m model.Member) error {
	claims, err := encodeJSON(m.Claims)
	if err != nil {
		return fmt.Errorf("store: claims of member %s: %w", m.ID, err)
	}
	return t.queryError(t.q.InsertMember(t.ctx, gen.InsertMemberParams{
		ID: m.ID, WorkspaceID: m.WorkspaceID, Identity: m.Identity(), Issuer: m.Issuer, Subject: m.Subject, Name: m.Name, Email: m.Email,
		Claims: claims, Hash: notNull(m.Hash), CreatedAt: m.CreatedAt, SignedInAt: m.SignedInAt, RemovedAt: m.RemovedAt, RemovedBy: clipText(m.RemovedBy, maxName),
	}), "insert member", m.ID)
}

func (t *tx) UpdateMember(m model.Member) error {
	claims, err := encodeJSON(m.Claims)
	if err != nil {
		return fmt.Errorf("store: claims of member %s: %w", m.ID, err)
	}
	n, err := t.q.UpdateMember(t.ctx, gen.UpdateMemberParams{
		Name: m.Name, Email: m.Email, Claims: claims, SignedInAt: m.SignedInAt, RemovedAt: m.RemovedAt, RemovedBy: clipText(m.RemovedBy, maxName),
		WorkspaceID: m.WorkspaceID, ID: m.ID,
	})
	return t.requireFound(n, err, "update member", m.ID)
}

func (t *tx) GetMember(workspaceID, id string) (model.Member, error) {
	return get(t, "get member", id, memberFromRow)(t.primary.GetMember(t.ctx, gen.GetMemberParams{WorkspaceID: workspaceID, ID: id}))
}

func (t *tx) LockMember(workspaceID, id string) (model.Member, error) {
	if err := t.requireUpdate("lock member", id); err != nil {
		return model.Member{}, err
	}
	return get(t, "lock member", id, memberFromRow)(t.q.LockMember(t.ctx, gen.LockMemberParams{WorkspaceID: workspaceID, ID: id}))
}

func (t *tx) LockMemberByIdentity(workspaceID string, identity []byte) (model.Member, error) {
	if err := t.requireUpdate("lock member", "by identity"); err != nil {
		return model.Member{}, err
	}
	return get(t, "lock member", "by identity", memberFromRow)(t.q.LockMemberByIdentity(t.ctx, gen.LockMemberByIdentityParams{
		WorkspaceID: workspaceID, Identity: identity,
	}))
}

func (t *tx) GetMemberByHash(hash []byte) (model.Member, error) {
	return get(t, "get member", "by hash", memberFromRow)(t.primary.GetMemberByHash(t.ctx, hash))
}

func (t *tx) ListMembers(workspaceID string, p store.Page) ([]model.Member, error) {
	return list(t, "list members of", workspaceID, memberFromRow)(t.q.ListMembers(t.ctx, gen.ListMembersParams{
		WorkspaceID: workspaceID, After: p.After, Limit: limitOrAll(p.Limit),
	}))
}

func (t *tx) ListMembersNamed(workspaceID, name string, n int) ([]model.Member, error) {
	return list(t, "list members of", workspaceID, memberFromRow)(t.q.ListMembersNamed(t.ctx, gen.ListMembersNamedParams{
		WorkspaceID: workspaceID, Name: name, Limit: limitOrAll(n),
	}))
}

func (t *tx) CountMembers(workspaceID string) (int, error) {
	n, err := t.primary.CountMembers(t.ctx, workspaceID)
	return int(n), t.queryError(err, "count members of", workspaceID)
}

func signInRule(r gen.SignInRule) (model.SignInRule, error) {
	rule := model.SignInRule{
		WorkspaceID: r.WorkspaceID, Name: r.Name, Issuer: r.Issuer, Role: windlassv1.Role(r.Role), FamilyID: r.FamilyID, SetBy: r.SetBy, SetAt: r.SetAt,
	}
	if err := decodeJSON(r.Conditions, &rule.Conditions); err != nil {
		return rule, fmt.Errorf("conditions of sign-in rule %s: %w", r.Name, err)
	}
	return rule, nil
}

func (t *tx) PutSignInRule(r model.SignInRule) error {
	conditions, err := encodeJSON(r.Conditions)
	if err != nil {
		return fmt.Errorf("store: conditions of sign-in rule %s: %w", r.Name, err)
	}
	return t.queryError(t.q.PutSignInRule(t.ctx, gen.PutSignInRuleParams{
		WorkspaceID: r.WorkspaceID, Name: r.Name, Issuer: r.Issuer, Role: int32(r.Role), Conditions: conditions,
		FamilyID: r.FamilyID, SetBy: clipText(r.SetBy, maxName), SetAt: r.SetAt,
	}), "put sign-in rule", r.Name)
}

func (t *tx) ListSignInRules(workspaceID string) ([]model.SignInRule, error) {
	return list(t, "list sign-in rules of", workspaceID, signInRule)(t.primary.ListSignInRules(t.ctx, workspaceID))
}

func (t *tx) ListSignInRulesOfIssuer(issuer string) ([]model.SignInRule, error) {
	return list(t, "list sign-in rules of", issuer, signInRule)(t.primary.ListSignInRulesOfIssuer(t.ctx, issuer))
}

func (t *tx) DeleteSignInRule(workspaceID, name string) error {
	n, err := t.q.DeleteSignInRule(t.ctx, gen.DeleteSignInRuleParams{WorkspaceID: workspaceID, Name: name})
	return t.requireFound(n, err, "delete sign-in rule", name)
}

func (t *tx) InsertUsedSignIn(u model.UsedSignIn) error {
	return t.queryError(t.q.InsertUsedSignIn(t.ctx, gen.InsertUsedSignInParams{Hash: notNull(u.Hash), ExpiresAt: u.ExpiresAt}), "insert used sign-in", "")
}

func (t *tx) DeleteUsedSignIns(expiredBefore int64, n int) (int, error) {
	gone, err := t.q.DeleteUsedSignIns(t.ctx, gen.DeleteUsedSignInsParams{ExpiredBefore: expiredBefore, Limit: limitOrAll(n)})
	return int(gone), t.queryError(err, "delete used sign-ins", "")
}

func (t *tx) DeleteIdleMembers(signedInBefore int64, n int) (int, error) {
	gone, err := t.q.DeleteIdleMembers(t.ctx, gen.DeleteIdleMembersParams{SignedInBefore: signedInBefore, Limit: limitOrAll(n)})
	return int(gone), t.queryError(err, "delete idle members", "")
}
