package store

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// MemberTx has the queries of members, sign-in rules and sign-ins. It reads the primary, so that a removal takes effect
// at once. An empty workspace means the platform.
type MemberTx interface {
	// InsertMember fails with model.ErrExists if the workspace has a member with the identity.
	InsertMember(model.Member) error
	// UpdateMember stores the fields that change: name, email, claims, and the times.
	UpdateMember(model.Member) error
	GetMember(workspaceID, id string) (model.Member, error)
	// LockMember returns the member, locked.
	LockMember(workspaceID, id string) (model.Member, error)
	// LockMemberByIdentity returns the member with the identity, locked.
	LockMemberByIdentity(workspaceID string, identity []byte) (model.Member, error)
	GetMemberByHash(hash []byte) (model.Member, error)
	// ListMembers returns members by id. Page.After is the last id.
	ListMembers(workspaceID string, p Page) ([]model.Member, error)
	// ListMembersNamed returns members with the name, by id.
	ListMembersNamed(workspaceID, name string, limit int) ([]model.Member, error)
	CountMembers(workspaceID string) (int, error)

	// PutSignInRule inserts the rule. It replaces the rule with the same workspace and name.
	PutSignInRule(model.SignInRule) error
	// ListSignInRules returns rules by name.
	ListSignInRules(workspaceID string) ([]model.SignInRule, error)
	// ListSignInRulesOfIssuer returns the rules of all workspaces and of the platform, by workspace and name.
	ListSignInRulesOfIssuer(issuer string) ([]model.SignInRule, error)
	DeleteSignInRule(workspaceID, name string) error

	// InsertUsedSignIn fails with model.ErrExists if the value was used before.
	InsertUsedSignIn(model.UsedSignIn) error
	// DeleteUsedSignIns deletes values that expired before that time, the oldest first.
	DeleteUsedSignIns(expiredBefore int64, limit int) (int, error)
	// DeleteIdleMembers deletes members that last signed in before that time, the oldest first. Removed members stay.
	DeleteIdleMembers(signedInBefore int64, limit int) (int, error)
}
