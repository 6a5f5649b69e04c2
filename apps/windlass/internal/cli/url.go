package cli

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func (a *app) urlCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "url APP",
		Short:   "Print a URL of an app, for curl",
		Long:    "Url prints the first URL under which an app is reached, and nothing else. `windlass status APP` shows all of them.",
		Example: "  curl \"$(windlass url echo)/health\"",
		Args:    cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			r, err := a.look(ctx, a.appPath(args[0]), "")
			if err != nil {
				return err
			}
			urls := r.GetApp().GetUrls()
			if len(urls) == 0 {
				return fmt.Errorf("%s has no URL yet: no instance is ready; see `windlass status %s`", args[0], args[0])
			}
			return a.show(r.App, func(w *tabwriter.Writer) { row(w, urls[0]) })
		}),
	}
}
