package cli

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/apps/windlass/internal/signin"
)

func (a *app) dashboardCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "dashboard",
		Short: "Print a link that opens the dashboard signed in",
		Long: "Dashboard prints a link to the dashboard of the context's control plane. The link signs one browser in, once, with the rights of the " +
			"context's API key. If another person opens the link before you, that person is signed in instead of you.",
		Example: "  open \"$(windlass dashboard)\"",
		Args:    cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			link, err := signin.New(ctx, a.http, a.target.Server, a.target.APIKey)
			if err != nil {
				return err
			}
			if a.isInteractive() {
				fmt.Fprintf(a.Stderr, "good for one sign-in within %s\n", link.ExpiresIn.Round(time.Minute)) //nolint:errcheck // a hint
			}
			if a.output == "table" {
				return a.showMessage(nil, func(w *tabwriter.Writer) { writeRow(w, link.URL) })
			}
			return a.showValue(map[string]any{"url": link.URL, "expiresInMs": link.ExpiresIn.Milliseconds()})
		}),
	}
}
