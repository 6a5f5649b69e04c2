package api

import (
	"errors"
	"fmt"
	"slices"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/signin"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A member calls with a session. Other sessions have the hash of an API key, and a member's session has the member's
// hash in the same field. For it, the keyring finds the member, evaluates the rules of the member's workspace, and
// returns a key with the member's id, name and role. So all that applies to keys also applies to members: the access
// table, limits on reads and watchers, audit, families of approvers, and the end of streams. The keyring's cache
// bounds how long another process acts on an earlier rule.

// memberByHash returns the key that stands for the member with the hash.
func (a *server) memberByHash(tx Tx, hash []byte) (key model.APIKey, err error) {
	m, err := tx.GetMemberByHash(hash)
	if err != nil {
		return key, err
	}
	rules, err := tx.ListSignInRules(m.WorkspaceID)
	if err != nil {
		return key, fmt.Errorf("list sign-in rules of workspace %s: %w", m.WorkspaceID, err)
	}
	return a.keyOfMember(m, rules), nil
}

// keyOfMember returns the key that stands for the member. Its role is unspecified if no rule matches.
func (a *server) keyOfMember(m model.Member, rules []model.SignInRule) model.APIKey {
	grant := signin.GrantOf(rules, m, a.signInIssuer())
	return model.APIKey{
		ID: m.ID, FamilyID: grant.FamilyID, WorkspaceID: m.WorkspaceID, Name: m.Name, Role: grant.Role, Hash: m.Hash, CreatedAt: m.CreatedAt, RevokedAt: m.RemovedAt,
	}
}

// signInIssuer returns the issuer at which people sign in, or "".
func (a *server) signInIssuer() string {
	if a.cfg.SSO == nil {
		return ""
	}
	return a.cfg.SSO.Issuer()
}

func hasNoRole(key model.APIKey) bool {
	return key.IsMember() && key.Role == windlassv1.Role_ROLE_UNSPECIFIED
}

func memberRemoved(name string) error {
	return unauthenticatedError("member "+name+" was removed", "Ask an owner of the workspace to restore it: `windlass members restore`.")
}

func noRoleLeft(name string) error {
	return unauthenticatedError("no sign-in rule gives "+name+" a role any more",
		"Ask an owner of the workspace for a rule, and sign in again.")
}

// memberProto returns the member with the role that the rules of its workspace give it.
func (a *server) memberProto(m model.Member, rules []model.SignInRule) *windlassv1.Member {
	grant := signin.GrantOf(rules, m, a.signInIssuer())
	return &windlassv1.Member{
		Id: m.ID, Name: m.Name, WorkspaceId: m.WorkspaceID, Issuer: m.Issuer, Subject: m.Subject, Email: m.Email,
		Role: grant.Role, Rules: grant.Rules, Service: m.IsService(), CreatedAt: m.CreatedAt, SignedInAt: m.SignedInAt,
		RemovedAt: m.RemovedAt, RemovedBy: m.RemovedBy,
	}
}

// memberView reads a member in the form of the API.
func (a *server) memberView(tx Tx, workspaceID, id string) (*windlassv1.Member, error) {
	m, err := tx.GetMember(workspaceID, id)
	if err != nil {
		return nil, fmt.Errorf("read member %s: %w", id, err)
	}
	rules, err := tx.ListSignInRules(workspaceID)
	if err != nil {
		return nil, fmt.Errorf("list sign-in rules of workspace %s: %w", workspaceID, err)
	}
	return a.memberProto(m, rules), nil
}

// scopeOfMembers returns the id of the workspace that owns the members of a call. It is "" for the platform, if the
// caller is an operator and ref is empty.
func (a *server) scopeOfMembers(tx Tx, by caller, ref string) (string, error) {
	if by.IsOperator() && ref == "" {
		return "", nil
	}
	w, err := a.visibleWorkspace(tx, by, ref)
	return w.ID, err
}

// lockMemberByRef locks the member with the id or the name.
func (c tenantMutation) lockMemberByRef(workspaceID, ref string) (m model.Member, err error) {
	id := ref
	if !ident.Valid(model.PersonPrefix, ref) && !ident.Valid(model.ServicePrefix, ref) {
		named, err := c.ListMembersNamed(workspaceID, ref, 2)
		switch {
		case err != nil:
			return m, fmt.Errorf("list members of workspace %s: %w", workspaceID, err)
		case len(named) == 0:
			return m, unknownMember(ref)
		case len(named) > 1:
			return m, apierr.InvalidFix("member", "several members have the name "+ref, "Use the id, which `windlass members list` shows.")
		}
		id = named[0].ID
	}
	m, err = c.LockMember(workspaceID, id)
	switch {
	case errors.Is(err, model.ErrNotFound):
		return m, unknownMember(ref)
	case err != nil:
		return m, fmt.Errorf("lock member %s: %w", id, err)
	}
	return m, nil
}

func unknownMember(ref string) error {
	return apierr.Missing("member", "member", ref, "`windlass members list` shows the members.")
}

func ruleProto(r model.SignInRule) *windlassv1.SignInRule {
	out := &windlassv1.SignInRule{Name: r.Name, Role: r.Role, Issuer: r.Issuer, SetBy: r.SetBy, SetAt: r.SetAt, ByOperator: r.FamilyID == ""}
	for _, c := range r.Conditions {
		out.Conditions = append(out.Conditions, &windlassv1.ClaimCondition{Claim: c.Claim, Value: c.Value})
	}
	return out
}

// ruleID returns the id of a rule in the audit.
func ruleID(r model.SignInRule) string { return r.Name }

// ruleOf checks the rule of a request, and returns it.
func (a *server) ruleOf(by caller, workspaceID string, in *windlassv1.SignInRule) (r model.SignInRule, err error) {
	r = model.SignInRule{WorkspaceID: workspaceID, Name: in.GetName(), Issuer: in.GetIssuer(), Role: in.GetRole()}
	if !by.IsOperator() {
		r.FamilyID = by.Family()
	}
	for i, c := range in.GetConditions() {
		if c.GetClaim() == "iss" || c.GetClaim() == "aud" {
			return r, apierr.InvalidFix(fmt.Sprintf("rule.conditions[%d].claim", i), "the control plane checks issuer and audience itself",
				"Use a claim that names the person or service, such as groups, email or repository.")
		}
		r.Conditions = append(r.Conditions, model.ClaimCondition{Claim: c.GetClaim(), Value: c.GetValue()})
	}
	switch ofPlatform := workspaceID == ""; {
	case ofPlatform && r.Role != windlassv1.Role_ROLE_OPERATOR:
		return r, apierr.InvalidFix("workspace", "a rule with role "+model.RoleName(r.Role)+" belongs to a workspace", "Name the workspace, or use role operator.")
	case !ofPlatform && r.Role == windlassv1.Role_ROLE_OPERATOR && !by.IsOperator():
		return r, apierr.Denied("a rule of a workspace cannot make operators", "Ask an operator of the platform.")
	case !ofPlatform && r.Role == windlassv1.Role_ROLE_OPERATOR:
		return r, apierr.InvalidFix("workspace", "an operator belongs to no workspace", "Leave workspace out, or use role viewer, deployer or owner.")
	case r.Issuer == "" && matchesAll(r):
		return r, apierr.InvalidFix("rule.conditions", "the rule gives the role to everyone whom the issuer knows", "Add a condition with a value, such as groups=ml-team.")
	case r.Issuer == "":
		return r, nil
	}
	var accepted []string
	if a.cfg.SSO != nil {
		accepted = a.cfg.SSO.FederationIssuers()
	}
	switch {
	case !slices.Contains(accepted, r.Issuer):
		return r, apierr.InvalidFix("rule.issuer", "the control plane does not accept tokens of "+r.Issuer,
			"An operator adds issuers with --federation-issuers. `windlass federation list` shows the accepted ones.")
	case signin.IsOpen(r):
		return r, apierr.InvalidFix("rule.conditions", "the rule does not say who may use it, and issuers of CI give tokens to all their users",
			fmt.Sprintf("Add a condition on one of %v. In it, a * must follow / or the second :, as in repository=acme/*.", signin.Selective()))
	}
	return r, nil
}

// matchesAll reports whether every condition of the rule accepts any value of its claim.
func matchesAll(r model.SignInRule) bool {
	return !slices.ContainsFunc(r.Conditions, func(c model.ClaimCondition) bool { return c.Value != "*" })
}

func sameRule(a, b model.SignInRule) bool {
	return a.Name == b.Name && a.Issuer == b.Issuer && a.Role == b.Role && a.FamilyID == b.FamilyID && slices.Equal(a.Conditions, b.Conditions)
}

// noRule returns the error of a name that no rule has.
func noRule(name string) error {
	return rpc.ErrorWith(connect.CodeNotFound, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, Field: "name",
		Fix: "`windlass members rule list` and `windlass federation list` show the rules.",
	}, "there is no sign-in rule "+name)
}
