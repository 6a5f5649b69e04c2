package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/pkg/choices"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// allFeatures returns the features by number.
func allFeatures() (out []windlassv1.Feature) {
	for n := range windlassv1.Feature_name {
		if n != 0 {
			out = append(out, windlassv1.Feature(n))
		}
	}
	slices.Sort(out)
	return out
}

// parseFeatures returns the features that a flag names, without repeats. It accepts multiRegion and multi-region.
func parseFeatures(flag string, names []string) (out []windlassv1.Feature, err error) {
	for _, name := range names {
		i := slices.IndexFunc(allFeatures(), func(f windlassv1.Feature) bool {
			return strings.EqualFold(choices.Of(f), strings.ReplaceAll(name, "-", ""))
		})
		if i < 0 {
			return nil, fmt.Errorf("--%s=%q: use %s", flag, name, featureNames(allFeatures()))
		}
		if f := allFeatures()[i]; !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out, nil
}

func featureNames(features []windlassv1.Feature) string {
	var names []string
	for _, f := range features {
		names = append(names, choices.Of(f))
	}
	return strings.Join(names, ", ")
}

func completeFeatures(c *cobra.Command, flags ...string) {
	for _, flag := range flags {
		mustSucceed(c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(strings.Split(featureNames(allFeatures()), ", "), cobra.ShellCompDirectiveNoFileComp)))
	}
}

func (a *app) featuresCommand() *cobra.Command {
	var tier string
	var allow, deny, inherit []string
	c := &cobra.Command{
		Use:   "features [WORKSPACE]",
		Short: "Show the features that a workspace may use, or change them",
		Long: `Features shows which features of app files a workspace may use: the key's own workspace or, with an
operator's key, the named one. A workspace has the features of its tier, except for features
that are allowed or denied to this workspace alone. With flags, it first changes them, which needs an operator's key.

An app that uses a feature keeps it when its workspace may no longer use it.`,
		Example: "  windlass workspace features\n  windlass workspace features search --tier basic --allow canary,analysis",
		Args:    cobra.MaximumNArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			workspace := ""
			if len(args) > 0 {
				workspace = args[0]
			}
			got, err := a.clients.workspaces.GetFeatures(ctx, &windlassv1.GetFeaturesRequest{Workspace: workspace})
			if err != nil {
				return err
			}
			features := got.Features
			req := &windlassv1.SetFeaturesRequest{
				Mutation: newMutation(), Workspace: features.GetWorkspaceId(), Tier: features.GetTier(),
				Allowed: features.GetAllowed(), Denied: features.GetDenied(), ResourceVersion: features.GetResourceVersion(),
			}
			changed, err := changeFeatures(req, tier, allow, deny, inherit)
			if err != nil {
				return err
			}
			if changed {
				set, err := a.clients.workspaces.SetFeatures(ctx, req)
				if err != nil {
					return err
				}
				features = set.Features
			}
			return a.showMessage(features, func(w *tabwriter.Writer) { featuresTable(w, features) })
		}),
	}
	flags := c.Flags()
	flags.StringVar(&tier, "tier", "", "give the workspace this tier")
	flags.StringSliceVar(&allow, "allow", nil, "features that the workspace may use, whatever its tier has")
	flags.StringSliceVar(&deny, "deny", nil, "features that the workspace may not use, whatever its tier has")
	flags.StringSliceVar(&inherit, "inherit", nil, "features that the workspace may use only if its tier has them")
	completeFeatures(c, "allow", "deny", "inherit")
	return c
}

// changeFeatures changes the request as the flags say.
func changeFeatures(req *windlassv1.SetFeaturesRequest, tier string, allow, deny, inherit []string) (changed bool, err error) {
	if tier != "" {
		req.Tier, changed = tier, true
	}
	lists := map[string][]windlassv1.Feature{}
	named := map[windlassv1.Feature]string{}
	given := map[string][]string{"allow": allow, "deny": deny, "inherit": inherit}
	for _, flag := range slices.Sorted(maps.Keys(given)) {
		if lists[flag], err = parseFeatures(flag, given[flag]); err != nil {
			return false, err
		}
		for _, f := range lists[flag] {
			if other := named[f]; other != "" {
				return false, fmt.Errorf("--%s and --%s name the feature %s: name it in one of them", min(flag, other), max(flag, other), choices.Of(f))
			}
			named[f] = flag
			changed = true
		}
	}
	isNamed := func(f windlassv1.Feature) bool { return named[f] != "" }
	req.Allowed = append(slices.DeleteFunc(slices.Clone(req.Allowed), isNamed), lists["allow"]...)
	req.Denied = append(slices.DeleteFunc(slices.Clone(req.Denied), isNamed), lists["deny"]...)
	return changed, nil
}

func featuresTable(w *tabwriter.Writer, f *windlassv1.WorkspaceFeatures) {
	writeRow(w, "FEATURE", "ALLOWED", "SET BY")
	for _, feature := range allFeatures() {
		allowed, by := "no", "tier "+f.GetTier()
		if slices.Contains(f.GetFeatures(), feature) {
			allowed = "yes"
		}
		if slices.Contains(f.GetAllowed(), feature) || slices.Contains(f.GetDenied(), feature) {
			by = "workspace " + f.GetWorkspaceName()
		}
		writeRow(w, choices.Of(feature), allowed, by)
	}
}

func (a *app) tierCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "tier", Aliases: []string{"tiers"}, Short: "Manage tiers: sets of features for workspaces",
		Long: `A tier is a set of features with a name. Workspaces without another tier have "default", which has all
features until its features are set. Operators manage tiers.`,
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List tiers and their features", Args: cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			resp, err := a.clients.workspaces.ListTiers(ctx, &windlassv1.ListTiersRequest{})
			if err != nil {
				return err
			}
			return showList(a, resp.Tiers, func(w *tabwriter.Writer) { tierTable(w, resp.Tiers) })
		}),
	}
	remove := &cobra.Command{
		Use: "delete NAME", Short: "Delete a tier that no workspace has", Args: cobra.ExactArgs(1),
		Long: `Delete deletes a tier that no workspace has. It also deletes "default", which then has all features again.`,
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.workspaces.DeleteTier(ctx, &windlassv1.DeleteTierRequest{Mutation: newMutation(), Name: args[0]})
			if err != nil {
				return err
			}
			return a.showDone(resp, "tier %s is deleted", args[0])
		}),
	}
	return groupCommands(c, list, a.setTierCommand(), remove)
}

func (a *app) setTierCommand() *cobra.Command {
	var names []string
	c := &cobra.Command{
		Use: "set NAME --features FEATURE,...", Short: "Create a tier, or replace its features", Args: cobra.ExactArgs(1),
		Long: `Set replaces all features of the tier: give their names, "all" or "none". The change applies at once to the
workspaces that have the tier. Apps keep the features that they use.`,
		Example: "  windlass workspace tier set basic --features autoscaling,analysis\n  windlass workspace tier set default --features none",
		RunE: a.run(func(ctx context.Context, args []string) error {
			req := &windlassv1.SetTierRequest{Mutation: newMutation(), Name: args[0]}
			switch {
			case slices.Equal(names, []string{"all"}):
				req.Features = allFeatures()
			case !slices.Equal(names, []string{"none"}):
				var err error
				if req.Features, err = parseFeatures("features", names); err != nil {
					return err
				}
			}
			have, err := a.clients.workspaces.ListTiers(ctx, &windlassv1.ListTiersRequest{})
			if err != nil {
				return err
			}
			for _, t := range have.Tiers {
				if t.Name == req.Name {
					req.ResourceVersion = t.ResourceVersion
				}
			}
			set, err := a.clients.workspaces.SetTier(ctx, req)
			if err != nil {
				return err
			}
			return a.showMessage(set.Tier, func(w *tabwriter.Writer) { tierTable(w, []*windlassv1.Tier{set.Tier}) })
		}),
	}
	c.Flags().StringSliceVar(&names, "features", nil, `features of the tier, "all" or "none"`)
	mustSucceed(c.MarkFlagRequired("features"))
	completeFeatures(c, "features")
	return c
}

func tierTable(w *tabwriter.Writer, tiers []*windlassv1.Tier) {
	writeRow(w, "TIER", "FEATURES")
	for _, t := range tiers {
		writeRow(w, t.Name, orDash(featureNames(t.Features)))
	}
}

// planFeaturesTable prints the features that a plan's app uses.
func planFeaturesTable(w *tabwriter.Writer, p *windlassv1.PlanDeployResponse) {
	if len(p.GetFeatures()) == 0 {
		return
	}
	printSection(w, "Features that it uses:")
	writeRow(w, "FEATURE", "ALLOWED", "FIELD")
	for _, f := range p.GetFeatures() {
		allowed := "no"
		switch {
		case f.GetAllowed():
			allowed = "yes"
		case !f.GetStarts():
			allowed = "no, but the app has it"
		}
		writeRow(w, choices.Of(f.GetFeature()), allowed, strings.TrimPrefix(f.GetField(), "spec."))
	}
}
