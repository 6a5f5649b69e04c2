package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (a *app) routeCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "route", Aliases: []string{"routes"}, Short: "Show the hosts of apps",
		Long: `An app has a stable host. Its requests go to the app's versions by their share of the traffic. Each
version that runs has a preview host. Its requests go only to that version, whatever its share.
Your own domains work like the stable host: see ` + "`windlass domain`" + `.`,
	}
	var ended bool
	list := &cobra.Command{
		Use: "list [APP]", Aliases: []string{"ls"}, Short: "List hosts and their targets", Args: cobra.MaximumNArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			all, err := a.listRoutes(ctx, args, ended)
			if err != nil {
				return err
			}
			return showList(a, all, func(w *tabwriter.Writer) { routeTable(w, all) })
		}),
	}
	show := &cobra.Command{
		Use: "show APP", Short: "Show the hosts of an app region by region, and how its requests are routed", Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			all, err := a.listRoutes(ctx, args, ended)
			if err != nil {
				return err
			}
			var failed error
			err = showList(a, all, func(w *tabwriter.Writer) {
				routeRegions(w, all)
				failed = routePolicies(w, all)
			})
			return errors.Join(err, failed)
		}),
	}
	for _, one := range []*cobra.Command{list, show} {
		one.Flags().BoolVar(&ended, "all", false, "include hosts of versions that have ended; a deleted app can be named by its id")
	}
	return groupCommands(c, list, show)
}

func (a *app) listRoutes(ctx context.Context, args []string, ended bool) ([]*windlassv1.Route, error) {
	path := ""
	if len(args) > 0 {
		path = a.appPath(args[0])
	}
	return fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.Route, *windlassv1.PageResponse, error) {
		resp, err := a.clients.routes.ListRoutes(ctx, &windlassv1.ListRoutesRequest{Page: p, App: path, Ended: ended})
		return resp.GetRoutes(), resp.GetPage(), err
	})
}

func routeTable(w *tabwriter.Writer, all []*windlassv1.Route) {
	writeRow(w, "HOST", "KIND", "APP", "VERSIONS", "REGIONS", "STATE", "MESSAGE")
	for _, r := range all {
		writeRow(w, r.Host, enumText(r.Kind, "KIND_"), r.App, orDash(routeVersions(r)), orDash(routeRegionNames(r)), enumText(r.State, "ROUTE_STATE_"), firstLine(r.Message))
	}
}

func routeRegions(w *tabwriter.Writer, all []*windlassv1.Route) {
	writeRow(w, "HOST", "REGION", "SHARES", "GENERATION", "SERVED", "STATE", "MESSAGE")
	for _, r := range all {
		if len(r.Regions) == 0 {
			writeRow(w, r.Host, "-", "-", "-", "-", enumText(r.State, "ROUTE_STATE_"), firstLine(r.Message))
		}
		for _, in := range r.Regions {
			generation, served := "-", "-"
			if in.Generation > 0 {
				generation, served = fmt.Sprint(in.Generation), fmt.Sprint(in.AcknowledgedGeneration)
			}
			writeRow(w, r.Host, in.Region, orDash(sharesText(in.Targets)), generation, served, enumText(in.State, "ROUTE_STATE_"), firstLine(in.Message))
		}
	}
}

// routePolicies prints how requests for the stable hosts are routed. Regions with the same policy share a
// line. A line lists the fields that differ from their defaults.
func routePolicies(w *tabwriter.Writer, all []*windlassv1.Route) error {
	type said struct {
		text    string
		regions []string
	}
	for _, r := range all {
		if r.Kind != windlassv1.Route_KIND_STABLE {
			continue
		}
		var policies []said
		for _, in := range r.Regions {
			text, err := routingText(in.GetPolicy())
			if err != nil {
				return err
			}
			i := slices.IndexFunc(policies, func(s said) bool { return s.text == text })
			if i < 0 {
				i, policies = len(policies), append(policies, said{text: text})
			}
			policies[i].regions = append(policies[i].regions, in.Region)
		}
		for i, s := range policies {
			if i == 0 {
				writeRow(w)
				writeRow(w, "ROUTING", "REGIONS")
			}
			writeRow(w, s.text, strings.Join(s.regions, ", "))
		}
	}
	return nil
}

// routingText returns the fields by their names in a file.
func routingText(p *windlassv1.RoutingPolicy) (string, error) {
	leaves, err := flattenSpec(&windlassv1.DeploymentSpec{Routing: p})
	if err != nil {
		return "", err
	}
	parts := make([]string, 0, len(leaves))
	for _, path := range slices.Sorted(maps.Keys(leaves)) {
		value := leaves[path]
		switch path {
		case "routing.balancing":
			value = enumText(p.GetBalancing(), "BALANCING_")
		case "routing.crossRegion":
			value = enumText(p.GetCrossRegion(), "CROSS_REGION_")
		}
		parts = append(parts, strings.TrimPrefix(path, "routing.")+"="+value)
	}
	return cmp.Or(strings.Join(parts, " "), "defaults"), nil
}

func sharesText(shares []*windlassv1.RouteShare) string {
	parts := make([]string, 0, len(shares))
	for _, s := range shares {
		parts = append(parts, fmt.Sprintf("%s %d%%", versionText(s.Version), s.Percent))
	}
	return strings.Join(parts, ", ")
}

// routeVersions returns the shares, if they are the same in all regions.
func routeVersions(r *windlassv1.Route) string {
	text := ""
	for i, in := range r.Regions {
		switch shares := sharesText(in.Targets); {
		case i == 0:
			text = shares
		case shares != text:
			return "differ, see `windlass route show`"
		}
	}
	return text
}

func routeRegionNames(r *windlassv1.Route) string {
	names := make([]string, 0, len(r.Regions))
	for _, in := range r.Regions {
		names = append(names, in.Region)
	}
	return strings.Join(names, ", ")
}

func (a *app) domainCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "domain", Aliases: []string{"domains"}, Short: "Serve an app under domains of your own",
		Long: `A domain serves an app after a TXT record has proved that the domain's owner agrees: add the domain,
create the TXT record that add prints, and verify the domain. Then point the domain itself
(CNAME, or A and AAAA) to the gateways of the regions. Keep the record: if it is missing for 7
days, the domain lapses. A lapsed domain still serves, but any app that verifies it takes it over.`,
		Example: `  windlass domain add chat.example.com --app chat
  windlass domain verify chat.example.com --wait 10m`,
	}
	var listApp string
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List domains by name", Args: cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			all, err := a.listDomains(ctx, listApp)
			if err != nil {
				return err
			}
			return showList(a, all, func(w *tabwriter.Writer) { domainTable(w, all) })
		}),
	}
	list.Flags().StringVar(&listApp, "app", "", "list only domains of this app")
	var addApp string
	add := &cobra.Command{
		Use: "add DOMAIN --app APP", Short: "Add a domain, and print the TXT record that verifies it", Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.routes.AddDomain(ctx, &windlassv1.AddDomainRequest{Mutation: newMutation(), App: a.appPath(addApp), Domain: args[0]})
			if err != nil {
				return err
			}
			if d := resp.Domain; !d.Verified {
				a.infof("domain %s serves once its DNS has this TXT record, and `windlass domain verify %s` has seen it:", d.Name, d.Name)
			}
			return a.showMessage(resp.Domain, func(w *tabwriter.Writer) {
				if resp.Domain.Verified {
					domainTable(w, []*windlassv1.Domain{resp.Domain})
					return
				}
				writeRow(w, "NAME", "TYPE", "VALUE")
				writeRow(w, resp.Domain.TxtName, "TXT", resp.Domain.TxtValue)
			})
		}),
	}
	add.Flags().StringVar(&addApp, "app", "", "app that the domain serves")
	mustSucceed(add.MarkFlagRequired("app"))
	return groupCommands(c, list, add, a.verifyDomainCommand(), a.removeDomainCommand())
}

func (a *app) verifyDomainCommand() *cobra.Command {
	var ofApp string
	var patience time.Duration
	c := &cobra.Command{
		Use: "verify DOMAIN", Short: "Check a domain's TXT record, and serve the domain", Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			path, err := a.domainApp(ctx, args[0], ofApp)
			if err != nil {
				return err
			}
			d, err := a.verifyDomain(ctx, path, args[0], patience)
			if err != nil {
				return err
			}
			a.infof("domain %s is verified", d.Name)
			return a.showMessage(d, func(w *tabwriter.Writer) { domainTable(w, []*windlassv1.Domain{d}) })
		}),
	}
	c.Flags().StringVar(&ofApp, "app", "", "app that the domain serves; needed if several apps wait for it")
	c.Flags().DurationVar(&patience, "wait", 0, "how long to repeat the check until the record is found")
	return c
}

// verifyEvery is the time between two tries to verify a domain.
const verifyEvery = 5 * time.Second

// verifyDomain repeats the call until the record is found or patience is over.
func (a *app) verifyDomain(ctx context.Context, path, name string, patience time.Duration) (*windlassv1.Domain, error) {
	until := time.Now().Add(patience)
	for isShown := false; ; isShown = true {
		resp, err := a.clients.routes.VerifyDomain(ctx, &windlassv1.VerifyDomainRequest{Mutation: newMutation(), App: path, Domain: name})
		switch {
		case err == nil:
			return resp.Domain, nil
		case rpc.ReasonOf(err) != windlassv1.ErrorReason_ERROR_REASON_DOMAIN_NOT_VERIFIED || time.Until(until) < verifyEvery:
			return nil, err
		case !isShown:
			if text, ok := errors.AsType[*connect.Error](err); ok {
				a.infof("%s; checking again every %s", text.Message(), verifyEvery)
			}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(verifyEvery):
		}
	}
}

func (a *app) removeDomainCommand() *cobra.Command {
	var ofApp string
	c := &cobra.Command{
		Use: "remove DOMAIN", Aliases: []string{"rm"}, Short: "Remove a domain from every region and delete it", Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			path, err := a.domainApp(ctx, args[0], ofApp)
			if err != nil {
				return err
			}
			resp, err := a.clients.routes.RemoveDomain(ctx, &windlassv1.RemoveDomainRequest{Mutation: newMutation(), App: path, Domain: args[0]})
			if err != nil {
				return err
			}
			return a.showDone(resp, "domain %s is removed", args[0])
		}),
	}
	c.Flags().StringVar(&ofApp, "app", "", "app of the domain; needed if several apps have the domain or wait for it")
	return c
}

func (a *app) listDomains(ctx context.Context, ofApp string) ([]*windlassv1.Domain, error) {
	path := ""
	if ofApp != "" {
		path = a.appPath(ofApp)
	}
	return fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.Domain, *windlassv1.PageResponse, error) {
		resp, err := a.clients.routes.ListDomains(ctx, &windlassv1.ListDomainsRequest{Page: p, App: path})
		return resp.GetDomains(), resp.GetPage(), err
	})
}

// domainApp returns ofApp, or else the only app of a domain.
func (a *app) domainApp(ctx context.Context, name, ofApp string) (string, error) {
	if ofApp != "" {
		return a.appPath(ofApp), nil
	}
	all, err := a.listDomains(ctx, "")
	if err != nil {
		return "", err
	}
	var apps []string
	id := ""
	for _, d := range all {
		if strings.EqualFold(d.Name, strings.TrimSuffix(name, ".")) {
			apps, id = append(apps, d.App), d.AppId
		}
	}
	switch len(apps) {
	case 0:
		return "", fmt.Errorf("no app has domain %q: `windlass domain list` lists the domains, `windlass domain add` adds one", truncateText(name))
	case 1:
		return id, nil
	}
	return "", fmt.Errorf("several apps wait for domain %s: give one of them with --app: %s", name, strings.Join(apps, ", "))
}

// domainState describes the state of a domain, and since when it is in this state.
func domainState(d *windlassv1.Domain) string {
	switch {
	case !d.Verified:
		return "not verified"
	case d.LapsedAt != 0:
		return "lapsed " + timeText(d.LapsedAt)
	case d.MissingSince != 0:
		return "record missing " + timeText(d.MissingSince)
	}
	return "verified " + timeText(d.VerifiedAt)
}

func domainTable(w *tabwriter.Writer, all []*windlassv1.Domain) {
	writeRow(w, "DOMAIN", "APP", "STATE", "TXT RECORD", "VALUE", "ADDED BY")
	for _, d := range all {
		writeRow(w, d.Name, d.App, domainState(d), d.TxtName, d.TxtValue, orDash(d.CreatedBy))
	}
}
