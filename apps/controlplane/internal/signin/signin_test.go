package signin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/signin"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	viewer   = windlassv1.Role_ROLE_VIEWER
	deployer = windlassv1.Role_ROLE_DEPLOYER
	owner    = windlassv1.Role_ROLE_OWNER
)

func rule(workspace, name, issuer string, role windlassv1.Role, conditions ...string) model.SignInRule {
	r := model.SignInRule{WorkspaceID: workspace, Name: name, Issuer: issuer, Role: role}
	for i := 0; i < len(conditions); i += 2 {
		r.Conditions = append(r.Conditions, model.ClaimCondition{Claim: conditions[i], Value: conditions[i+1]})
	}
	return r
}

func TestMatches(t *testing.T) {
	claims := map[string][]string{"groups": {"ml", "ops"}, "ref": {"refs/tags/v1.2"}, "empty": {}}
	for name, c := range map[string]struct {
		conditions []string
		want       bool
	}{
		"any item of a list":             {[]string{"groups", "ops"}, true},
		"all conditions":                 {[]string{"groups", "ml", "ref", "refs/tags/v1.2"}, true},
		"one condition fails":            {[]string{"groups", "ml", "ref", "refs/heads/main"}, false},
		"a prefix":                       {[]string{"ref", "refs/tags/*"}, true},
		"a * is only special at the end": {[]string{"ref", "refs/*/v1.2"}, false},
		"case matters":                   {[]string{"groups", "ML"}, false},
		"a claim that is missing":        {[]string{"other", "*"}, false},
		"a claim without values":         {[]string{"empty", "*"}, false},
		"no conditions":                  {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, signin.Matches(rule("ws", "r", "", viewer, c.conditions...), claims))
		})
	}
}

func TestGrantOf(t *testing.T) {
	const home, ci = "https://id.example", "https://ci.example"
	rules := []model.SignInRule{
		rule("ws_1", "all", "", viewer, "groups", "staff"),
		rule("ws_1", "ml", "", owner, "groups", "ml"),
		rule("ws_1", "ci", ci, deployer, "groups", "staff"),
		rule("ws_2", "theirs", "", owner, "groups", "staff"),
	}
	person := model.Member{ID: "mem_1", WorkspaceID: "ws_1", Issuer: home, Claims: map[string][]string{"groups": {"staff", "ml"}}}
	service := model.Member{ID: "svc_1", WorkspaceID: "ws_1", Issuer: ci, Claims: person.Claims}
	roleOf := func(m model.Member, issuer string) windlassv1.Role {
		return signin.GrantOf(rules, m, issuer).Role
	}

	require.Equal(t, signin.Grant{Role: owner, Rules: []string{"all", "ml"}}, signin.GrantOf(rules, person, home), "the highest role counts")
	require.Equal(t, deployer, roleOf(service, home), "a service has the roles of rules with its issuer only")
	other := person
	other.Claims = map[string][]string{"groups": {"guests"}}
	require.Zero(t, roleOf(other, home))
	require.Zero(t, roleOf(person, "https://another.example"), "a person of an earlier issuer has no role")
	require.Zero(t, roleOf(person, ""))
	service.Issuer = home
	require.Zero(t, roleOf(service, home), "rules for people never give a role to a service")

	require.Equal(t, []string{"ws_1", "ws_2"}, signin.Workspaces(rules, signin.Identity{Claims: map[string][]string{"groups": {"staff"}}}))
}

func TestGrantOf_FamilyComesFromTheRuleOfTheRole(t *testing.T) {
	const home = "https://id.example"
	m := model.Member{ID: "mem_1", WorkspaceID: "ws_1", Issuer: home, Claims: map[string][]string{"groups": {"staff"}}}
	by := func(family string, role windlassv1.Role) model.SignInRule {
		r := rule("ws_1", "r", "", role, "groups", "staff")
		r.FamilyID = family
		return r
	}
	family := func(rules ...model.SignInRule) string { return signin.GrantOf(rules, m, home).FamilyID }
	require.Empty(t, family(by("", viewer)))
	require.Equal(t, "key_1", family(by("key_1", viewer)))
	require.Equal(t, "key_1", family(by("", viewer), by("key_1", owner)), "a rule of an operator for a lower role does not count")
	require.Empty(t, family(by("key_1", owner), by("", owner)))
	require.Empty(t, family(by("", owner), by("key_1", owner)))
}

func TestGrantOf_ServicesOfAWorkspaceAreOneApprover(t *testing.T) {
	const ci = "https://ci.example"
	r := rule("ws_1", "ci", ci, deployer, "repository", "acme/app")
	family := func(id string) string {
		m := model.Member{ID: id, WorkspaceID: "ws_1", Issuer: ci, Claims: map[string][]string{"repository": {"acme/app"}}}
		return signin.GrantOf([]model.SignInRule{r}, m, "https://id.example").FamilyID
	}
	require.NotEmpty(t, family("svc_1"))
	require.Equal(t, family("svc_1"), family("svc_2"), "jobs of two branches")
	r.FamilyID = "key_1"
	require.Equal(t, "key_1", family("svc_1"))
}

func TestRule_IsOpen(t *testing.T) {
	require.True(t, signin.IsOpen(rule("", "r", "i", viewer, "ref", "refs/heads/main")))
	require.True(t, signin.IsOpen(rule("", "r", "i", viewer, "repository", "*")))
	for _, open := range []string{"repo:*", "repo:acme*", "*"} {
		require.True(t, signin.IsOpen(rule("", "r", "i", viewer, "sub", open)), open)
	}
	require.True(t, signin.IsOpen(rule("", "r", "i", viewer, "repository_owner", "acme*")))
	require.True(t, signin.IsOpen(rule("", "r", "i", viewer, "job_workflow_ref", "acme/ci/.github/workflows/deploy.yml@refs/heads/main")))
	require.False(t, signin.IsOpen(rule("", "r", "i", viewer, "repository", "acme/*")))
	require.False(t, signin.IsOpen(rule("", "r", "i", viewer, "ref", "main", "sub", "repo:acme/app:ref:refs/heads/main")))
	for _, narrow := range []string{"repo:acme/*", "repo:acme/app:*", "system:serviceaccount:*"} {
		require.False(t, signin.IsOpen(rule("", "r", "i", viewer, "sub", narrow)), narrow)
	}
}
