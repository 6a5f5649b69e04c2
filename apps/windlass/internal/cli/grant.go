package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/pkg/plural"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (a *app) grantCommand() *cobra.Command {
	var workspace string
	var trust bool
	c := &cobra.Command{
		Use: "grant REGION --workspace WORKSPACE", Short: "Let a workspace use a region of the platform (operators)", Args: cobra.ExactArgs(1),
		Long: `Grant lets a workspace deploy to a region of the platform. A region without isolation, which
"windlass region list" shows, is granted to a second workspace only with --trust-all-tenants:
each workspace could read the other's secrets.`,
		Example: "  windlass region grant us-east-1 --workspace search",
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.regions.GrantRegion(ctx, &windlassv1.GrantRegionRequest{
				Mutation: newMutation(), Region: args[0], Workspace: workspace, TrustAllTenants: trust,
			})
			if err != nil {
				return err
			}
			if resp.Unchanged {
				return a.showDone(resp, "workspace %s may use region %s already", workspace, args[0])
			}
			return a.showDone(resp, "workspace %s may use region %s", workspace, args[0])
		}),
	}
	c.Flags().BoolVar(&trust, "trust-all-tenants", false, "share a region without isolation: its workspaces trust each other with their secrets")
	return withWorkspace(c, &workspace)
}

func (a *app) ungrantCommand() *cobra.Command {
	var workspace string
	c := &cobra.Command{
		Use: "ungrant REGION --workspace WORKSPACE", Short: "Stop letting a workspace use a region of the platform (operators)", Args: cobra.ExactArgs(1),
		Long: `Ungrant revokes a workspace's grant of a region. The workspace's instances there stay,
and the workspace can remove them. No instances are added: rollouts wait in that region.
"windlass region evict" also stops the instances.`,
		Example: "  windlass region ungrant us-east-1 --workspace search",
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.regions.RevokeGrant(ctx, &windlassv1.RevokeGrantRequest{Mutation: newMutation(), Region: args[0], Workspace: workspace})
			if err != nil {
				return err
			}
			return a.showDone(resp, "workspace %s may no longer use region %s; its instances there stay, and none are added", workspace, args[0])
		}),
	}
	return withWorkspace(c, &workspace)
}

func (a *app) evictCommand() *cobra.Command {
	var workspace, why string
	c := &cobra.Command{
		Use: "evict REGION --workspace WORKSPACE", Short: "Stop all instances of a workspace in a region of the platform (operators)", Args: cobra.ExactArgs(1),
		Long: `Evict revokes a workspace's grant of a region, and scales all its apps there to zero, pinned
versions included. Requests go to the app's other regions, if its routing says so. The audit
logs of the platform and of the workspace show the eviction, and so does each app's history.`,
		Example: "  windlass region evict us-east-1 --workspace search --why \"unpaid\"",
		RunE: a.run(func(ctx context.Context, args []string) error {
			all := &windlassv1.EvictWorkspaceResponse{}
			for {
				resp, err := a.clients.regions.EvictWorkspace(ctx, &windlassv1.EvictWorkspaceRequest{
					Mutation: newMutation(), Region: args[0], Workspace: workspace, Why: why,
				})
				if err != nil {
					return err
				}
				all.Apps += resp.Apps
				all.Replicas += resp.Replicas
				if !resp.More {
					break
				}
			}
			return a.showDone(all, "workspace %s is evicted from region %s: its apps stop there (%s, %s)", workspace, args[0], plural.Count(all.Apps, "app"), plural.Count(all.Replicas, "replica"))
		}),
	}
	c.Flags().StringVar(&why, "why", "", "why, for the history of the apps")
	return withWorkspace(c, &workspace)
}

func withWorkspace(c *cobra.Command, workspace *string) *cobra.Command {
	c.Flags().StringVar(workspace, "workspace", "", "the workspace, by name or id")
	mustSucceed(c.MarkFlagRequired("workspace"))
	return c
}
