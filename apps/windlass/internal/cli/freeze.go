package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (a *app) freezeCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "freeze", Aliases: []string{"freezes"}, Short: "Prevent rollouts from starting, now or at certain times",
		Long: `While a freeze is in force, no rollout starts in its scope: the workspace, a project or an
app. A deploy is refused or, if the freeze was set with --hold, accepted and held until the
freeze ends. Rollouts in flight go on. Scaling, rollback, abort and delete are never frozen. A
new value of a secret that a frozen app runs with is refused, because it would replace
instances. Owners start a rollout in spite of a freeze with --override-freeze "why".

An app's file can have its own freeze, a block "freeze" with reason, onStart, from, until,
weekly and timeZone. Deploying the file sets the freeze, which also applies to that deploy.
Deploying a file without the block lifts the freeze first. List shows where each freeze comes from.`,
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List freezes by name", Args: cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			all, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.Freeze, *windlassv1.PageResponse, error) {
				resp, err := a.clients.freezes.ListFreezes(ctx, &windlassv1.ListFreezesRequest{Page: p})
				return resp.GetFreezes(), resp.GetPage(), err
			})
			if err != nil {
				return err
			}
			return showList(a, all, func(w *tabwriter.Writer) { freezeTable(w, all) })
		}),
	}
	lift := &cobra.Command{
		Use: "lift NAME", Short: "End and delete a freeze", Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.freezes.LiftFreeze(ctx, &windlassv1.LiftFreezeRequest{Mutation: newMutation(), Name: args[0]})
			if err != nil {
				return err
			}
			return a.showDone(resp, "freeze %s is lifted; held rollouts that start now, unless another freeze holds them: %d", args[0], len(resp.AppIds))
		}),
	}
	return groupCommands(c, list, a.setFreezeCommand(), lift)
}

func (a *app) setFreezeCommand() *cobra.Command {
	var f freezeFlags
	c := &cobra.Command{
		Use: "set NAME --reason WHY", Short: "Create or replace a freeze", Args: cobra.ExactArgs(1),
		Long: `Set creates a freeze of the workspace, or of --project or --app. It is in force from --from
(default: now) until --until, or for --for, or until it is lifted. With --weekly it is in force
only in the given windows, in the time zone --time-zone. A window is "Fri 16:00 - Mon 08:00"
(every week) or "22:00 - 06:00" (every day). Times are RFC 3339, or "2026-12-24 18:00" in
--time-zone or else in the time zone of this machine. Setting a freeze of the same name replaces
it: flags that are left out return to their defaults.`,
		Example: `  windlass freeze set incident --reason "we look into 4711" --for 2h
  windlass freeze set christmas --reason "all are on leave" --hold --from 2026-12-24 --until 2026-12-27
  windlass freeze set weekends --reason "no on-call engineer" --app chat --weekly "Fri 16:00 - Mon 08:00" --time-zone Europe/London`,
		RunE: a.run(func(ctx context.Context, args []string) error {
			req, err := f.requestOf(args[0], time.Now())
			if err != nil {
				return err
			}
			if req.App != "" {
				req.App = a.appPath(req.App)
			}
			resp, err := a.clients.freezes.SetFreeze(ctx, req)
			if err != nil {
				return err
			}
			return a.showMessage(resp.Freeze, func(w *tabwriter.Writer) { freezeTable(w, []*windlassv1.Freeze{resp.Freeze}) })
		}),
	}
	flags := c.Flags()
	flags.StringVar(&f.reason, "reason", "", "why, for people whose rollouts it stops")
	flags.StringVar(&f.project, "project", "", "project of the freeze. Default: the whole workspace")
	flags.StringVar(&f.app, "app", "", "app of the freeze. Default: the whole workspace")
	flags.BoolVar(&f.hold, "hold", false, "hold rollouts until the freeze ends, instead of refusing them")
	flags.StringVar(&f.from, "from", "", "when it begins. Default: now")
	flags.StringVar(&f.until, "until", "", "when it ends. Default: when it is lifted")
	flags.DurationVar(&f.lasts, "for", 0, "how long it lasts, instead of --until")
	flags.StringArrayVar(&f.weekly, "weekly", nil, "a window that recurs, START - END; can be repeated")
	flags.StringVar(&f.zone, "time-zone", "", "time zone of the windows and times, such as Europe/London")
	mustSucceed(c.MarkFlagRequired("reason"))
	return c
}

// freezeFlags are the values of the flags of freeze set.
type freezeFlags struct {
	reason, project, app, from, until, zone string
	hold                                    bool
	lasts                                   time.Duration
	weekly                                  []string
}

// requestOf returns the request that the flags describe.
func (f freezeFlags) requestOf(name string, now time.Time) (*windlassv1.SetFreezeRequest, error) {
	req := &windlassv1.SetFreezeRequest{
		Mutation: newMutation(), Name: name, Reason: f.reason, Project: f.project, App: f.app,
		OnStart: windlassv1.Freeze_ON_START_REFUSE,
	}
	if f.hold {
		req.OnStart = windlassv1.Freeze_ON_START_HOLD
	}
	zone := time.Local
	if f.zone != "" {
		var err error
		if zone, err = time.LoadLocation(f.zone); err != nil {
			return nil, fmt.Errorf("--time-zone=%q: name it as the time zone database does, for example Europe/London", f.zone)
		}
	}
	var err error
	if req.From, err = parseTimeFlag("from", f.from, zone); err != nil {
		return nil, err
	}
	if req.Until, err = parseTimeFlag("until", f.until, zone); err != nil {
		return nil, err
	}
	switch {
	case f.lasts < 0:
		return nil, fmt.Errorf("--for=%s: use a duration above 0", f.lasts)
	case f.lasts > 0 && f.until != "":
		return nil, errors.New("--for and --until both say when it ends: use one of them")
	case f.lasts > 0 && req.From != 0:
		req.Until = req.From + f.lasts.Milliseconds()
	case f.lasts > 0:
		req.Until = now.Add(f.lasts).UnixMilli()
	}
	for _, text := range f.weekly {
		window, err := weeklyWindow(text)
		if err != nil {
			return nil, fmt.Errorf("--weekly=%w", err)
		}
		req.Weekly = append(req.Weekly, window)
	}
	if len(req.Weekly) > 0 {
		req.TimeZone = f.zone
	}
	return req, nil
}

// parseTimeFlag parses the time in a flag. It returns Unix milliseconds, or 0 for an empty text.
func parseTimeFlag(flag, text string, zone *time.Location) (int64, error) {
	if text == "" {
		return 0, nil
	}
	at, err := parseTime(text, zone)
	if err != nil {
		return 0, fmt.Errorf("--%s=%w", flag, err)
	}
	return at, nil
}

// parseTime parses a time. It returns Unix milliseconds.
func parseTime(text string, zone *time.Location) (int64, error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04", "2006-01-02"} {
		if at, err := time.ParseInLocation(layout, text, zone); err == nil {
			return at.UnixMilli(), nil
		}
	}
	return 0, fmt.Errorf(`%q: write it as 2026-12-24T18:00:00Z, "2026-12-24 18:00" or 2026-12-24`, truncateText(text))
}

// weeklyWindow parses a window that recurs every week or every day.
func weeklyWindow(text string) (*windlassv1.WeeklyWindow, error) {
	start, end, ok := strings.Cut(text, "-")
	if !ok {
		return nil, fmt.Errorf(`%q: write "Fri 16:00 - Mon 08:00", or "22:00 - 06:00" for every day`, truncateText(text))
	}
	return &windlassv1.WeeklyWindow{Start: strings.TrimSpace(start), End: strings.TrimSpace(end)}, nil
}

func freezeTable(w *tabwriter.Writer, all []*windlassv1.Freeze) {
	writeRow(w, "NAME", "OF", "STARTS ARE", "STATE", "WHEN", "COMES FROM", "SET BY", "REASON")
	for _, f := range all {
		writeRow(w, f.Name, freezeScope(f), map[bool]string{true: "held", false: "refused"}[f.OnStart == windlassv1.Freeze_ON_START_HOLD],
			freezeState(f), freezeTimes(f), map[bool]string{true: "app's file", false: "freeze set"}[f.FromFile], orDash(f.SetBy), firstLine(f.Reason))
	}
}

func freezeScope(f *windlassv1.Freeze) string {
	switch {
	case f.App != "":
		return "app " + f.App
	case f.Project != "":
		return "project " + f.Project
	}
	return "workspace"
}

func freezeState(f *windlassv1.Freeze) string {
	switch {
	case f.InForce && f.InForceUntil == 0:
		return "in force"
	case f.InForce:
		return "in force until " + timeText(f.InForceUntil)
	case f.NextAt != 0:
		return "again at " + timeText(f.NextAt)
	}
	return "over"
}

func freezeTimes(f *windlassv1.Freeze) string {
	text := "from " + timeText(f.From)
	if f.Until != 0 {
		text += " to " + timeText(f.Until)
	}
	var windows []string
	for _, v := range f.Weekly {
		windows = append(windows, v.Start+" - "+v.End)
	}
	if len(windows) > 0 {
		text += ", " + strings.Join(windows, ", ") + " " + f.TimeZone
	}
	return text
}

// holdText describes the freeze that holds a rollout, or returns "" without a hold.
func holdText(h *windlassv1.FreezeHold) string {
	if h == nil {
		return ""
	}
	end := "until it is lifted"
	if h.Until != 0 {
		end = "until " + timeText(h.Until)
	}
	return fmt.Sprintf("held by freeze %s of the %s, %s: %s", h.Freeze, h.Scope, end, firstLine(h.Reason))
}

// overrideFlag adds --override-freeze to a command.
func overrideFlag(c *cobra.Command, why *string) {
	c.Flags().StringVar(why, "override-freeze", "", "reason to start the rollout in spite of a freeze (owners)")
}
