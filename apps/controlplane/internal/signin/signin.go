// Package signin decides which roles sign-in rules give to the holder of a token. It is pure.
package signin

import (
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Identity is the verified content of a token.
type Identity struct {
	Issuer, Subject string
	// Email is empty if the issuer did not verify an address.
	Email string
	// Claims are the values of each claim. Members of objects are named with dots. The claim email is only there if
	// the issuer verified the address.
	Claims map[string][]string
	// Service means that the token is not from the issuer at which people sign in.
	Service bool
}

// Matches reports whether the claims meet all conditions of the rule.
func Matches(r model.SignInRule, claims map[string][]string) bool {
	if len(r.Conditions) == 0 {
		return false
	}
	for _, c := range r.Conditions {
		if !slices.ContainsFunc(claims[c.Claim], func(value string) bool { return meetsPattern(value, c.Value) }) {
			return false
		}
	}
	return true
}

// meetsPattern reports whether a value meets a pattern. A * at the end of the pattern matches any rest.
func meetsPattern(value, pattern string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(value, prefix)
	}
	return value == pattern
}

// Grant is what rules give a member.
type Grant struct {
	// Role is the highest role that a matching rule gives. Unspecified: no rule matches.
	Role windlassv1.Role
	// Rules are the names of the rules that match.
	Rules []string
	// FamilyID is the family as which the member counts at gates that need several approvers. It is the family of the
	// caller who set the rule for the role. Otherwise, this caller could become a second approver by a rule for itself.
	// Empty: an operator set the rule, and the person counts alone. All services of a workspace with roles by operators
	// are one family, because one person can run jobs with many subjects, such as one for each branch.
	FamilyID string
}

// GrantOf returns what the rules of the member's workspace give the member. issuer is the issuer at which people sign in,
// which rules leave empty.
//
// A person from an earlier issuer has no role, because the control plane cannot verify the person again.
func GrantOf(rules []model.SignInRule, m model.Member, issuer string) (g Grant) {
	for _, r := range rules {
		if r.WorkspaceID != m.WorkspaceID || !appliesTo(r, m, issuer) || !Matches(r, m.Claims) {
			continue
		}
		g.Rules = append(g.Rules, r.Name)
		if r.Role > g.Role || r.Role == g.Role && r.FamilyID == "" {
			g.Role, g.FamilyID = r.Role, r.FamilyID
		}
	}
	if len(g.Rules) > 0 && g.FamilyID == "" && m.IsService() {
		g.FamilyID = model.ServicePrefix + "_of_" + m.WorkspaceID
	}
	return g
}

func appliesTo(r model.SignInRule, m model.Member, issuer string) bool {
	if m.IsService() {
		return r.Issuer == m.Issuer
	}
	return r.Issuer == "" && m.Issuer == issuer
}

// Workspaces returns the ids of the workspaces in which rules give the identity a role. "" stands for the platform.
func Workspaces(rules []model.SignInRule, id Identity) (ids []string) {
	for _, r := range rules {
		if Matches(r, id.Claims) && !slices.Contains(ids, r.WorkspaceID) {
			ids = append(ids, r.WorkspaceID)
		}
	}
	return ids
}

// selective are the claims in tokens of services that name who runs the service. Public issuers, such as GitHub and
// GitLab, give tokens to everyone. job_workflow_ref is not in the list, because strangers can call a public
// workflow.
var selective = []string{
	"sub", "repository", "repository_id", "repository_owner", "repository_owner_id",
	"project_path", "project_id", "namespace_path", "namespace_id",
}

// IsOpen reports whether a rule for services accepts the tokens of any owner, because none of its conditions names an
// owner.
func IsOpen(r model.SignInRule) bool {
	return !slices.ContainsFunc(r.Conditions, func(c model.ClaimCondition) bool {
		return slices.Contains(selective, c.Claim) && isNarrow(c.Value)
	})
}

// isNarrow reports whether a value names one owner. A * must follow a / or the second :, because acme* also matches
// acme-evil, and repo:* matches all subjects of GitHub.
func isNarrow(value string) bool {
	prefix, ok := strings.CutSuffix(value, "*")
	return !ok || strings.HasSuffix(prefix, "/") || strings.HasSuffix(prefix, ":") && strings.Count(prefix, ":") > 1
}

// Selective returns the claims of which a rule for services needs one.
func Selective() []string { return slices.Clone(selective) }
