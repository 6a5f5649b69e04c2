package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sort"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (a *app) envCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "env",
		Short: "Show and change the variables of an app or of its environment",
		Long: `The variables of an app belong to its version: changing them creates the next version, with
the same image. Changes of the environment's variables take effect in the next version of
each of its apps.`,
	}
	list := &cobra.Command{
		Use: "list [APP]", Aliases: []string{"ls"}, Short: "Show the variables of an app's live version, or of the environment", Args: cobra.MaximumNArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			if len(args) == 0 {
				got, err := a.clients.environments.GetEnvironment(ctx, &windlassv1.GetEnvironmentRequest{Environment: a.environmentPath()})
				if err != nil {
					return err
				}
				return a.showVariables(got.Environment.Variables)
			}
			app, err := a.clients.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: a.appPath(args[0])})
			if err != nil {
				return err
			}
			if app.App.LiveDeploymentId == "" {
				return fmt.Errorf("%s: no version is live", args[0])
			}
			d, err := a.clients.deployments.GetDeployment(ctx, &windlassv1.GetDeploymentRequest{Deployment: app.App.LiveDeploymentId})
			if err != nil {
				return err
			}
			return a.showVariables(d.Deployment.Spec.Env)
		}),
	}
	var message, override string
	var unset []string
	var w waitFlags
	set := &cobra.Command{
		Use: "set APP NAME=VALUE...", Short: "Create the app's next version with changed variables", Args: cobra.MinimumNArgs(1),
		Long: `Set creates the next version from the version in flight, or else from the live version, with
the changed variables. It follows the rollout to its end, as deploy does.

` + exitCodesText,
		Example: "  windlass env set echo GREETING=hi\n  windlass env set echo --unset GREETING",
		RunE: a.run(func(ctx context.Context, args []string) error {
			if err := w.checkUntil(); err != nil {
				return err
			}
			values, err := parseAssignments(args[1:])
			if err != nil {
				return err
			}
			if len(values)+len(unset) == 0 {
				return errors.New("nothing to change: give NAME=VALUE, or --unset NAME")
			}
			resp, err := a.clients.apps.SetEnvironment(ctx, &windlassv1.SetEnvironmentRequest{Mutation: newMutation(), App: a.appPath(args[0]), Set: values, Unset: unset, Message: message, OverrideFreeze: override})
			if err != nil {
				return err
			}
			return a.finishVersion(ctx, args[0], versionResult{
				appID: a.appPath(args[0]), deploymentID: resp.DeploymentId, rolloutID: resp.RolloutId, version: resp.Version,
				effect: resp.Effect, hold: resp.Hold, overridden: override != "", warnings: resp.Warnings, answer: resp, ended: resp.TookBack,
			}, w)
		}),
	}
	overrideFlag(set, &override)
	set.Flags().StringSliceVar(&unset, "unset", nil, "variables to remove")
	set.Flags().StringVarP(&message, "message", "m", "", "why, for the history")
	w.addTo(set, true)

	var unsetShared []string
	shared := &cobra.Command{
		Use: "shared NAME=VALUE...", Short: "Change the environment's variables, for the next version of each app",
		RunE: a.run(func(ctx context.Context, args []string) error {
			values, err := parseAssignments(args)
			if err != nil {
				return err
			}
			if len(values)+len(unsetShared) == 0 {
				return errors.New("nothing to change: give NAME=VALUE, or --unset NAME")
			}
			got, err := a.clients.environments.GetEnvironment(ctx, &windlassv1.GetEnvironmentRequest{Environment: a.environmentPath()})
			if err != nil {
				return err
			}
			e := got.Environment
			if e.Variables == nil {
				e.Variables = map[string]string{}
			}
			maps.Copy(e.Variables, values)
			for _, k := range unsetShared {
				delete(e.Variables, k)
			}
			resp, err := a.clients.environments.UpdateEnvironment(ctx, &windlassv1.UpdateEnvironmentRequest{
				Mutation: newMutation(), Environment: e.Id, Name: e.Name, Variables: e.Variables, ResourceVersion: e.ResourceVersion,
			})
			if err != nil {
				return err
			}
			if resp.Unchanged {
				a.infof("%s: nothing changed", a.environmentPath())
			} else {
				a.infof("%s: changed, for the next version of each app", a.environmentPath())
			}
			return a.showMessage(resp.Environment, variableRows(resp.Environment.Variables))
		}),
	}
	shared.Flags().StringSliceVar(&unsetShared, "unset", nil, "variables to remove")
	return groupCommands(c, list, set, shared)
}

// parseAssignments parses arguments of the form NAME=VALUE.
func parseAssignments(args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%q: write NAME=VALUE", arg)
		}
		out[name] = value
	}
	return out, nil
}

// showVariables prints the variables of an app or an environment, as JSON {"variables": {NAME: VALUE}}.
func (a *app) showVariables(env map[string]string) error {
	if a.output == "table" {
		return a.showMessage(nil, variableRows(env))
	}
	if env == nil {
		env = map[string]string{}
	}
	return a.showValue(map[string]any{"variables": env})
}

// variableRows returns a function that prints the variables, sorted by name.
func variableRows(env map[string]string) func(*tabwriter.Writer) {
	return func(w *tabwriter.Writer) {
		names := make([]string, 0, len(env))
		for k := range env {
			names = append(names, k)
		}
		sort.Strings(names)
		for _, k := range names {
			writeRow(w, k+"="+env[k])
		}
	}
}
