package cli

import (
	"context"
	"text/tabwriter"

	"github.com/spf13/cobra"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (a *app) gatewaysCommand() *cobra.Command {
	var waiting bool
	c := &cobra.Command{
		Use: "gateways", Short: "List the gateway addresses of workspaces' regions, and which wait for approval (operators)", Args: cobra.NoArgs,
		Long: `Gateways lists the workspaces' regions whose agents report an address of gateways. Gateways of
the platform's regions hand over requests only to an address that an operator approved. A new
or changed address waits for approval.`,
		Example: "  windlass region gateways --waiting",
		RunE: a.run(func(ctx context.Context, _ []string) error {
			items, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.RegionGateway, *windlassv1.PageResponse, error) {
				r, err := a.clients.regions.ListGateways(ctx, &windlassv1.ListGatewaysRequest{Page: p, Waiting: waiting})
				return r.GetGateways(), r.GetPage(), err
			})
			if err != nil {
				return err
			}
			return showList(a, items, func(w *tabwriter.Writer) {
				writeRow(w, "REGION ID", "NAME", "WORKSPACE", "ADDRESS", "APPROVAL")
				for _, g := range items {
					writeRow(w, g.Region, g.Name, orDash(g.Workspace), g.GatewayUrl, approvalOf(g))
				}
			})
		}),
	}
	c.Flags().BoolVar(&waiting, "waiting", false, "only addresses that wait for approval")
	return c
}

// approvalOf describes the approval of the address that the agent reports.
func approvalOf(g *windlassv1.RegionGateway) string {
	switch g.ApprovedGatewayUrl {
	case g.GatewayUrl:
		return "approved"
	case "":
		return "waiting"
	default:
		return "waiting; approved was " + g.ApprovedGatewayUrl
	}
}

func (a *app) approveGatewayCommand() *cobra.Command {
	return &cobra.Command{
		Use: "approve-gateway REGION-ID URL", Short: "Let the platform's gateways hand over requests to a workspace's region at this address (operators)", Args: cobra.ExactArgs(2),
		Long: `Approve-gateway approves the address that the agent of a workspace's region reports. Without
approvals, a workspace could choose where the platform's gateways send requests. The approval
is for this address only: it does not count while the agent reports another one. "windlass
region gateways" shows the ids of regions.`,
		Example: "  windlass region gateways --waiting\n  windlass region approve-gateway reg_0192f0c1 https://eu.search.example.com",
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.regions.ApproveGateway(ctx, &windlassv1.ApproveGatewayRequest{Mutation: newMutation(), Region: args[0], GatewayUrl: args[1]})
			if err != nil {
				return err
			}
			return a.showDone(resp, "gateways of the platform's regions may hand requests to region %s at %s", args[0], args[1])
		}),
	}
}

func (a *app) disapproveGatewayCommand() *cobra.Command {
	return &cobra.Command{
		Use: "disapprove-gateway REGION-ID", Short: "Withdraw the approval of a region's gateway address (operators)", Args: cobra.ExactArgs(1),
		Long:    "Disapprove-gateway stops gateways of the platform's regions from handing requests to a workspace's region.",
		Example: "  windlass region disapprove-gateway reg_0192f0c1",
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.regions.ApproveGateway(ctx, &windlassv1.ApproveGatewayRequest{Mutation: newMutation(), Region: args[0]})
			if err != nil {
				return err
			}
			return a.showDone(resp, "gateways of the platform's regions hand no requests to region %s", args[0])
		}),
	}
}
