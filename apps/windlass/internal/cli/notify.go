package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/pkg/plural"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// notificationKinds has the kinds of notifications, by their names in --on.
var notificationKinds = map[string]windlassv1.NotificationKind{
	"failed":             windlassv1.NotificationKind_NOTIFICATION_KIND_ROLLOUT_FAILED,
	"rolled-back":        windlassv1.NotificationKind_NOTIFICATION_KIND_ROLLED_BACK,
	"approval-needed":    windlassv1.NotificationKind_NOTIFICATION_KIND_APPROVAL_NEEDED,
	"held":               windlassv1.NotificationKind_NOTIFICATION_KIND_START_HELD,
	"region-unreachable": windlassv1.NotificationKind_NOTIFICATION_KIND_REGION_UNREACHABLE,
	"region-back":        windlassv1.NotificationKind_NOTIFICATION_KIND_REGION_BACK,
}

const notificationKindNames = "failed, rolled-back, approval-needed, held, region-unreachable, region-back"

func (a *app) notifyCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "notify", Aliases: []string{"notifications"}, Short: "Send notifications about events to webhooks",
		Long: `An endpoint is a URL that the control plane calls when a rollout fails, goes back, waits for an approval or
is held by a freeze, and when a region becomes unreachable or returns. Its scope is the workspace, a project or an
app. Calls are signed by the Standard Webhooks scheme. A call without a 2xx answer is repeated for up to 24 hours.`,
		Example: `  windlass notify set pager --url https://example.com/hooks/windlass
  windlass notify test pager`,
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List endpoints, with their numbers of pending and dead deliveries", Args: cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			resp, err := a.clients.notifications.ListNotificationEndpoints(ctx, &windlassv1.ListNotificationEndpointsRequest{})
			if err != nil {
				return err
			}
			return showList(a, resp.Endpoints, func(w *tabwriter.Writer) { endpointTable(w, resp.Endpoints) })
		}),
	}
	remove := &cobra.Command{
		Use: "remove NAME", Aliases: []string{"rm"}, Short: "Remove an endpoint and its pending deliveries", Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.notifications.RemoveNotificationEndpoint(ctx, &windlassv1.RemoveNotificationEndpointRequest{Mutation: newMutation(), Name: args[0]})
			if err != nil {
				return err
			}
			return a.showDone(resp, "endpoint %s is removed", args[0])
		}),
	}
	test := &cobra.Command{
		Use: "test NAME", Short: "Send a test notification to an endpoint, and wait for the result", Args: cobra.ExactArgs(1),
		RunE: a.run(a.testEndpoint),
	}
	return groupCommands(c, list, a.setEndpointCommand(), remove, a.rotateNotificationSecretCommand(), test, a.deliveriesCommand(), a.replayCommand())
}

func (a *app) setEndpointCommand() *cobra.Command {
	var req windlassv1.SetNotificationEndpointRequest
	var format, ofApp string
	var on []string
	var disable, enable bool
	var c *cobra.Command
	c = &cobra.Command{
		Use: "set NAME --url URL", Short: "Create an endpoint and print its signing secret, once; or change an endpoint", Args: cobra.ExactArgs(1),
		Long: "For an existing endpoint, set changes only the fields whose flags are given. The signing secret stays.",
		Example: `  windlass notify set pager --url https://example.com/hooks/windlass --on failed,rolled-back
  windlass notify set team --url https://hooks.slack.com/services/T0/B0/X --format slack --project search`,
		RunE: a.run(func(ctx context.Context, args []string) error {
			req.Mutation, req.Name, req.Kinds, req.Disabled = newMutation(), args[0], nil, disable
			req.App = ""
			if ofApp != "" {
				req.App = a.appPath(ofApp)
			}
			switch format {
			case "cloudevents":
				req.Format = windlassv1.NotificationFormat_NOTIFICATION_FORMAT_CLOUDEVENTS
			case "slack":
				req.Format = windlassv1.NotificationFormat_NOTIFICATION_FORMAT_SLACK
			default:
				return fmt.Errorf("--format=%q: use cloudevents or slack", format)
			}
			for _, name := range on {
				k, ok := notificationKinds[name]
				if !ok {
					return fmt.Errorf("--on=%q: use some of %s", name, notificationKindNames)
				}
				req.Kinds = append(req.Kinds, k)
			}
			if err := a.keepEndpoint(ctx, &req, c.Flags().Changed); err != nil {
				return err
			}
			resp, err := a.clients.notifications.SetNotificationEndpoint(ctx, &req)
			if err != nil {
				return err
			}
			if a.output != "table" {
				return a.showMessage(resp, nil)
			}
			if resp.Secret == "" {
				return a.showMessage(resp.Endpoint, func(w *tabwriter.Writer) { endpointTable(w, []*windlassv1.NotificationEndpoint{resp.Endpoint}) })
			}
			a.infof("endpoint %s is created; its signing secret is not shown again", resp.Endpoint.Name)
			_, err = fmt.Fprintln(a.Stdout, resp.Secret)
			return err
		}),
	}
	flags := c.Flags()
	flags.StringVar(&req.Url, "url", "", "http or https URL that is called; required for a new endpoint")
	flags.StringVar(&format, "format", "cloudevents", "body: cloudevents or slack")
	flags.StringSliceVar(&on, "on", nil, "events to send: some of "+notificationKindNames+"; default: all")
	flags.StringVar(&req.Project, "project", "", "only events of apps in this project; default: the workspace")
	flags.StringVar(&ofApp, "app", "", "only events of this app; default: the workspace")
	flags.BoolVar(&disable, "disable", false, "send nothing until a call with --enable")
	flags.BoolVar(&enable, "enable", false, "send notifications again")
	c.MarkFlagsMutuallyExclusive("disable", "enable")
	return c
}

// keepEndpoint copies fields whose flags are not set from the existing endpoint with that name, if any.
func (a *app) keepEndpoint(ctx context.Context, req *windlassv1.SetNotificationEndpointRequest, changed func(flag string) bool) error {
	list, err := a.clients.notifications.ListNotificationEndpoints(ctx, &windlassv1.ListNotificationEndpointsRequest{})
	if err != nil {
		return err
	}
	for _, e := range list.Endpoints {
		if e.Name != req.Name {
			continue
		}
		if !changed("format") {
			req.Format = e.Format
		}
		if !changed("on") {
			req.Kinds = e.Kinds
		}
		if !changed("project") && !changed("app") {
			req.Project, req.App = e.Project, e.App
		}
		if !changed("disable") && !changed("enable") {
			req.Disabled = e.Disabled
		}
	}
	return nil
}

func (a *app) rotateNotificationSecretCommand() *cobra.Command {
	var keep time.Duration
	c := &cobra.Command{
		Use: "rotate NAME", Short: "Create a new signing secret and print it, once", Args: cobra.ExactArgs(1),
		Long: "For the time of --keep, calls have two signatures: one with the new and one with the previous secret. So the receiver can change its secret meanwhile.",
		RunE: a.run(func(ctx context.Context, args []string) error {
			req := &windlassv1.RotateNotificationSecretRequest{Mutation: newMutation(), Name: args[0], KeepPreviousSeconds: int64(keep.Seconds())}
			switch {
			case keep < 0:
				return fmt.Errorf("--keep=%s: use a duration of at least 1s, or 0 for not at all", keep)
			case keep < time.Second:
				req.KeepPreviousSeconds = -1
			}
			resp, err := a.clients.notifications.RotateNotificationSecret(ctx, req)
			if err != nil {
				return err
			}
			if a.output != "table" {
				return a.showMessage(resp, nil)
			}
			if resp.Secret == "" {
				return errors.New("an earlier try of this call rotated the secret, and its answer with the secret was lost: rotate it again")
			}
			if until := resp.Endpoint.PreviousSecretUntil; until != 0 {
				a.infof("the previous secret also signs until %s; the new one is not shown again", timeText(until))
			} else {
				a.infof("the previous secret no longer signs; the new one is not shown again")
			}
			_, err = fmt.Fprintln(a.Stdout, resp.Secret)
			return err
		}),
	}
	c.Flags().DurationVar(&keep, "keep", 24*time.Hour, "how long the previous secret is also used, up to 168h; 0: not at all")
	return c
}

const (
	// testPatience is the maximum time to wait for the outcome of a test. It includes the time until the control
	// plane sends the test.
	testPatience = 20 * time.Second
	testPoll     = 500 * time.Millisecond
)

// testEndpoint sends a test and waits for the outcome of its first try.
func (a *app) testEndpoint(ctx context.Context, args []string) error {
	resp, err := a.clients.notifications.TestNotificationEndpoint(ctx, &windlassv1.TestNotificationEndpointRequest{Mutation: newMutation(), Name: args[0]})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, testPatience)
	defer cancel()
	for {
		list, err := a.clients.notifications.ListNotificationDeliveries(ctx, &windlassv1.ListNotificationDeliveriesRequest{Endpoint: args[0]})
		if err != nil {
			return err
		}
		for _, d := range list.Deliveries {
			switch {
			case d.Id != resp.GetDelivery().GetId():
			case d.State == windlassv1.NotificationDelivery_STATE_DELIVERED:
				return a.showDone(d, "the test was delivered, with id %s", d.Id)
			case d.Problem != "":
				if a.output != "table" {
					if err := a.showMessage(d, nil); err != nil {
						return err
					}
				}
				return fmt.Errorf("the test is not delivered: %s: `windlass notify deliveries %s` shows further tries", d.Problem, args[0])
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the test was not sent within %s: `windlass notify deliveries %s` shows its outcome", testPatience, args[0])
		case <-time.After(testPoll):
		}
	}
}

func (a *app) deliveriesCommand() *cobra.Command {
	var state string
	var limit int
	c := &cobra.Command{
		Use: "deliveries NAME", Short: "List deliveries to an endpoint, pending ones included, newest first", Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			req := &windlassv1.ListNotificationDeliveriesRequest{Endpoint: args[0]}
			if state != "" {
				value, ok := windlassv1.NotificationDelivery_State_value["STATE_"+strings.ToUpper(state)]
				if !ok || value == 0 {
					return fmt.Errorf("--state=%q: use pending, delivered or dead", state)
				}
				req.State = windlassv1.NotificationDelivery_State(value)
			}
			items, err := fetchPages(limit, func(p *windlassv1.PageRequest) ([]*windlassv1.NotificationDelivery, *windlassv1.PageResponse, error) {
				req.Page = p
				r, err := a.clients.notifications.ListNotificationDeliveries(ctx, req)
				return r.GetDeliveries(), r.GetPage(), err
			})
			if err != nil {
				return err
			}
			return showList(a, items, func(w *tabwriter.Writer) {
				writeRow(w, "ID", "STATE", "AGE", "WHAT", "ABOUT", "TRIES", "PROBLEM")
				for _, d := range items {
					writeRow(w, d.Id, deliveryState(d), ageText(d.At), d.What, deliverySubject(d), fmt.Sprint(d.Attempts), orDash(a.messageCell(d.Problem)))
				}
			})
		}),
	}
	c.Flags().StringVar(&state, "state", "", "only deliveries in this state: pending, delivered or dead")
	c.Flags().IntVar(&limit, "limit", 50, "maximum number; 0: all")
	return c
}

func (a *app) replayCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "replay NAME [ID]", Short: "Send dead deliveries of an endpoint again, all or one", Args: cobra.RangeArgs(1, 2),
		RunE: a.run(func(ctx context.Context, args []string) error {
			req := &windlassv1.ReplayNotificationsRequest{Mutation: newMutation(), Endpoint: args[0]}
			if len(args) > 1 {
				req.Id = args[1]
			}
			resp, err := a.clients.notifications.ReplayNotifications(ctx, req)
			if err != nil {
				return err
			}
			return a.showDone(resp, "%d notifications are sent again, with the same ids", resp.Replayed)
		}),
	}
	return c
}

func endpointTable(w *tabwriter.Writer, all []*windlassv1.NotificationEndpoint) {
	writeRow(w, "ENDPOINT", "OF", "HOST", "FORMAT", "ON", "PENDING", "GIVEN UP")
	for _, e := range all {
		scope := "workspace"
		switch {
		case e.App != "":
			scope = "app " + e.App
		case e.Project != "":
			scope = "project " + e.Project
		}
		on := endpointKinds(e)
		if e.Disabled {
			on = "disabled"
		}
		writeRow(w, e.Name, scope, e.Origin, strings.ToLower(strings.TrimPrefix(e.Format.String(), "NOTIFICATION_FORMAT_")), on, fmt.Sprint(e.Pending), fmt.Sprint(e.Dead))
	}
}

// endpointKinds returns the kinds of an endpoint in the form of --on.
func endpointKinds(e *windlassv1.NotificationEndpoint) string {
	var names []string
	for name := range strings.SplitSeq(notificationKindNames, ", ") {
		for _, k := range e.Kinds {
			if notificationKinds[name] == k {
				names = append(names, name)
			}
		}
	}
	if len(names) == len(notificationKinds) {
		return "all"
	}
	return strings.Join(names, ",")
}

func deliveryState(d *windlassv1.NotificationDelivery) string {
	state := strings.ToLower(strings.TrimPrefix(d.State.String(), "STATE_"))
	if d.State == windlassv1.NotificationDelivery_STATE_PENDING && d.NextAt > time.Now().UnixMilli() {
		state += ", next at " + timeText(d.NextAt)
	}
	return state
}

// deliverySubject returns what the notification is about.
func deliverySubject(d *windlassv1.NotificationDelivery) string {
	switch {
	case d.Events > 1:
		return fmt.Sprintf("%d events of %s", d.Events, plural.Count(d.Apps, "app"))
	case d.App != "" && d.Version != 0:
		return fmt.Sprintf("%s v%d", d.App, d.Version)
	case d.App != "":
		return d.App
	case d.Region != "":
		return fmt.Sprintf("region %s, %s", d.Region, plural.Count(d.Apps, "app"))
	}
	return "-"
}
