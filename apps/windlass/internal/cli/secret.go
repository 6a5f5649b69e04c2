package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (a *app) secretCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "secret",
		Short: "Manage the secrets of the environment",
		Long: `A secret belongs to an environment. An app names it in its file, and gets its value in an
environment variable:

  secrets: [{envName: HF_TOKEN, secret: hf-token}]

Setting the secret again creates a new version of each app that uses it. The rollout follows the
app's policy. If the rollout fails, the app goes back to the earlier value.`,
	}
	var override string
	var w waitFlags
	set := &cobra.Command{
		Use: "set NAME", Short: "Store a new version of a secret, read from standard input or a prompt", Args: cobra.ExactArgs(1),
		Long: `Set stores a value, creates the next version of each app that runs with the secret, and
follows their rollouts to their ends, as deploy does. If the secret has this value already,
no version is created. The exit code is the code of the rollout with the worst outcome.

` + exitCodesText,
		Example: "  printf %s \"$TOKEN\" | windlass secret set hf-token",
		RunE: a.run(func(ctx context.Context, args []string) error {
			if err := w.checkUntil(); err != nil {
				return err
			}
			value, err := a.readSecret("Value: ")
			if err != nil {
				return err
			}
			resp, err := a.clients.environments.SetSecret(ctx, &windlassv1.SetSecretRequest{Mutation: newMutation(), Environment: a.environmentPath(), Name: args[0], Value: value, OverrideFreeze: override})
			if err != nil {
				return err
			}
			return a.finishSecret(ctx, resp, w)
		}),
	}
	w.addTo(set, true)
	overrideFlag(set, &override)
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List secrets by name, without values", Args: cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			items, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.Secret, *windlassv1.PageResponse, error) {
				r, err := a.clients.environments.ListSecrets(ctx, &windlassv1.ListSecretsRequest{Page: p, Environment: a.environmentPath()})
				return r.GetSecrets(), r.GetPage(), err
			})
			if err != nil {
				return err
			}
			return showList(a, items, func(w *tabwriter.Writer) {
				writeRow(w, "SECRET", "VERSION", "CREATED", "UPDATED")
				for _, s := range items {
					writeRow(w, s.Name, s.Version, ageText(s.CreatedAt), ageText(s.UpdatedAt))
				}
			})
		}),
	}
	remove := &cobra.Command{
		Use: "delete NAME", Short: "Delete a secret that no running version refers to", Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.environments.DeleteSecret(ctx, &windlassv1.DeleteSecretRequest{Mutation: newMutation(), Environment: a.environmentPath(), Name: args[0]})
			if err != nil {
				return err
			}
			return a.showDone(resp, "secret %s is deleted", args[0])
		}),
	}
	return groupCommands(c, set, list, remove)
}

// finishSecret prints the result of a new value and waits for the rollouts of the apps that use it. It
// returns the error of the rollout with the worst outcome.
func (a *app) finishSecret(ctx context.Context, resp *windlassv1.SetSecretResponse, w waitFlags) error {
	text := ""
	switch pulls := len(resp.AppIds) - len(resp.Rollouts); {
	case resp.Unchanged:
		text = ", and has this value already"
	case pulls == 1:
		text = "; an app gets it again to pull its image: see `windlass status`"
	case pulls > 1:
		text = fmt.Sprintf("; %d apps get it again to pull their images: see `windlass status`", pulls)
	}
	a.infof("secret %s is at version %d%s", resp.Secret.GetName(), resp.Secret.GetVersion(), text)
	for _, text := range resp.GetWarnings() {
		a.infof("%s", text)
	}
	for _, r := range resp.Rollouts {
		a.infof("%s: %s", r.App, versionResult{version: r.Version, hold: r.Hold}.textOf())
	}
	outcome, outcomes := outcomeAccepted, map[string]string{}
	if resp.Unchanged {
		outcome = outcomeUnchanged
	}
	var worst *ExitError
	deadline := time.Now().Add(w.patience)
	for _, r := range resp.Rollouts {
		outcomes[r.AppId] = outcomeAccepted
		if !w.wait {
			continue
		}
		v, err := a.awaitSecret(ctx, r, w.until, time.Until(deadline))
		if err != nil {
			v = verdict{true, outcomeFailed, 1, fmt.Sprintf("%s %s is no longer followed: %v", r.App, versionText(r.Version), err)}
		}
		outcomes[r.AppId] = v.outcome
		if exit, ok := errors.AsType[*ExitError](v.errorOf()); ok {
			a.infof("%s", exit.Message)
			exit.Message = ""
			if worst == nil || worseCode(exit.Code, worst.Code) {
				worst, outcome = exit, v.outcome
			}
		} else if worst == nil {
			outcome = v.outcome
		}
	}
	if a.output != "table" {
		if err := a.showWith(resp, map[string]any{"outcome": outcome, "outcomes": outcomes}); err != nil {
			return err
		}
	}
	if worst != nil {
		return worst
	}
	return nil
}

// worseCode reports whether one exit code is worse than another. From the worst: interrupted, failed, paused,
// superseded, waits for people, out of patience, done.
func worseCode(one, other int) bool {
	order := []int{0, codePatience, codePeople, codeSuperseded, codePaused, 1, codeInterrupted}
	return slices.Index(order, one) > slices.Index(order, other)
}

// awaitSecret follows one of the rollouts until it is over or patience ends.
func (a *app) awaitSecret(ctx context.Context, ro *windlassv1.SecretRollout, until string, patience time.Duration) (verdict, error) {
	p := &progress{app: a, started: time.Now(), live: a.isInteractive()}
	v, last, err := a.watchWork(ctx, p, startedWork{app: ro.AppId, rolloutID: ro.RolloutId, deploymentID: ro.DeploymentId}, until, patience)
	switch {
	case err != nil:
	case v.code == codePatience:
		v.message = fmt.Sprintf("%s %s is %s", ro.App, versionText(ro.Version), v.message)
	case v.code == 0 && v.message != "":
		a.infof("%s", v.message)
	case v.code == 0 && a.output == "table":
		fmt.Fprintln(a.Stdout, readyLine(last, time.Since(p.started))) //nolint:errcheck // standard output is gone
	}
	return v, err
}
