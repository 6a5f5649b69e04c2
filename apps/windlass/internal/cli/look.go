package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// fetchPages fetches all pages of a list, up to limit rows. 0: no limit.
func fetchPages[M any](limit int, fetch func(*windlassv1.PageRequest) ([]M, *windlassv1.PageResponse, error)) ([]M, error) {
	var out []M
	token := ""
	for {
		size := int32(500)
		if limit > 0 {
			size = int32(min(500, limit-len(out)))
		}
		items, page, err := fetch(&windlassv1.PageRequest{Size: size, Token: token})
		if err != nil {
			return nil, err
		}
		out = append(out, items...)
		token = page.GetNext()
		if token == "" || limit > 0 && len(out) >= limit {
			return out, nil
		}
	}
}

func (a *app) statusCommand() *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use:     "status [APP]",
		Short:   "Show the state of an app in each region",
		Long:    "Status shows the live version of an app, the version that is being rolled out, their regions, and why they are not ready. Without an app, it lists all apps.",
		Example: "  windlass status echo\n  windlass status echo --watch",
		Args:    cobra.MaximumNArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			if len(args) == 0 {
				return a.listApps(ctx)
			}
			if !watch {
				return a.statusOnce(ctx, a.appPath(args[0]))
			}
			return withoutMessage(a.followApp(ctx, a.appPath(args[0]), "", forever, func(r *windlassv1.WatchAppResponse) (bool, error) {
				a.clearScreen()
				return r.Deleted, a.showMessage(r, func(w *tabwriter.Writer) { statusTable(w, r) })
			}))
		}),
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show the state again after each change")
	return c
}

func (a *app) statusOnce(ctx context.Context, path string) error {
	r, err := a.getState(ctx, path, "")
	if err != nil {
		return err
	}
	var scaled *windlassv1.GetScalingResponse
	if a.output == "table" && !r.GetDeleted() {
		// A control plane of an earlier release does not have this call.
		scaled, err = a.clients.scaling.GetScaling(ctx, &windlassv1.GetScalingRequest{App: r.GetApp().GetId()})
		if err != nil && connect.CodeOf(err) != connect.CodeUnimplemented && connect.CodeOf(err) != connect.CodeNotFound {
			return err
		}
	}
	return a.showMessage(r, func(w *tabwriter.Writer) {
		statusTable(w, r)
		scalingLines(w, scaled)
	})
}

// getState returns the app's current state, with the rollout rolloutID.
func (a *app) getState(ctx context.Context, path, rolloutID string) (*windlassv1.WatchAppResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	stream, err := a.clients.apps.WatchApp(ctx, &windlassv1.WatchAppRequest{App: path, Rollout: rolloutID, Once: true})
	if err != nil {
		return nil, err
	}
	defer stream.Close() //nolint:errcheck // one state is enough
	if !stream.Receive() {
		return nil, cmp.Or(stream.Err(), errors.New("the control plane ended the stream without an answer: try again"))
	}
	return proto.CloneOf(stream.Msg()), nil
}

func statusTable(w *tabwriter.Writer, r *windlassv1.WatchAppResponse) {
	app := r.App
	if r.Deleted {
		writeRow(w, app.GetName(), "deleted")
		return
	}
	writeRow(w, "App:", app.ProjectName+"/"+app.EnvironmentName+"/"+app.Name)
	status := enumText(app.Status, "APP_STATUS_")
	if app.Message != "" {
		status += ": " + app.Message
	}
	writeRow(w, "Status:", status)
	writeRow(w, "Live:", fmt.Sprintf("%s, %s ready", versionText(app.LiveVersion), readyText(r))+replicaHosts(r))
	if ro := r.Rollout; ro != nil {
		text := fmt.Sprintf("%s -> %s %s", versionText(ro.FromVersion), versionText(ro.Version), enumText(ro.Status, "ROLLOUT_STATUS_"))
		if why := reasonText(ro.Reason, ro.Message); why != "" {
			text += ": " + firstLine(why)
		}
		writeRow(w, "Rollout:", text)
	}
	for i, p := range app.Pins {
		label := ""
		if i == 0 {
			label = "Pins:"
		}
		writeRow(w, label, pinLine(p))
	}
	for i, url := range app.Urls {
		label := ""
		if i == 0 {
			label = "URLs:"
		}
		writeRow(w, label, url)
	}
	if r.Rollout != nil {
		previewRows(w, r.Rollout)
	}
	writeRow(w)
	writeRow(w, "VERSION", "REGION", "STATUS", "READY", "INSTANCES", "WEIGHT", "WHY")
	var cut cutTexts
	for _, d := range r.Deployments {
		name := versionText(d.Version)
		if d.Live {
			name += " (live)"
		}
		if d.PinnedWeight > 0 {
			name += " (pinned)"
		}
		for _, t := range d.Regions {
			why := ""
			if t.Ready < t.Replicas || t.Replicas == 0 && t.Reason != "" || t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING {
				why = firstLine(reasonText(t.Reason, t.Message))
				cut.add(fmt.Sprintf("%s in %s", versionText(d.Version), t.Region), t.Reason, t.Message)
			}
			if isAtZero(d, t) {
				why = "at zero: a request starts it"
			}
			if t.RegionUnreachable {
				why = strings.TrimSpace("region unreachable " + why)
			}
			writeRow(w, name, t.Region, enumText(t.Status, "TOPOLOGY_STATUS_"), topologyReady(d, t), t.Instances, trafficShare(app, d.Id, t.Region, t.Weight), why)
			roleRows(w, t)
		}
		if len(d.Regions) == 0 {
			writeRow(w, name, "-", enumText(d.Status, "DEPLOYMENT_STATUS_"), "", "", "", firstLine(reasonText(d.Reason, d.Message)))
			cut.add(versionText(d.Version), d.Reason, d.Message)
		}
	}
	if ro := r.Rollout; ro != nil {
		cut.add("Rollout of "+versionText(ro.Version), ro.Reason, ro.Message)
	}
	cut.print(w)
}

// roleRows writes a row for each of several roles of a version in a region.
func roleRows(w *tabwriter.Writer, t *windlassv1.RegionTopology) {
	for _, r := range t.GetRoles() {
		name, why := "  "+r.GetRole()+hostsText(r.GetHosts()), ""
		if r.GetEntry() {
			name += " (entry)"
		}
		if r.GetReady() < r.GetWanted() {
			why = firstLine(reasonText(r.GetReason(), r.GetMessage()))
		}
		writeRow(w, name, t.GetRegion(), "", fmt.Sprintf("%d/%d", r.GetReady(), r.GetWanted()), r.GetInstances(), "", why)
	}
}

// isAtZero reports whether no instances are wanted in the region, none exist, and a request starts one. A
// region with a reason, such as RegionClosed, starts none.
func isAtZero(d *windlassv1.Deployment, t *windlassv1.RegionTopology) bool {
	if t.GetReason() != "" {
		return false
	}
	serves := t.GetStatus() == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING || t.GetStatus() == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
	return serves && t.GetReplicas() == 0 && t.GetInstances() == 0 && d.GetSpec().GetRouting().GetColdStart() != nil
}

func (a *app) listCommand() *cobra.Command {
	c := &cobra.Command{
		Use:        "list",
		Aliases:    []string{"ls", "get"},
		SuggestFor: []string{"app", "apps", "regions", "deployments", "instances"},
		Short:      "List apps, deployments, instances or regions",
	}
	var ofApp, region string
	var all bool
	var limit int
	apps := &cobra.Command{
		Use: "apps", Aliases: []string{"app"}, Short: "List apps by name", Args: cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error { return a.listApps(ctx) }),
	}
	deployments := &cobra.Command{
		Use: "deployments [APP]", Aliases: []string{"deployment", "versions"}, Short: "List versions, newest first", Args: cobra.MaximumNArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			if len(args) == 1 {
				ofApp = args[0]
			}
			if ofApp != "" {
				ofApp = a.appPath(ofApp)
			}
			return a.listDeployments(ctx, ofApp, limit)
		}),
	}
	deployments.Flags().IntVar(&limit, "limit", 50, "maximum number; 0: all")
	instances := &cobra.Command{
		Use: "instances [APP]", Aliases: []string{"instance"}, Short: "List instances", Args: cobra.MaximumNArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			if len(args) == 1 {
				ofApp = a.appPath(args[0])
			}
			return a.listInstances(ctx, ofApp, region, all)
		}),
	}
	instances.Flags().StringVar(&region, "region", "", "only in this region")
	instances.Flags().BoolVarP(&all, "all", "a", false, "include ended instances")
	regions := &cobra.Command{
		Use: "regions", Aliases: []string{"region"}, Short: "List regions by name", Args: cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error { return a.listRegions(ctx) }),
	}
	return groupCommands(c, apps, deployments, instances, regions)
}

func (a *app) listApps(ctx context.Context) error {
	apps, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.App, *windlassv1.PageResponse, error) {
		r, err := a.clients.apps.ListApps(ctx, &windlassv1.ListAppsRequest{Page: p})
		return r.GetApps(), r.GetPage(), err
	})
	if err != nil {
		return err
	}
	return showList(a, apps, func(w *tabwriter.Writer) {
		if len(apps) == 0 {
			writeRow(w, "No apps yet: `windlass deploy -f FILE` creates one.")
			return
		}
		writeRow(w, "APP", "STATUS", "LIVE", "READY", "REGIONS", "AGE", "MESSAGE")
		for _, x := range apps {
			writeRow(w, x.ProjectName+"/"+x.EnvironmentName+"/"+x.Name, enumText(x.Status, "APP_STATUS_"), versionText(x.LiveVersion),
				appReady(x), orDash(strings.Join(x.Regions, ",")), ageText(x.CreatedAt), firstLine(x.Message))
		}
	})
}

func (a *app) listDeployments(ctx context.Context, app string, limit int) error {
	items, err := fetchPages(limit, func(p *windlassv1.PageRequest) ([]*windlassv1.Deployment, *windlassv1.PageResponse, error) {
		r, err := a.clients.deployments.ListDeployments(ctx, &windlassv1.ListDeploymentsRequest{Page: p, App: app})
		return r.GetDeployments(), r.GetPage(), err
	})
	if err != nil {
		return err
	}
	return showList(a, items, func(w *tabwriter.Writer) {
		writeRow(w, "APP", "VERSION", "STATUS", "SOURCE", "LABEL", "BY", "AGE", "MESSAGE")
		for _, d := range items {
			status := enumText(d.Status, "DEPLOYMENT_STATUS_")
			if d.Live {
				status += " (live)"
			}
			if d.PinnedWeight > 0 {
				status += fmt.Sprintf(" (pinned, %d %%)", d.PinnedWeight)
			}
			source := d.Source
			if d.FromVersion > 0 {
				source += " of " + versionText(d.FromVersion)
			}
			message := d.Spec.GetMessage()
			if d.Reason != "" {
				message = reasonText(d.Reason, d.Message)
			}
			writeRow(w, d.AppName, versionText(d.Version), status, source, orDash(d.Spec.GetVersionLabel()), d.CreatedBy, ageText(d.CreatedAt), firstLine(message))
		}
	})
}

func (a *app) listInstances(ctx context.Context, app, region string, all bool) error {
	items, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.Instance, *windlassv1.PageResponse, error) {
		r, err := a.clients.deployments.ListInstances(ctx, &windlassv1.ListInstancesRequest{Page: p, App: app, Region: region, IncludeTerminated: all})
		return r.GetInstances(), r.GetPage(), err
	})
	if err != nil {
		return err
	}
	return showList(a, items, func(w *tabwriter.Writer) {
		writeRow(w, "INSTANCE", "APP", "VERSION", "REGION", "SLOT", "STATUS", "ADDRESS", "RESTARTS", "AGE", "WHY")
		var cut cutTexts
		for _, i := range items {
			cut.add(i.Id, i.Reason, i.Message)
			writeRow(w, i.Id, i.AppName, versionText(i.Version), i.Region, slotText(i),
				enumText(i.Status, "INSTANCE_STATUS_"), orDash(i.Address), i.Restarts, ageText(i.StartedAt), firstLine(reasonText(i.Reason, i.Message)))
		}
		cut.print(w)
	})
}

// slotText names the place of an instance in its app: "decode/0.1", or "decode/0.1 of 2 hosts".
func slotText(i *windlassv1.Instance) string {
	return fmt.Sprintf("%s/%d.%d", i.GetRole(), i.GetGroup(), i.GetSlot()) + hostsText(i.GetHosts())
}

// hostsText returns " of 2 hosts" for several hosts, and "" for one.
func hostsText(hosts int32) string {
	if hosts < 2 {
		return ""
	}
	return fmt.Sprintf(" of %d hosts", hosts)
}

func (a *app) historyCommand() *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use:   "history APP",
		Short: "Show the decisions about an app, and their reasons",
		Args:  cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			items, err := fetchPages(limit, func(p *windlassv1.PageRequest) ([]*windlassv1.HistoryEntry, *windlassv1.PageResponse, error) {
				r, err := a.clients.history.ListHistory(ctx, &windlassv1.ListHistoryRequest{Page: p, App: a.appPath(args[0])})
				return r.GetEntries(), r.GetPage(), err
			})
			if err != nil {
				return err
			}
			return showList(a, items, func(w *tabwriter.Writer) {
				writeRow(w, "WHEN", "VERSION", "REGION", "WHAT", "WHO", "WHY")
				for _, h := range slices.Backward(items) {
					writeRow(w, timeText(h.At), versionText(h.Version), orDash(h.Region), h.What, h.Who, a.messageCell(h.Why))
				}
			})
		}),
	}
	c.Flags().IntVar(&limit, "limit", 100, "maximum number of entries, which are the newest; 0: all")
	return c
}

func (a *app) auditCommand() *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use:   "audit",
		Short: "List the calls that changed something, were refused, or read secrets and logs (owners)",
		Long: `Audit lists calls, the newest first. Each call that changed something has its own entry. Refused
calls, and reads of logs, secrets and credentials, are counted by caller, call and minute. These
counts appear a minute later. Operators see the calls that concern the platform.`,
		Args: cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			items, err := fetchPages(limit, func(p *windlassv1.PageRequest) ([]*windlassv1.AuditEntry, *windlassv1.PageResponse, error) {
				r, err := a.clients.history.ListAudit(ctx, &windlassv1.ListAuditRequest{Page: p})
				return r.GetEntries(), r.GetPage(), err
			})
			if err != nil {
				return err
			}
			return showList(a, items, func(w *tabwriter.Writer) {
				writeRow(w, "WHEN", "WHO", "CALL", "OUTCOME", "KIND", "RESOURCE", "FROM")
				for _, e := range items {
					writeRow(w, timeText(e.At), orDash(e.Actor), e.Procedure, auditOutcome(e), orDash(e.ResourceKind), orDash(e.ResourceId), e.Source)
				}
			})
		}),
	}
	c.Flags().IntVar(&limit, "limit", 50, "maximum number, newest first; 0: all")
	return c
}

// auditOutcome returns the outcome of the calls of the entry and their number, or "changed".
func auditOutcome(e *windlassv1.AuditEntry) string {
	var counted struct {
		Outcome string `json:"outcome"`
		Count   int64  `json:"count"`
	}
	if e.Before != "" || json.Unmarshal([]byte(e.After), &counted) != nil || counted.Outcome == "" {
		return "changed"
	}
	if counted.Count == 1 {
		return counted.Outcome
	}
	return fmt.Sprintf("%s (%d times)", counted.Outcome, counted.Count)
}
