package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (a *app) protectionCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "protection", Aliases: []string{"protections"}, Short: "Manage minimum rules for all rollouts, which files cannot weaken",
		Long: `A protection is a set of minimum rules for all rollouts of the workspace, a project or an environment:
approvals before they start, the bake time of each wave, and automatic rollback after every failure.
Files of apps can only be stricter. Owners set protections within their workspace. Operators set one
for a whole workspace, which only operators can change. A change applies to rollouts created after it.`,
	}
	var workspace string
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls", "show"}, Short: "List protections", Args: cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			resp, err := a.clients.protections.ListProtections(ctx, &windlassv1.ListProtectionsRequest{Workspace: workspace})
			if err != nil {
				return err
			}
			return showList(a, resp.Protections, func(w *tabwriter.Writer) { protectionTable(w, resp.Protections) })
		}),
	}
	list.Flags().StringVar(&workspace, "workspace", "", "workspace of the protection (operators)")
	var removed windlassv1.RemoveProtectionRequest
	remove := &cobra.Command{
		Use: "remove", Aliases: []string{"rm"}, Short: "Remove the protection of a scope", Args: cobra.NoArgs,
		Example: "  windlass protection remove --environment default/production",
		RunE: a.run(func(ctx context.Context, _ []string) error {
			removed.Mutation = newMutation()
			resp, err := a.clients.protections.RemoveProtection(ctx, &removed)
			if err != nil {
				return err
			}
			return a.showDone(resp, "the protection is removed; rollouts under way keep the rules that they began with")
		}),
	}
	scopeFlags(remove, &removed.Workspace, &removed.Project, &removed.Environment)
	return groupCommands(c, list, a.setProtectionCommand(), remove)
}

func scopeFlags(c *cobra.Command, workspace, project, environment *string) {
	c.Flags().StringVar(workspace, "workspace", "", "workspace of the protection (operators)")
	c.Flags().StringVar(project, "project", "", "project of the protection; default: the whole workspace")
	c.Flags().StringVar(environment, "environment", "", "environment of the protection, PROJECT/ENVIRONMENT; default: the whole workspace")
}

func (a *app) setProtectionCommand() *cobra.Command {
	req := windlassv1.SetProtectionRequest{}
	var approvals int32
	var role string
	var notDeployer, autoRollback bool
	var bake time.Duration
	c := &cobra.Command{
		Use: "set --reason WHY", Short: "Create or replace the protection of a scope", Args: cobra.NoArgs,
		Long: "Set replaces all rules of the protection of the workspace, --project or --environment. Rules that are left out end.",
		Example: `  windlass protection set --environment default/production --approvals 2 --not-deployer --reason "two people see each change"
  windlass protection set --project search --bake-time 30m --auto-rollback --reason "errors show within half an hour"`,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			req.Mutation, req.Rules = newMutation(), &windlassv1.ProtectionRules{AutoRollback: autoRollback}
			value := windlassv1.Role_value["ROLE_"+strings.ToUpper(role)]
			switch {
			case approvals < 0 || approvals > 10:
				return fmt.Errorf("--approvals=%d: use 1 to 10, or 0 for none", approvals)
			case value != int32(windlassv1.Role_ROLE_DEPLOYER) && value != int32(windlassv1.Role_ROLE_OWNER):
				return fmt.Errorf("--role=%q: use deployer or owner", role)
			case bake < 0:
				return fmt.Errorf("--bake-time=%s: use a duration above 0", bake)
			case approvals == 0 && notDeployer:
				return errors.New("--not-deployer is about approvals: use --approvals, too")
			}
			if approvals > 0 {
				req.Rules.Approval = &windlassv1.Approval{Role: windlassv1.Role(value), Count: approvals, NotDeployer: notDeployer}
			}
			if bake > 0 {
				req.Rules.BakeTime = durationpb.New(bake)
			}
			resp, err := a.clients.protections.SetProtection(ctx, &req)
			if err != nil {
				return err
			}
			for _, text := range resp.Warnings {
				a.infof("note: %s", text)
			}
			return a.showMessage(resp.Protection, func(w *tabwriter.Writer) { protectionTable(w, []*windlassv1.Protection{resp.Protection}) })
		}),
	}
	scopeFlags(c, &req.Workspace, &req.Project, &req.Environment)
	flags := c.Flags()
	flags.Int32Var(&approvals, "approvals", 0, "approvers that a rollout needs before it starts")
	flags.StringVar(&role, "role", "owner", "minimum role of approvers: deployer or owner")
	flags.BoolVar(&notDeployer, "not-deployer", false, "the deployer does not count as an approver")
	flags.DurationVar(&bake, "bake-time", 0, "minimum bake time of each wave")
	flags.BoolVar(&autoRollback, "auto-rollback", false, "rollouts go back by themselves after every failure")
	flags.StringVar(&req.Reason, "reason", "", "why, for people whose rollouts it delays")
	mustSucceed(c.MarkFlagRequired("reason"))
	return c
}

func protectionTable(w *tabwriter.Writer, all []*windlassv1.Protection) {
	writeRow(w, "OF", "START", "BAKE TIME", "AUTO ROLLBACK", "SET BY", "REASON")
	for _, p := range all {
		start, bake := "", ""
		if r := p.GetRules(); r.GetApproval() != nil {
			start = strings.TrimPrefix(approvalText(r.Approval), " and ")
		}
		if d := p.GetRules().GetBakeTime().AsDuration(); d > 0 {
			bake = durationText(d)
		}
		by := p.SetBy
		if p.ByOperator {
			by += ", an operator"
		}
		writeRow(w, protectionScope(p), orDash(start), orDash(bake), map[bool]string{true: "on", false: "-"}[p.GetRules().GetAutoRollback()], by, firstLine(p.Reason))
	}
}

func protectionScope(p *windlassv1.Protection) string {
	switch {
	case p.Environment != "":
		return "environment " + p.Environment
	case p.Project != "":
		return "project " + p.Project
	}
	return "workspace"
}
