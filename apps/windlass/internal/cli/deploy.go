package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/pkg/plural"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (a *app) deployCommand() *cobra.Command {
	var file, dryRun string
	var flags fileFlags
	var w waitFlags
	c := &cobra.Command{
		Use:   "deploy -f FILE|FOLDER",
		Short: "Create the next version of an app from its file",
		Long: `Deploy reads an app's file, shows what changes against the version that is live,
creates the next version and follows its rollout to its end. If the file equals the version
that is live or in flight, no version is created. If only replicas differ, the app is scaled.

The file is one YAML or JSON document with these fields:

  app          name of the app; "project" and "environment" default to the context's
  rollout      how the app moves to new versions (a RolloutPolicy). Default: region by
               region with a small surge, and back to the old version if it fails
  freeze       when no rollout of the app starts (a FileFreeze)
  scaling      how the app's replicas follow the load (a ScalingPolicy)
  overrides    what is different in some regions, by name or by label: replicas,
               resources, args or extraArgs, env and secrets
  serve        which engine serves which model. The engine's preset generates what the
               file leaves out (see windlass preset)

All other fields are fields of a DeploymentSpec. YAML aliases and merge keys (<<: *base) are
supported. Numbers that YAML parsers read differently (010, 1_000) are refused.

With a folder, deploy reads the .yaml, .yml and .json files in it and in its folders, one app in each file. It
deploys nothing if a file is wrong or one of the apps would be refused. Then it deploys all apps at once, and
waits for each. With --prune it also deletes the apps that no file has, in the environments of the files. The
exit code is 1 if an app failed, else the code of the first app whose code is not 0.

If the rollout waits for people (a manual step, an approval, or a pause by a person), the
command says so and ends with code 5. The rollout goes on waiting. With --until ready the
command waits, too. With --until promotion the command then ends with code 0.

` + exitCodesText,
		Example: "  windlass deploy -f deployments/examples/echo.yaml\n  windlass deploy -f app.yaml --wait=false -o json\n  windlass deploy -f apps/ --prune",
		Args:    cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			if err := w.checkUntil(); err != nil {
				return err
			}
			switch {
			case dryRun != "none" && dryRun != "server":
				return fmt.Errorf("--dry-run=%q: use none or server", dryRun)
			case dryRun == "server" && flags.onlyDiff:
				return errors.New("use only one of --dry-run and --diff: the plan of --dry-run=server includes the changes")
			}
			if flags.limit < 0 {
				return fmt.Errorf("--prune-limit=%d: use 0 or more", flags.limit)
			}
			flags.dryRun = dryRun == "server"
			if info, err := os.Stat(file); file != "-" && err == nil && info.IsDir() {
				return a.deployFolder(ctx, file, flags, w)
			}
			if flags.prune {
				return fmt.Errorf("--prune: -f %s is no folder: give the folder with the files of all apps that stay", file)
			}
			f, err := readAppFile(file, a.Stdin)
			if err != nil {
				return err
			}
			if flags.dryRun {
				return a.planFile(ctx, f)
			}
			return a.deployFile(ctx, f, flags.override, flags.onlyDiff, w)
		}),
	}
	c.Flags().StringVarP(&file, "file", "f", "", "the app's file, a folder with files of apps, or - for standard input")
	c.Flags().BoolVar(&flags.prune, "prune", false, "with a folder: delete the apps that no file has, in the environments of its files")
	c.Flags().IntVar(&flags.limit, "prune-limit", defaultPruneLimit, "delete no app if --prune would delete more than this number")
	c.Flags().BoolVarP(&flags.yes, "yes", "y", false, "do not ask before --prune deletes apps")
	c.Flags().BoolVar(&flags.onlyDiff, "diff", false, "only show what would change")
	c.Flags().StringVar(&dryRun, "dry-run", "none", "none or server; server: change nothing, print the plan and end with the exit codes of windlass plan")
	mustSucceed(c.RegisterFlagCompletionFunc("dry-run", cobra.FixedCompletions([]string{"none", "server"}, cobra.ShellCompDirectiveNoFileComp)))
	w.addTo(c, true)
	overrideFlag(c, &flags.override)
	mustSucceed(c.MarkFlagRequired("file"))
	mustSucceed(c.MarkFlagFilename("file", "yaml", "yml", "json"))
	return c
}

func (a *app) deployFile(ctx context.Context, f *appFile, override string, dryRun bool, w waitFlags) error {
	path := a.pathOf(f)
	if dryRun && a.output != "table" {
		plan, err := a.clients.apps.PlanDeploy(ctx, &windlassv1.PlanDeployRequest{App: path, Spec: f.Spec, Rollout: f.Rollout, Freeze: f.Freeze, Scaling: f.Scaling})
		if err != nil {
			return f.explainError(err)
		}
		return showList(a, plan.Changes, nil)
	}
	if dryRun {
		isNew, err := a.showChanges(ctx, path, f)
		if isNew {
			a.infof("%s: new app", path)
		}
		return err
	}
	x, err := a.startDeploy(ctx, f, override)
	if err != nil {
		return err
	}
	return a.waitVersion(ctx, x, w)
}

// startDeploy prints the changes, deploys the file, and prints the result of the call.
func (a *app) startDeploy(ctx context.Context, f *appFile, override string) (x versionResult, err error) {
	path := a.pathOf(f)
	isNew, err := a.showChanges(ctx, path, f)
	if err != nil {
		return x, err
	}
	resp, err := a.clients.apps.Deploy(ctx, &windlassv1.DeployRequest{Mutation: newMutation(), App: path, Spec: f.Spec, Rollout: f.Rollout, Freeze: f.Freeze, Scaling: f.Scaling, OverrideFreeze: override})
	if err != nil {
		return x, f.explainError(err)
	}
	if isNew {
		a.infof("%s: new app", path)
	}
	x = versionResult{
		appID: resp.AppId, deploymentID: resp.DeploymentId, rolloutID: resp.RolloutId, version: resp.Version,
		effect: effectOf(resp), hold: resp.Hold, overridden: override != "", warnings: resp.Warnings, answer: resp,
		ended: resp.TookBack, scalingChanged: resp.ScalingChanged,
	}
	a.printVersion(f.App, x)
	return x, nil
}

// pathOf returns the full path of the file's app, and sets the file's defaults for project and environment.
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

// showChanges prints the difference between the live version and the file. isNew reports that the app does
// not exist yet: the caller prints that only after the deploy is accepted.
func (a *app) showChanges(ctx context.Context, path string, f *appFile) (isNew bool, _ error) {
	got, err := a.clients.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: path})
	if connect.CodeOf(err) == connect.CodeNotFound {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if got.App.LiveDeploymentId == "" {
		a.infof("%s: no version is live yet", path)
		return false, nil
	}
	live, err := a.clients.deployments.GetDeployment(ctx, &windlassv1.GetDeploymentRequest{Deployment: got.App.LiveDeploymentId})
	if err != nil {
		return false, err
	}
	plan, err := a.clients.apps.PlanDeploy(ctx, &windlassv1.PlanDeployRequest{App: path, Spec: f.Spec, Rollout: f.Rollout, Freeze: f.Freeze, Scaling: f.Scaling})
	if err != nil {
		return false, f.explainError(err)
	}
	changes, err := changesOf(live.Deployment.Spec, f.Spec, plan)
	if err != nil {
		return false, err
	}
	if len(changes) == 0 {
		return false, nil
	}
	if aboutOnly(changes) && !makesVersion(plan) {
		a.infof("%s: differs from %s, which is live, only in %s, which creates no version:", path, versionText(got.App.LiveVersion), listText(pathsOf(changes), "and"))
	} else {
		a.infof("%s: changes against %s, which is live:", path, versionText(got.App.LiveVersion))
	}
	for _, line := range changes {
		a.infof("  %s", line)
	}
	return false, nil
}

func (a *app) scaleCommand() *cobra.Command {
	var replicas, current int32
	var region, role string
	var hold time.Duration
	var endHold bool
	var w waitFlags
	c := &cobra.Command{
		Use:   "scale APP (--replicas N | --role NAME=N | --end-hold [--role NAME])",
		Short: "Set the number of replicas of the live version, or of instances of a role",
		Long: `Scale sets the number of replicas in every region, or in one. That includes regions for which
the app's file has an override. The number also holds for later versions, until a file with
another number for the region is deployed. The command waits until the replicas are ready.
During a rollout, replicas of both versions count, and the command does not wait for the rollout.

The replicas of an app with scaling follow the load. With --for the given number holds for that
time, and with --end-hold the replicas follow the load again.

With --role it sets the number of instances of a role in each region, for an app with layout pooled.
This creates no version, and holds until a file with another number is deployed. If the app's scaling
lists the role, its instances follow the load: --for holds their number, and --end-hold --role NAME
ends the hold.

With --current-replicas, nothing changes if a region that would be scaled has another number now. So a
program does not undo a change that was made after it read the number.

` + exitCodesText,
		Example: "  windlass scale echo --replicas 4\n  windlass scale echo --replicas 1 --region eu-west-1\n  windlass scale echo --replicas 8 --for 2h\n  windlass scale echo --replicas 5 --current-replicas 4 --region eu-west-1\n  windlass scale chat --role decode=6\n  windlass scale chat --role decode=6 --for 2h\n  windlass scale chat --end-hold --role decode",
		Args:    cobra.ExactArgs(1),
	}
	c.RunE = a.run(func(ctx context.Context, args []string) error {
		req := &windlassv1.ScaleRequest{Mutation: newMutation(), App: a.appPath(args[0]), Replicas: replicas, Region: region, EndHold: endHold}
		if hold != 0 {
			req.HoldFor = durationpb.New(hold)
		}
		if c.Flags().Changed("current-replicas") {
			req.CurrentReplicas = &current
		}
		if role != "" {
			if err := setRole(req, role); err != nil {
				return err
			}
		}
		subject := "replicas"
		if role != "" {
			subject = "instances of role " + req.Role
		}
		resp, err := a.clients.apps.Scale(ctx, req)
		if err != nil {
			return err
		}
		if endHold {
			text := "%s: the %s in %s follow the load again"
			if resp.Unchanged {
				text = "%s: no hold of %s is in force in %s"
			}
			return a.showDone(resp, text, args[0], subject, orAll(region))
		}
		if role != "" {
			return a.finishRoleScale(ctx, req, resp, args[0], w)
		}
		if resp.Unchanged {
			a.infof("%s: the app already has %s in %s, or is getting them", args[0], plural.Count(replicas, "replica"), orAll(region))
		} else {
			a.infof("%s: scaling to %d in %s", args[0], replicas, orAll(region))
		}
		seen := false
		return a.finishWork(ctx, startedWork{
			app: resp.App.Id, answer: resp, done: isScaled,
			judge: func(r *windlassv1.WatchAppResponse) verdict { return judgeSize(r, region, replicas, &seen) },
		}, w)
	})
	c.Flags().Int32Var(&replicas, "replicas", 0, "replicas in each region, or in the region given")
	c.Flags().StringVar(&region, "region", "", "only in this region")
	c.Flags().Int32Var(&current, "current-replicas", 0, "change nothing unless the present number is this one")
	c.Flags().DurationVar(&hold, "for", 0, "how long to hold the number, for an app whose replicas follow the load")
	c.Flags().BoolVar(&endHold, "end-hold", false, "end the hold: the replicas follow the load again")
	c.Flags().StringVar(&role, "role", "", "role and its instances, as NAME=N, of an app with layout pooled. With --end-hold: NAME")
	w.addTo(c, false)
	c.MarkFlagsOneRequired("replicas", "end-hold", "role")
	c.MarkFlagsMutuallyExclusive("replicas", "end-hold")
	c.MarkFlagsMutuallyExclusive("replicas", "role")
	c.MarkFlagsMutuallyExclusive("for", "end-hold")
	return c
}

// setRole makes the request scale a role by the text NAME=N, or end its hold by the text NAME.
func setRole(req *windlassv1.ScaleRequest, text string) error {
	name, count, found := strings.Cut(text, "=")
	if req.EndHold {
		if found {
			return fmt.Errorf("--role %s: with --end-hold, write the name alone: --role %s", text, name)
		}
		req.Role = name
		return nil
	}
	n, err := strconv.ParseInt(count, 10, 32)
	if err == nil && n < 1 {
		return fmt.Errorf("--role %s: a role has at least 1 instance", text)
	}
	if !found || name == "" || err != nil {
		return fmt.Errorf("--role %s is not NAME=N, such as decode=6", text)
	}
	req.Role, req.Replicas = name, int32(n)
	return nil
}

// finishRoleScale prints that a role is scaled, and waits until the role's instances are ready.
func (a *app) finishRoleScale(ctx context.Context, req *windlassv1.ScaleRequest, resp *windlassv1.ScaleResponse, name string, w waitFlags) error {
	if resp.Unchanged {
		a.infof("%s: the app already has %s of role %s in %s, or is getting them", name, plural.Count(req.Replicas, "instance"), req.Role, orAll(req.Region))
	} else {
		a.infof("%s: scaling role %s to %d in %s", name, req.Role, req.Replicas, orAll(req.Region))
	}
	return a.finishWork(ctx, startedWork{
		app: resp.App.Id, answer: resp, done: isScaled,
		judge: func(r *windlassv1.WatchAppResponse) verdict { return judgeRole(r, req) },
	}, w)
}

// orAll returns the region, or "every region" if it is empty.
func orAll(region string) string {
	if region == "" {
		return "every region"
	}
	return region
}

func (a *app) rollbackCommand() *cobra.Command {
	var to, live int32
	var message string
	var withSteps, withSecrets bool
	var w waitFlags
	c := &cobra.Command{
		Use:   "rollback APP",
		Short: "Abort the rollout in flight, or go back to an earlier version",
		Long: `Rollback aborts the rollout in flight, as ` + "`windlass rollout abort`" + ` does. With
no rollout in flight it goes back to the previous stable version, and with --to to the given
version. A retained version is live again at once. Otherwise a new version is created with the
configuration of the earlier one. If the earlier one was stable, the steps, pauses, analysis and bake
times of the app's policy are skipped, unless --with-steps is given. Approvals are waived for
the previous stable version only. Secrets stay at their newest versions, so that a rotated
key stays rotated. --with-secrets goes back to the secret versions that the earlier version
ran with.

` + exitCodesText,
		Example: "  windlass rollback echo\n  windlass rollback echo --to 1",
		Args:    cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			if err := w.checkUntil(); err != nil {
				return err
			}
			resp, err := a.clients.apps.Rollback(ctx, &windlassv1.RollbackRequest{Mutation: newMutation(), App: a.appPath(args[0]), Version: to, LiveVersion: live, Message: message, WithSteps: withSteps, WithSecrets: withSecrets})
			if err != nil {
				return err
			}
			return a.finishVersion(ctx, args[0], versionResult{
				appID: a.appPath(args[0]), deploymentID: resp.DeploymentId, rolloutID: resp.RolloutId, version: resp.Version,
				fromVersion: resp.FromVersion, straight: resp.Straight, effect: resp.Effect, warnings: resp.Warnings, answer: resp, ended: resp.TookBack,
			}, w)
		}),
	}
	c.Flags().Int32Var(&to, "to", 0, "number of the version (2 for v2). Default: the live version if a rollout is in flight, else the previous stable one")
	c.Flags().Int32Var(&live, "if-live", 0, "refuse the rollback unless this version is live (2 for v2), or if --to is missing while a rollout is in flight. Default: no check")
	c.Flags().StringVarP(&message, "message", "m", "", "why, for the history")
	c.Flags().BoolVar(&withSecrets, "with-secrets", false, "also go back to the secret versions that the earlier version ran with")
	c.Flags().BoolVar(&withSteps, "with-steps", false, "do not skip the policy's steps, pauses, approvals, analysis and bake times")
	w.addTo(c, true)
	return c
}

func (a *app) cancelCommand() *cobra.Command {
	var why, rollout string
	c := &cobra.Command{
		Use:   "cancel APP",
		Short: "Abort the rollout in flight",
		Args:  cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.apps.Cancel(ctx, &windlassv1.CancelRequest{Mutation: newMutation(), App: a.appPath(args[0]), RolloutId: rollout, Why: why})
			if err != nil {
				return err
			}
			if resp.Unchanged {
				return a.showDone(resp, "%s: the rollout is aborted already", args[0])
			}
			return a.showDone(resp, "%s: cancelled; the live version stays live", args[0])
		}),
	}
	c.Flags().StringVarP(&why, "message", "m", "", "why, for the history")
	addIfRollout(c, &rollout)
	return c
}

func (a *app) deleteCommand() *cobra.Command {
	var why string
	var yes, wait, abandon bool
	var patience time.Duration
	c := &cobra.Command{
		Use:   "delete APP",
		Short: "Stop an app in every region and delete it",
		Args:  cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			if !yes && a.canAsk() {
				fmt.Fprintf(a.Stderr, "Delete %s and stop all of its instances? Type its name to go on: ", args[0]) //nolint:errcheck // a prompt
				var answer string
				if _, err := fmt.Fscanln(a.Stdin, &answer); err != nil || answer != args[0] {
					return &ExitError{Code: 1, Message: "not deleted"}
				}
			}
			resp, err := a.clients.apps.DeleteApp(ctx, &windlassv1.DeleteAppRequest{Mutation: newMutation(), App: a.appPath(args[0]), Why: why, AbandonUnreachable: abandon})
			if err != nil {
				return err
			}
			for _, text := range resp.GetWarnings() {
				a.infof("warning: %s", text)
			}
			return a.finishDelete(ctx, args[0], resp, wait, patience)
		}),
	}
	c.Flags().StringVarP(&why, "message", "m", "", "why, for the history")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVar(&wait, "wait", true, "wait until the app is removed in every region")
	c.Flags().BoolVar(&abandon, "abandon-unreachable", false, "do not wait for unreachable regions (owners)")
	c.Flags().DurationVar(&patience, "patience", time.Hour, "how long to wait")
	return c
}

// finishDelete waits, if asked to, until the app is gone.
func (a *app) finishDelete(ctx context.Context, name string, resp *windlassv1.DeleteAppResponse, wait bool, patience time.Duration) error {
	if wait {
		return a.awaitDeleted(ctx, name, resp, patience)
	}
	a.infof("%s: being deleted", name)
	if a.output == "table" {
		return nil
	}
	return a.showOutcome(resp, outcomeAccepted, &windlassv1.WatchAppResponse{App: resp.App}, nil)
}

func (a *app) restartCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "restart INSTANCE",
		Short: "Restart one instance, with its grace period",
		Args:  cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.deployments.RestartInstance(ctx, &windlassv1.RestartInstanceRequest{Mutation: newMutation(), Instance: args[0]})
			if err != nil {
				return a.explainRestart(ctx, args[0], err)
			}
			return a.showDone(resp, "%s: restarting", args[0])
		}),
	}
}

// explainRestart returns the error of a restart. If no such instance exists but an app has the name, it says how to
// restart the app's instances.
func (a *app) explainRestart(ctx context.Context, name string, err error) error {
	if connect.CodeOf(err) != connect.CodeNotFound {
		return err
	}
	if _, getErr := a.clients.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: a.appPath(name)}); getErr != nil {
		return err // the first error says more
	}
	return fmt.Errorf("%q is an app, and restart takes one instance: `windlass list instances %[2]s` lists the instances of %[2]s; restart each by its name", name, name)
}
