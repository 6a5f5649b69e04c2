package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/apps/windlass/internal/explain"
)

func (a *app) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain [REASON]",
		Short: "Show the cause of a reason, where to see it, and what to do",
		Long: `Show the cause of a reason, where to see it, and what to do. Reasons are part of errors, of the
status of apps, rollouts, instances and regions, and of histories. The code in the header
Windlass-Error of a gateway's answer is a reason, too, and so is a limit of scaling. Without an
argument, all reasons are listed. The command does not call the control plane.`,
		Example: `  windlass explain CrashLoop
  windlass explain no-capacity
  windlass explain no_instance`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, e := range explain.All() {
				names = append(names, explain.Name(e.Reason)+"\t"+e.Cause)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			entries := explain.All()
			if len(args) == 1 {
				if entries = explain.Find(args[0]); len(entries) == 0 {
					return unknownReason(args[0])
				}
			}
			if a.output != "table" {
				return a.showValue(map[string]any{"reasons": entries})
			}
			if len(args) == 0 {
				return a.listReasons(entries)
			}
			for i, e := range entries {
				if i > 0 {
					fmt.Fprintln(a.Stdout) //nolint:errcheck // a closed output cannot be reported
				}
				a.showReason(e)
			}
			return nil
		},
	}
}

func (a *app) listReasons(entries []explain.Entry) error {
	return a.showMessage(nil, func(w *tabwriter.Writer) {
		writeRow(w, "REASON", "KIND", "CAUSE")
		for _, e := range entries {
			writeRow(w, explain.Name(e.Reason), e.Kind, e.Cause)
		}
	})
}

func (a *app) showReason(e explain.Entry) {
	fmt.Fprintf(a.Stdout, "%s (%s)\n", e.Reason, e.Kind) //nolint:errcheck // a closed output cannot be reported
	for _, part := range []struct{ title, text string }{{"Cause", e.Cause}, {"See", e.See}, {"Do", e.Do}, {"Page", e.URL()}} {
		lines := wrapText(part.text, strings.Repeat(" ", 8), whyWidth)
		lines[0] = fmt.Sprintf("%-8s", part.title+":") + strings.TrimLeft(lines[0], " ")
		fmt.Fprintln(a.Stdout, strings.Join(lines, "\n")) //nolint:errcheck // a closed output cannot be reported
	}
}

// unknownReason returns an error that names up to five reasons whose names contain asked, or are part of it. Without
// one it names the reason that is written most like asked.
func unknownReason(asked string) error {
	var near, names []string
	for _, e := range explain.All() {
		names = append(names, explain.Name(e.Reason))
		name, part := strings.ToLower(explain.Name(e.Reason)), strings.ToLower(asked)
		if part != "" && (strings.Contains(name, part) || strings.Contains(part, name)) && len(near) < 5 {
			near = append(near, explain.Name(e.Reason))
		}
	}
	if name := closestName(asked, names); len(near) == 0 && name != "" {
		near = append(near, name)
	}
	if len(near) == 0 {
		return fmt.Errorf("no reason is called %q: `windlass explain` lists all", asked)
	}
	return fmt.Errorf("no reason is called %q: did you mean %s? `windlass explain` lists all", asked, strings.Join(near, ", "))
}
