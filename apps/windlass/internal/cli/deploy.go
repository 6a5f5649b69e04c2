package cli

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (a *app) deployCommand() *cobra.Command {
	var file, override string
	var wait, dryRun bool
	var patience time.Duration
	c := &cobra.Command{
		Use:   "deploy -f FILE",
		Short: "Make the file's state the app's next version",
		Long: `Deploy reads an app's file, shows what changes against the version that is live,
makes the next version and waits until it serves or has failed. A file that says
what is live already makes no version; one that differs in replicas alone scales.

The file is YAML or JSON: "app" is its name ("project" and "environment" default to
the context's), "rollout" how it moves to new versions (a RolloutPolicy; without it
region by region, with a small surge, and back by itself), "freeze" when it does not
(a FileFreeze), the rest are the fields of a DeploymentSpec. "overrides" among them say
what is different in some regions, by name or by label: replicas, resources, args or
extraArgs, env and secrets.

Exit code: 0 ready (or accepted with --wait=false), 1 failed or refused, 3 still
under way when --patience ended.`,
		Example: "  windlass deploy -f deployments/examples/echo.yaml\n  windlass deploy -f app.yaml --wait=false -o json",
		Args:    cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			f, err := readAppFile(file, a.Stdin)
			if err != nil {
				return err
			}
			return a.deploy(ctx, f, override, wait, dryRun, patience)
		}),
	}
	c.Flags().StringVarP(&file, "file", "f", "", "the app's file, - for standard input")
	c.Flags().BoolVar(&wait, "wait", true, "wait until it is ready or has failed")
	c.Flags().BoolVar(&dryRun, "diff", false, "only show what would change")
	c.Flags().DurationVar(&patience, "patience", time.Hour, "how long to wait")
	overrideFlag(c, &override)
	must(c.MarkFlagRequired("file"))
	must(c.MarkFlagFilename("file", "yaml", "yml", "json"))
	return c
}

func (a *app) deploy(ctx context.Context, f *appFile, override string, wait, dryRun bool, patience time.Duration) error {
	path := a.pathOf(f)
	if err := a.showChanges(ctx, path, f); err != nil || dryRun {
		return err
	}
	resp, err := a.clients.apps.Deploy(ctx, &windlassv1.DeployRequest{Mutation: mutation(), App: path, Spec: f.Spec, Rollout: f.Rollout, Freeze: f.Freeze, OverrideFreeze: override})
	if err != nil {
		return err
	}
	switch {
	case resp.Hold != nil:
		a.infof("%s: %s is accepted, and %s", f.App, version(resp.Version), holdText(resp.Hold))
	case override != "" && resp.Unchanged && resp.RolloutId != "":
		a.infof("%s: %s is on its way, and no freeze holds it", f.App, version(resp.Version))
	case resp.Unchanged && !resp.Scaled:
		a.infof("%s: nothing changed, %s stays live", f.App, version(resp.Version))
	case resp.Scaled:
		a.infof("%s: scaling %s", f.App, version(resp.Version))
	default:
		a.infof("%s: rolling out %s", f.App, version(resp.Version))
	}
	if !wait {
		if a.output == "table" {
			return nil
		}
		return a.show(resp, nil)
	}
	return a.await(ctx, resp.AppId, resp.DeploymentId, resp.Scaled || resp.Unchanged, patience)
}

// pathOf is the full path of the file's app.
func (a *app) pathOf(f *appFile) string {
	if f.Project == "" {
		f.Project = a.target.Project
	}
	if f.Environment == "" {
		f.Environment = a.target.Environment
	}
	if f.Project == "" {
		f.Project = "default"
	}
	if f.Environment == "" {
		f.Environment = "production"
	}
	return f.Project + "/" + f.Environment + "/" + f.App
}

// showChanges prints the difference between the live version and the file.
func (a *app) showChanges(ctx context.Context, path string, f *appFile) error {
	got, err := a.clients.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: path})
	if connect.CodeOf(err) == connect.CodeNotFound {
		a.infof("%s: new app", path)
		return nil
	}
	if err != nil {
		return err
	}
	if got.App.LiveDeploymentId == "" {
		a.infof("%s: no version is live yet", path)
		return nil
	}
	live, err := a.clients.deployments.GetDeployment(ctx, &windlassv1.GetDeploymentRequest{Deployment: got.App.LiveDeploymentId})
	if err != nil {
		return err
	}
	changes, err := diffSpecs(live.Deployment.Spec, f.Spec)
	if err != nil {
		return err
	}
	plan, err := a.clients.apps.PlanDeploy(ctx, &windlassv1.PlanDeployRequest{App: path, Spec: f.Spec, Rollout: f.Rollout, Freeze: f.Freeze})
	if err != nil {
		return err
	}
	changes = withSizes(changes, plan)
	if len(changes) == 0 {
		return nil
	}
	a.infof("%s: changes against %s, which is live:", path, version(got.App.LiveVersion))
	for _, line := range changes {
		a.infof("  %s", line)
	}
	return nil
}

func (a *app) scaleCommand() *cobra.Command {
	var replicas int32
	var region string
	var wait bool
	var patience time.Duration
	c := &cobra.Command{
		Use:   "scale APP --replicas N",
		Short: "Set the number of replicas of the live version",
		Long: `Scale sets the number of replicas in every region, those included that the app's file
gives a number of their own, or in one. That holds, for later versions too, until a file
is deployed that says another number for the region.`,
		Example: "  windlass scale echo --replicas 4\n  windlass scale echo --replicas 1 --region eu-west-1",
		Args:    cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.apps.Scale(ctx, &windlassv1.ScaleRequest{Mutation: mutation(), App: a.appPath(args[0]), Replicas: replicas, Region: region})
			if err != nil {
				return err
			}
			a.infof("%s: scaling to %d in %s", args[0], replicas, orAll(region))
			if !wait {
				if a.output == "table" {
					return nil
				}
				return a.show(resp.App, nil)
			}
			return a.await(ctx, resp.App.Id, resp.App.LiveDeploymentId, true, patience)
		}),
	}
	c.Flags().Int32Var(&replicas, "replicas", 0, "replicas in each region, or in the region given")
	c.Flags().StringVar(&region, "region", "", "only in this region")
	c.Flags().BoolVar(&wait, "wait", true, "wait until it is done")
	c.Flags().DurationVar(&patience, "patience", time.Hour, "how long to wait")
	must(c.MarkFlagRequired("replicas"))
	return c
}

func orAll(region string) string {
	if region == "" {
		return "every region"
	}
	return region
}

func (a *app) rollbackCommand() *cobra.Command {
	var to int32
	var message string
	var wait bool
	var patience time.Duration
	c := &cobra.Command{
		Use:     "rollback APP",
		Short:   "Go back to an earlier version",
		Long:    "Rollback goes back to the previous stable version, or to the one given with --to. While that is retained it is live again at once; else a new version is made with its configuration.",
		Example: "  windlass rollback echo\n  windlass rollback echo --to 1",
		Args:    cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.apps.Rollback(ctx, &windlassv1.RollbackRequest{Mutation: mutation(), App: a.appPath(args[0]), Version: to, Message: message})
			if err != nil {
				return err
			}
			if resp.Retained {
				a.infof("%s: %s was retained and is live again", args[0], version(resp.Version))
			} else {
				a.infof("%s: rolling out %s, with the configuration of %s", args[0], version(resp.Version), version(resp.FromVersion))
			}
			if !wait {
				if a.output == "table" {
					return nil
				}
				return a.show(resp, nil)
			}
			return a.awaitDeployment(ctx, resp.DeploymentId, patience)
		}),
	}
	c.Flags().Int32Var(&to, "to", 0, "number of the version (2 for v2); default: the previous stable one")
	c.Flags().StringVarP(&message, "message", "m", "", "why, for the history")
	c.Flags().BoolVar(&wait, "wait", true, "wait until it is ready or has failed")
	c.Flags().DurationVar(&patience, "patience", time.Hour, "how long to wait")
	return c
}

// awaitDeployment waits for a deployment of which only the id is known.
func (a *app) awaitDeployment(ctx context.Context, id string, patience time.Duration) error {
	got, err := a.clients.deployments.GetDeployment(ctx, &windlassv1.GetDeploymentRequest{Deployment: id})
	if err != nil {
		return err
	}
	return a.await(ctx, got.Deployment.AppId, id, false, patience)
}

func (a *app) cancelCommand() *cobra.Command {
	var why string
	c := &cobra.Command{
		Use:   "cancel APP",
		Short: "Stop the rollout that is under way and undo it",
		Args:  cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.apps.Cancel(ctx, &windlassv1.CancelRequest{Mutation: mutation(), App: a.appPath(args[0]), Why: why})
			if err != nil {
				return err
			}
			a.infof("%s: cancelled; what was live stays live", args[0])
			if a.output == "table" {
				return nil
			}
			return a.show(resp, nil)
		}),
	}
	c.Flags().StringVarP(&why, "message", "m", "", "why, for the history")
	return c
}

func (a *app) deleteCommand() *cobra.Command {
	var why string
	var yes, wait, abandon bool
	var patience time.Duration
	c := &cobra.Command{
		Use:   "delete APP",
		Short: "Stop an app in every region and forget it",
		Args:  cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			if !yes && a.interactive() {
				fmt.Fprintf(a.Stderr, "Delete %s and stop all of its instances? Type its name to go on: ", args[0]) //nolint:errcheck // a prompt
				var answer string
				if _, err := fmt.Fscanln(a.Stdin, &answer); err != nil || answer != args[0] {
					return &ExitError{Code: 1, Message: "not deleted"}
				}
			}
			resp, err := a.clients.apps.DeleteApp(ctx, &windlassv1.DeleteAppRequest{Mutation: mutation(), App: a.appPath(args[0]), Why: why, AbandonUnreachable: abandon})
			if err != nil {
				return err
			}
			if !wait {
				a.infof("%s: being deleted", args[0])
				return nil
			}
			return a.awaitDeleted(ctx, args[0], resp.App.Id, patience)
		}),
	}
	c.Flags().StringVarP(&why, "message", "m", "", "why, for the history")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVar(&wait, "wait", true, "wait until nothing of it is left")
	c.Flags().BoolVar(&abandon, "abandon-unreachable", false, "do not wait for regions that are out of reach (owners)")
	c.Flags().DurationVar(&patience, "patience", time.Hour, "how long to wait")
	return c
}

func (a *app) restartCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "restart INSTANCE",
		Short: "Restart one instance, with its grace",
		Args:  cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			_, err := a.clients.deployments.RestartInstance(ctx, &windlassv1.RestartInstanceRequest{Mutation: mutation(), Instance: args[0]})
			if err == nil {
				a.infof("%s: restarting", args[0])
			}
			return err
		}),
	}
}
