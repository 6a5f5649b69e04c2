package cli

import (
	"context"
	"fmt"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (a *app) workspaceCommand() *cobra.Command {
	return groupCommands(&cobra.Command{Use: "workspace", Aliases: []string{"workspaces"}, Short: "Manage workspaces"},
		append(a.workspaceCommands(), a.quotaCommand(), a.featuresCommand(), a.tierCommand())...)
}

// limit is one limit of a workspace: its flag, and its field in the API's messages.
type limit struct {
	name, help string
	of         func(*windlassv1.Limits) **int64
	// used returns the usage; nil for rates of calls, which have none.
	used func(*windlassv1.Usage) int64
}

var limits = []limit{
	{"apps", "apps", func(l *windlassv1.Limits) **int64 { return &l.Apps }, (*windlassv1.Usage).GetApps},
	{"deployments", "apps with a live deployment or a rollout in flight", func(l *windlassv1.Limits) **int64 { return &l.Deployments }, (*windlassv1.Usage).GetDeployments},
	{"instances", "instances of these apps, in all regions", func(l *windlassv1.Limits) **int64 { return &l.Instances }, (*windlassv1.Usage).GetInstances},
	{"gpus", "GPUs of these instances", func(l *windlassv1.Limits) **int64 { return &l.Gpus }, (*windlassv1.Usage).GetGpus},
	{"rollouts", "rollouts in flight", func(l *windlassv1.Limits) **int64 { return &l.Rollouts }, (*windlassv1.Usage).GetRollouts},
	{"starts-per-minute", "calls that start work per minute, on average", func(l *windlassv1.Limits) **int64 { return &l.StartsPerMinute }, nil},
	{"starts-burst", "calls that start work at once", func(l *windlassv1.Limits) **int64 { return &l.StartsBurst }, nil},
}

const (
	unlimited = "unlimited"
	inherited = "default"
)

func (a *app) quotaCommand() *cobra.Command {
	values := make([]string, len(limits))
	var yes bool
	c := &cobra.Command{
		Use:   "quota [WORKSPACE]",
		Short: "Show the limits and the usage of a workspace, or change its limits",
		Long: `Quota shows the limits of a workspace and its usage: of the key's own workspace or, with an
operator's key, of the named one. With flags it changes limits first. A limit is a number,
"unlimited", or "default", the limit that the control plane was started with.

Operators can set any limit. Owners can lower the limits of their workspace. They are asked
first, because only an operator can raise them again. Apps and instances that exist stay,
even if they exceed the new limit.`,
		Example: "  windlass workspace quota\n  windlass workspace quota search --gpus 64 --instances default",
		Args:    cobra.MaximumNArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			workspace := ""
			if len(args) > 0 {
				workspace = args[0]
			}
			got, err := a.clients.workspaces.GetQuota(ctx, &windlassv1.GetQuotaRequest{Workspace: workspace})
			if err != nil {
				return err
			}
			quota := got.Quota
			own, changed, err := changeLimits(quota.Own, values)
			if err != nil {
				return err
			}
			if changed {
				would, err := a.clients.workspaces.GetQuota(ctx, &windlassv1.GetQuotaRequest{Workspace: workspace, Proposed: own})
				if err != nil {
					return err
				}
				for _, text := range would.Warnings {
					a.infof("%s", text)
				}
				if len(would.Warnings) > 0 && !yes && a.canAsk() {
					fmt.Fprint(a.Stderr, "Type yes to go on: ") //nolint:errcheck // a prompt
					var answer string
					if _, err := fmt.Fscanln(a.Stdin, &answer); err != nil || answer != "yes" {
						return &ExitError{Code: 1, Message: "nothing changed"}
					}
				}
				set, err := a.clients.workspaces.SetQuota(ctx, &windlassv1.SetQuotaRequest{
					Mutation: newMutation(), Workspace: workspace, Own: own, ResourceVersion: quota.ResourceVersion,
				})
				if err != nil {
					return err
				}
				quota = set.Quota
			}
			return a.showMessage(quota, func(w *tabwriter.Writer) { quotaTable(w, quota) })
		}),
	}
	for i, l := range limits {
		c.Flags().StringVar(&values[i], l.name, "", l.help)
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}

// changeLimits sets the limits whose flags have a value.
func changeLimits(own *windlassv1.Limits, values []string) (_ *windlassv1.Limits, changed bool, err error) {
	if own == nil {
		own = &windlassv1.Limits{}
	}
	for i, l := range limits {
		field := l.of(own)
		switch values[i] {
		case "":
			continue
		case inherited:
			*field = nil
		case unlimited:
			*field = new(int64(0))
		default:
			n, err := strconv.ParseInt(values[i], 10, 64)
			if err != nil || n < 1 {
				return nil, false, fmt.Errorf("--%s=%q: use a number from 1, %s or %s", l.name, values[i], unlimited, inherited)
			}
			*field = &n
		}
		changed = true
	}
	return own, changed, nil
}

func quotaTable(w *tabwriter.Writer, q *windlassv1.Quota) {
	writeRow(w, "LIMIT", "USED", "OF", "SET BY")
	for _, l := range limits {
		used, of, by := "-", "-", "control plane"
		if l.used != nil {
			used = strconv.FormatInt(l.used(q.GetUsage()), 10)
		}
		if v := *l.of(q.GetLimits()); v != nil {
			of = strconv.FormatInt(*v, 10)
			if *v == 0 {
				of = unlimited
			}
		}
		if *l.of(q.GetOwn()) != nil {
			by = "workspace " + q.GetWorkspaceName()
		}
		writeRow(w, l.name, used, of, by)
	}
	if left := q.GetUsage().GetStartsLeft(); left >= 0 {
		writeRow(w)
		writeRow(w, fmt.Sprintf("%d calls that start work can be made at once now.", left))
	}
}
