package cli

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func (a *app) urlCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "url APP",
		Short: "Print a URL of an app, for curl",
		Long: `Url prints the first URL under which an app is reached, and nothing else. With --all it prints
each URL on a line of its own. Regions whose gateways have different addresses have different URLs.`,
		Example: "  curl \"$(windlass url echo)/health\"\n  for url in $(windlass url echo --all); do curl \"$url/health\"; done",
		Args:    cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			r, err := a.getState(ctx, a.appPath(args[0]), "")
			if err != nil {
				return err
			}
			urls := r.GetApp().GetUrls()
			if len(urls) == 0 {
				return fmt.Errorf("%s has no URL yet: no instance is ready; see `windlass status %s`", args[0], args[0])
			}
			if !all {
				urls = urls[:1]
			}
			return a.showMessage(r.App, func(w *tabwriter.Writer) {
				for _, url := range urls {
					writeRow(w, url)
				}
			})
		}),
	}
	c.Flags().BoolVar(&all, "all", false, "print all URLs, each on a line of its own")
	return c
}
