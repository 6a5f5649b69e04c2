package cli

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (a *app) appKeyCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "app-key", Aliases: []string{"app-keys"}, Short: "Manage the keys with which clients call an app",
		Long: `If an app's file has "requireApiKey: true" in its routing block, gateways accept only requests
with one of the app's keys, as "Authorization: Bearer KEY" or "X-Api-Key: KEY". They do not pass
the key on to instances. A new or revoked key takes effect in a region after the region serves the
app's routes with the change, which ` + "`windlass route show APP`" + ` shows. These keys are not for the
Windlass API. For that, see ` + "`windlass key`" + `.`,
		Example: `  windlass app-key create mobile --app chat --ttl 2160h
  curl -H "Authorization: Bearer $KEY" https://chat.example.com/v1/models`,
	}
	var ofApp string
	var ttl time.Duration
	create := &cobra.Command{
		Use: "create NAME --app APP", Short: "Create a key and print it, once", Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			req := &windlassv1.CreateAppKeyRequest{Mutation: newMutation(), App: a.appPath(ofApp), Name: args[0]}
			if ttl < 0 {
				return fmt.Errorf("--ttl=%s: use a duration above 0, such as 2160h, or 0 for a key that does not expire", ttl)
			}
			if ttl > 0 {
				req.ExpiresAt = time.Now().Add(ttl).UnixMilli()
			}
			resp, err := a.clients.routes.CreateAppKey(ctx, req)
			if err != nil {
				return err
			}
			if a.output != "table" {
				return a.showMessage(resp, nil)
			}
			a.infof("key %s of %s; it is not shown again", resp.Key.Name, resp.Key.App)
			_, err = fmt.Fprintln(a.Stdout, resp.Value)
			return err
		}),
	}
	create.Flags().StringVar(&ofApp, "app", "", "app that the key is for")
	create.Flags().DurationVar(&ttl, "ttl", 0, "how long the key is valid; 0: it does not expire")
	mustSucceed(create.MarkFlagRequired("app"))
	var listApp string
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List keys, sorted by app and name, without values", Args: cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			path := ""
			if listApp != "" {
				path = a.appPath(listApp)
			}
			items, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.AppKey, *windlassv1.PageResponse, error) {
				r, err := a.clients.routes.ListAppKeys(ctx, &windlassv1.ListAppKeysRequest{Page: p, App: path})
				return r.GetKeys(), r.GetPage(), err
			})
			if err != nil {
				return err
			}
			return showList(a, items, func(w *tabwriter.Writer) {
				writeRow(w, "KEY", "APP", "PREFIX", "AGE", "EXPIRES", "CREATED BY")
				for _, k := range items {
					writeRow(w, k.Name, k.App, k.Prefix, ageText(k.CreatedAt), timeText(k.ExpiresAt), orDash(k.CreatedBy))
				}
			})
		}),
	}
	list.Flags().StringVar(&listApp, "app", "", "list only keys of this app")
	var revokeApp string
	revoke := &cobra.Command{
		Use: "revoke NAME --app APP", Aliases: []string{"rm"}, Short: "Revoke and delete a key", Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.routes.RevokeAppKey(ctx, &windlassv1.RevokeAppKeyRequest{Mutation: newMutation(), App: a.appPath(revokeApp), Name: args[0]})
			if err != nil {
				return err
			}
			return a.showDone(resp, "key %s is revoked; it is refused in a region as soon as the region has the change", args[0])
		}),
	}
	revoke.Flags().StringVar(&revokeApp, "app", "", "app that the key is for")
	mustSucceed(revoke.MarkFlagRequired("app"))
	return groupCommands(c, create, list, revoke)
}
