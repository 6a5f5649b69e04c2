package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const membersWorkspace = "workspace of the members (operators). Default: your own workspace, or the platform with an operator's key"

func (a *app) membersCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "members", Aliases: []string{"member"}, Short: "Manage people and services that sign in without an API key (owners, operators)",
		Long: `Members are people and services that sign in with a token of an OpenID Connect issuer. Sign-in rules give them
their roles: see "windlass members rule" for people and "windlass federation" for jobs of a CI.`,
	}
	return groupCommands(c, a.listMembersCommand(), a.removeMemberCommand(), a.restoreMemberCommand(), a.memberRuleCommand())
}

func (a *app) listMembersCommand() *cobra.Command {
	var workspace string
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List members with their roles", Args: cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			items, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.Member, *windlassv1.PageResponse, error) {
				r, err := a.clients.members.ListMembers(ctx, &windlassv1.ListMembersRequest{Page: p, Workspace: workspace})
				return r.GetMembers(), r.GetPage(), err
			})
			if err != nil {
				return err
			}
			return showList(a, items, func(w *tabwriter.Writer) {
				writeRow(w, "MEMBER", "NAME", "ROLE", "RULES", "SIGNED IN", "SUBJECT", "ISSUER")
				for _, m := range items {
					writeRow(w, m.Id, m.Name, memberRole(m), orDash(strings.Join(m.Rules, ",")), ageText(m.SignedInAt), m.Subject, m.Issuer)
				}
			})
		}),
	}
	c.Flags().StringVar(&workspace, "workspace", "", membersWorkspace)
	return c
}

// memberRole returns the member's role, or why it has none.
func memberRole(m *windlassv1.Member) string {
	switch {
	case m.RemovedAt != 0:
		return "removed"
	case m.Role == windlassv1.Role_ROLE_UNSPECIFIED:
		return "none"
	}
	return enumText(m.Role, "ROLE_")
}

func (a *app) removeMemberCommand() *cobra.Command {
	var workspace string
	c := &cobra.Command{
		Use: "remove MEMBER", Aliases: []string{"rm"}, Short: "End a member's sessions and refuse its later sign-ins", Args: cobra.ExactArgs(1),
		Long:    "Remove ends all sessions of a member, named by its id or name, and refuses later sign-ins until \"windlass members restore\". API keys that the member created stay; remove names them.",
		Example: "  windlass members remove ada@example.com",
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.members.RemoveMember(ctx, &windlassv1.RemoveMemberRequest{Mutation: newMutation(), Member: args[0], Workspace: workspace})
			if err != nil {
				return err
			}
			if len(resp.Keys) > 0 {
				a.infof("note: API keys that the member created still work: %s; revoke them with `windlass key revoke NAME`", strings.Join(resp.Keys, ", "))
			}
			return a.showDone(resp, "member %s is removed", resp.Member.GetName())
		}),
	}
	c.Flags().StringVar(&workspace, "workspace", "", membersWorkspace)
	return c
}

func (a *app) restoreMemberCommand() *cobra.Command {
	var workspace string
	c := &cobra.Command{
		Use: "restore MEMBER", Short: "Let a removed member sign in again", Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.members.RestoreMember(ctx, &windlassv1.RestoreMemberRequest{Mutation: newMutation(), Member: args[0], Workspace: workspace})
			if err != nil {
				return err
			}
			return a.showDone(resp, "member %s may sign in again", resp.Member.GetName())
		}),
	}
	c.Flags().StringVar(&workspace, "workspace", "", membersWorkspace)
	return c
}

func (a *app) memberRuleCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "rule", Aliases: []string{"rules"}, Short: "Manage the rules that give roles to people",
		Long: `A sign-in rule gives a role to each person whose token of the control plane's issuer has all the claims of the
rule. Of several rules that match, the highest role counts. A change takes effect on the next call, or within
5 seconds on other replicas of the control plane. Tokens are read at each sign-in.`,
	}
	set := a.setRuleCommand(ruleKind{
		use: "set NAME --role ROLE", short: "Create or replace a rule for people",
		example: `  windlass members rule set ml-team --group ml-team --role deployer
  windlass members rule set ada --claim email=ada@example.com --role owner
  windlass members rule set operators --group platform --role operator   # with an operator's key`,
	})
	return groupCommands(c, set, a.listRulesCommand(false), a.removeRuleCommand("rule"))
}

func (a *app) federationCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "federation", Short: "Manage the rules by which jobs of a CI get a role without an API key (owners, operators)",
		Long: `A federation rule gives a role to each service, such as a job of a CI, whose token of an issuer has all the
claims of the rule. The service trades its token for a token of the control plane that works for an hour:
see "windlass login --federated-token-file".`,
	}
	add := a.setRuleCommand(ruleKind{
		use: "add NAME --issuer URL --role ROLE", short: "Create or replace a rule for services", federated: true,
		example: `  windlass federation add github --issuer https://token.actions.githubusercontent.com \
      --claim repository=acme/models --claim ref=refs/heads/main --role deployer
  windlass federation add gitlab --issuer https://gitlab.com --claim project_path=acme/models --role viewer`,
	})
	return groupCommands(c, add, a.listRulesCommand(true), a.removeRuleCommand("federation rule"))
}

// ruleKind is what differs between rules for people and rules for services.
type ruleKind struct {
	use, short, example string
	federated           bool
}

func (a *app) setRuleCommand(kind ruleKind) *cobra.Command {
	var role, workspace, issuer string
	var claims, groups []string
	c := &cobra.Command{
		Use: kind.use, Short: kind.short, Example: kind.example, Args: cobra.ExactArgs(1),
		Long: "The rule replaces a rule of the same name. All claims must match. A * at the end of a value matches any text. A claim that is a list matches if one of its items matches.",
		RunE: a.run(func(ctx context.Context, args []string) error {
			value, ok := windlassv1.Role_value["ROLE_"+strings.ToUpper(role)]
			if !ok || value == 0 {
				return fmt.Errorf("--role=%q: use viewer, deployer or owner; operators use operator", role)
			}
			rule := &windlassv1.SignInRule{Name: args[0], Role: windlassv1.Role(value), Issuer: issuer}
			for _, g := range groups {
				rule.Conditions = append(rule.Conditions, &windlassv1.ClaimCondition{Claim: "groups", Value: g})
			}
			for _, text := range claims {
				claim, want, ok := strings.Cut(text, "=")
				if !ok || claim == "" || want == "" {
					return fmt.Errorf("--claim=%q: use CLAIM=VALUE, such as repository=acme/models", text)
				}
				rule.Conditions = append(rule.Conditions, &windlassv1.ClaimCondition{Claim: claim, Value: want})
			}
			if len(rule.Conditions) == 0 {
				return fmt.Errorf("rule %s has no condition: use --claim CLAIM=VALUE", args[0])
			}
			resp, err := a.clients.members.SetSignInRule(ctx, &windlassv1.SetSignInRuleRequest{Mutation: newMutation(), Rule: rule, Workspace: workspace})
			if err != nil {
				return err
			}
			for _, text := range resp.Warnings {
				a.infof("note: %s", text)
			}
			return a.showMessage(resp.Rule, func(w *tabwriter.Writer) { ruleTable(w, []*windlassv1.SignInRule{resp.Rule}) })
		}),
	}
	flags := c.Flags()
	flags.StringVar(&role, "role", "", "viewer, deployer or owner; for the platform: operator")
	flags.StringArrayVar(&claims, "claim", nil, "claim that the token must have, as CLAIM=VALUE. Can be repeated")
	flags.StringVar(&workspace, "workspace", "", "workspace of the rule (operators). Default: your own workspace, or the platform with an operator's key")
	mustSucceed(c.MarkFlagRequired("role"))
	if kind.federated {
		flags.StringVar(&issuer, "issuer", "", "URL of the issuer of the tokens")
		mustSucceed(c.MarkFlagRequired("issuer"))
	} else {
		flags.StringArrayVar(&groups, "group", nil, "group that the person must be in, as --claim groups=GROUP. Can be repeated")
	}
	return c
}

func (a *app) listRulesCommand(federated bool) *cobra.Command {
	var workspace string
	short := "List rules for people"
	if federated {
		short = "List rules for services, and the issuers that the control plane accepts"
	}
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: short, Args: cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			resp, err := a.clients.members.ListSignInRules(ctx, &windlassv1.ListSignInRulesRequest{Workspace: workspace})
			if err != nil {
				return err
			}
			var rules []*windlassv1.SignInRule
			for _, r := range resp.Rules {
				if (r.Issuer != "") == federated {
					rules = append(rules, r)
				}
			}
			if federated {
				a.infof("accepted issuers: %s", orDash(strings.Join(resp.FederationIssuers, ", ")))
			} else {
				a.infof("people sign in at: %s", cmp.Or(resp.Issuer, "no issuer; an operator sets --oidc-issuer"))
			}
			return showList(a, rules, func(w *tabwriter.Writer) { ruleTable(w, rules) })
		}),
	}
	c.Flags().StringVar(&workspace, "workspace", "", "workspace of the rules (operators). Default: your own workspace, or the platform with an operator's key")
	return c
}

func (a *app) removeRuleCommand(what string) *cobra.Command {
	var workspace string
	c := &cobra.Command{
		Use: "remove NAME", Aliases: []string{"rm"}, Short: "Remove a " + what, Args: cobra.ExactArgs(1),
		Long: "Members who have a role only by this rule can make no further calls.",
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.members.RemoveSignInRule(ctx, &windlassv1.RemoveSignInRuleRequest{Mutation: newMutation(), Name: args[0], Workspace: workspace})
			if err != nil {
				return err
			}
			return a.showDone(resp, "rule %s is removed", args[0])
		}),
	}
	c.Flags().StringVar(&workspace, "workspace", "", "workspace of the rule (operators). Default: your own workspace, or the platform with an operator's key")
	return c
}

func ruleTable(w *tabwriter.Writer, rules []*windlassv1.SignInRule) {
	writeRow(w, "RULE", "ROLE", "CLAIMS", "ISSUER", "SET BY", "AGE")
	for _, r := range rules {
		var claims []string
		for _, c := range r.Conditions {
			claims = append(claims, c.GetClaim()+"="+c.GetValue())
		}
		writeRow(w, r.Name, enumText(r.Role, "ROLE_"), strings.Join(claims, " "), orDash(r.Issuer), r.SetBy, ageText(r.SetAt))
	}
}
