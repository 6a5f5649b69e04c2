package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/windlass-run/windlass/apps/windlass/internal/clientconfig"
	"github.com/windlass-run/windlass/pkg/certfile"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (a *app) loginCommand() *cobra.Command {
	var server, name, project, environment string
	var secure certfile.ClientFlags
	var sso ssoFlags
	c := &cobra.Command{
		Use:   "login --server URL",
		Short: "Store the URL of a control plane and a credential as a context",
		Long: `Login checks a credential against a control plane. It stores both as a context, which later commands use.
The credential is an API key, which is read from standard input; on a terminal, login asks for it. With --sso, a
person signs in at the control plane's issuer instead, in a browser or with --device on another device. Commands
renew such a sign-in, until the maximum that the control plane sets. With --federated-token-file, a job of a CI trades
its OpenID Connect token for a token that works for an hour. WINDLASS_SERVER and WINDLASS_API_KEY replace a context.`,
		Example: `  windlass login --server https://windlass.example.com < key.txt
  windlass login --server https://windlass.example.com --sso
  windlass login --server https://windlass.example.com --federated-token-file token.txt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := secure.CheckURL(server); err != nil {
				return fmt.Errorf("--server: %w", err)
			}
			// Absolute paths are stored, because later commands may run in other folders.
			for _, path := range []*string{&secure.ServerCA, &secure.Cert, &secure.Key} {
				if *path == "" {
					continue
				}
				absolute, err := filepath.Abs(*path)
				if err != nil {
					return err
				}
				*path = absolute
			}
			target := clientconfig.Context{
				Name: name, Server: server, Project: project, Environment: environment,
				ServerCA: secure.ServerCA, ClientCert: secure.Cert, ClientKey: secure.Key, Insecure: secure.Insecure,
			}
			if err := a.getCredential(cmd.Context(), sso, &target); err != nil {
				return err
			}
			clients, err := a.newClientsFor(target)
			if err != nil {
				return err
			}
			who, err := clients.access.WhoAmI(cmd.Context(), &windlassv1.WhoAmIRequest{})
			if err != nil {
				return err
			}
			target.Workspace = who.WorkspaceName
			path, err := a.configPath()
			if err != nil {
				return err
			}
			err = clientconfig.Update(cmd.Context(), path, func(f *clientconfig.File) error {
				f.Put(target)
				f.Current = target.Name
				return nil
			})
			if err != nil {
				return err
			}
			return a.showDone(who, "logged in to %s as %s (%s of workspace %s); stored in %s", server, who.Key.GetName(), enumText(who.Key.GetRole(), "ROLE_"), orDash(who.WorkspaceName), path)
		},
	}
	c.Flags().StringVar(&server, "server", "", "URL of the control plane")
	c.Flags().StringVar(&name, "name", "default", "name of the context")
	c.Flags().StringVar(&project, "project", "default", "project of apps that are named without a project")
	c.Flags().StringVar(&environment, "environment", "production", "environment of apps that are named without an environment")
	c.Flags().StringVar(&secure.ServerCA, "server-ca", "", "PEM file with the CAs of the server's certificate (default: the CAs of this machine)")
	c.Flags().StringVar(&secure.Cert, "client-cert", "", "PEM file with a client certificate, for a server that asks for one")
	c.Flags().StringVar(&secure.Key, "client-key", "", "PEM file with the key of --client-cert")
	c.Flags().BoolVar(&secure.Insecure, "insecure", false, "allow an http:// URL of another machine: the key is then sent without encryption")
	sso.add(c)
	mustSucceed(c.MarkFlagRequired("server"))
	return c
}

// maxSecret is above the limit of the API, so that the API refuses values that are too large and its error
// names the limit.
const maxSecret = 1 << 20

// readSecret reads a value from standard input. A terminal does not show it. Line ends after the value are removed.
func (a *app) readSecret(prompt string) (string, error) {
	if f, ok := a.Stdin.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		fmt.Fprint(a.Stderr, prompt) //nolint:errcheck // a prompt
		value, err := term.ReadPassword(int(f.Fd()))
		fmt.Fprintln(a.Stderr) //nolint:errcheck // a prompt
		if err != nil {
			return "", fmt.Errorf("read the value: %w", err)
		}
		return strings.TrimSpace(string(value)), nil
	}
	data, err := io.ReadAll(io.LimitReader(a.Stdin, maxSecret+1))
	if err != nil {
		return "", fmt.Errorf("read the value: %w", err)
	}
	value := strings.TrimRight(string(data), "\r\n")
	switch {
	case len(data) > maxSecret:
		return "", fmt.Errorf("the value on standard input is larger than %d KiB: secrets and keys are smaller", maxSecret>>10)
	case strings.ContainsRune(value, 0) || !utf8.ValidString(value):
		return "", errors.New("the value on standard input is not valid UTF-8 without zero bytes, as variables must be: encode it, for example with base64")
	}
	if value == "" {
		return "", errors.New("nothing on standard input: give the value there, for example `printf %s VALUE | windlass ...`")
	}
	return value, nil
}

func (a *app) regionCommand() *cobra.Command {
	c := &cobra.Command{Use: "region", Aliases: []string{"regions"}, Short: "Manage regions, the places that run instances"}

	var labels map[string]string
	var platform bool
	create := &cobra.Command{
		Use: "create NAME", Short: "Create a region", Args: cobra.ExactArgs(1),
		Long:    "The new region belongs to the workspace, and no other workspace can use it. With --platform and an\noperator's key it belongs to the platform, and `windlass region grant` lets workspaces use it.",
		Example: "  windlass region create eu-west-1 --label tier=small\n  windlass region create us-east-1 --platform",
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.regions.CreateRegion(ctx, &windlassv1.CreateRegionRequest{Mutation: newMutation(), Name: args[0], Labels: labels, Platform: platform})
			if err != nil {
				return err
			}
			return a.showMessage(resp.Region, func(w *tabwriter.Writer) {
				writeRow(w, "region "+resp.Region.Name+" is created. Give it an agent: `windlass region token "+resp.Region.Name+"`")
			})
		}),
	}
	create.Flags().BoolVar(&platform, "platform", false, "create a region of the platform, for several workspaces (operators)")
	create.Flags().StringToStringVar(&labels, "label", nil, "label of the region, NAME=VALUE; can be repeated")

	var ttl time.Duration
	token := &cobra.Command{
		Use: "token NAME", Short: "Create a token with which one agent can join once", Args: cobra.ExactArgs(1),
		Long: "Token prints a join token and nothing else, so that its output can be the agent's file:\n\n  windlass region token us-east-1 > join-token\n  agent --server URL --data-dir DIR --join-token-file join-token",
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.regions.CreateJoinToken(ctx, &windlassv1.CreateJoinTokenRequest{Mutation: newMutation(), Region: args[0], TtlSeconds: int32(ttl.Seconds())})
			if err != nil {
				return err
			}
			if a.output != "table" {
				return a.showMessage(resp, nil)
			}
			a.infof("valid for one agent, until %s", timeText(resp.ExpiresAt))
			_, err = fmt.Fprintln(a.Stdout, resp.Token)
			return err
		}),
	}
	token.Flags().DurationVar(&ttl, "ttl", time.Hour, "how long the token is valid")

	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List regions by name", Args: cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error { return a.listRegions(ctx) }),
	}
	remove := &cobra.Command{
		Use: "delete NAME", Short: "Delete a region to which nothing is assigned", Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.regions.DeleteRegion(ctx, &windlassv1.DeleteRegionRequest{Mutation: newMutation(), Region: args[0]})
			if err != nil {
				return err
			}
			return a.showDone(resp, "region %s is deleted", args[0])
		}),
	}
	revoke := &cobra.Command{
		Use: "revoke NAME", Short: "Revoke the credentials of a region's agents", Args: cobra.ExactArgs(1),
		Long: "Revoke ends the streams of the region's agents and refuses their credentials. Instances there keep running. A new token lets an agent join again.",
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.regions.RevokeCredentials(ctx, &windlassv1.RevokeCredentialsRequest{Mutation: newMutation(), Region: args[0]})
			if err != nil {
				return err
			}
			return a.showDone(resp, "credentials of region %s are revoked; instances there keep running", args[0])
		}),
	}

	var approve bool
	prune := &cobra.Command{
		Use: "prune NAME [KEY...]", Short: "List workloads that the control plane does not know, or release them for removal", Args: cobra.MinimumNArgs(1),
		Long: "A workload that the control plane does not know, for example after a backup was restored, is quarantined: it keeps running. Prune lists these workloads. With --approve it releases all of them, or the named ones, for removal.",
		RunE: a.run(func(ctx context.Context, args []string) error {
			items, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.QuarantinedWorkload, *windlassv1.PageResponse, error) {
				r, err := a.clients.regions.ListQuarantine(ctx, &windlassv1.ListQuarantineRequest{Page: p, Region: args[0]})
				return r.GetWorkloads(), r.GetPage(), err
			})
			if err != nil {
				return err
			}
			if !approve {
				return showList(a, items, func(w *tabwriter.Writer) {
					if len(items) == 0 {
						writeRow(w, "Nothing is quarantined in "+args[0]+".")
						return
					}
					writeRow(w, "KEY", "INSTANCES", "SINCE", "APPROVED")
					for _, q := range items {
						writeRow(w, q.Key, q.Instances, ageText(q.Since), q.Approved)
					}
				})
			}
			keys := args[1:]
			if len(keys) == 0 {
				for _, q := range items {
					keys = append(keys, q.Key)
				}
			}
			if len(keys) == 0 {
				return a.showDone(&windlassv1.ApprovePruneResponse{}, "nothing is quarantined in %s", args[0])
			}
			resp, err := a.clients.regions.ApprovePrune(ctx, &windlassv1.ApprovePruneRequest{Mutation: newMutation(), Region: args[0], Keys: keys})
			if err != nil {
				return err
			}
			return a.showDone(resp, "released %d workloads of %s for removal", resp.Approved, args[0])
		}),
	}
	prune.Flags().BoolVar(&approve, "approve", false, "release the workloads for removal")
	return groupCommands(c, create, token, list, a.showRegionCommand(), a.labelRegionCommand(), remove, revoke, prune, a.grantCommand(), a.ungrantCommand(), a.evictCommand(),
		a.gatewaysCommand(), a.approveGatewayCommand(), a.disapproveGatewayCommand())
}

func (a *app) keyCommand() *cobra.Command {
	c := &cobra.Command{Use: "key", Aliases: []string{"keys"}, Short: "Manage API keys (owners, operators)"}
	var role, workspace string
	var ttl time.Duration
	create := &cobra.Command{
		Use: "create NAME --role ROLE", Short: "Create a key and print it, once", Args: cobra.ExactArgs(1),
		Long: `A key and all keys that were created with it, directly or not, are a family, which counts as one approver at a
gate. A key that an operator creates for a workspace begins a new family. Create one for each person who approves.`,
		Example: `  windlass key create ci --role deployer --ttl 2160h
  windlass key create bob --role owner --workspace acme   # with an operator's key`,
		RunE: a.run(func(ctx context.Context, args []string) error {
			value, ok := windlassv1.Role_value["ROLE_"+strings.ToUpper(role)]
			if !ok || value == 0 {
				return fmt.Errorf("--role=%q: use viewer, deployer or owner; operators use operator", role)
			}
			req := &windlassv1.CreateApiKeyRequest{Mutation: newMutation(), Name: args[0], Role: windlassv1.Role(value), Workspace: workspace}
			if ttl > 0 {
				req.ExpiresAt = time.Now().Add(ttl).UnixMilli()
			}
			resp, err := a.clients.access.CreateApiKey(ctx, req)
			if err != nil {
				return err
			}
			if a.output != "table" {
				return a.showMessage(resp, nil)
			}
			a.infof("key %s, %s; it is not shown again", resp.Key.Name, role)
			_, err = fmt.Fprintln(a.Stdout, resp.Value)
			return err
		}),
	}
	create.Flags().StringVar(&role, "role", "deployer", "viewer, deployer or owner; with an operator's key: operator")
	create.Flags().StringVar(&workspace, "workspace", "", "workspace of the key, with an operator's key. Default: none")
	create.Flags().DurationVar(&ttl, "ttl", 0, "how long the key is valid; 0: it does not expire")
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List keys by name, without values", Args: cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			items, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.ApiKey, *windlassv1.PageResponse, error) {
				r, err := a.clients.access.ListApiKeys(ctx, &windlassv1.ListApiKeysRequest{Page: p})
				return r.GetKeys(), r.GetPage(), err
			})
			if err != nil {
				return err
			}
			return showList(a, items, func(w *tabwriter.Writer) {
				writeRow(w, "KEY", "NAME", "ROLE", "PREFIX", "AGE", "EXPIRES", "REVOKED", "FAMILY")
				names := map[string]string{}
				for _, k := range items {
					names[k.Id] = k.Name
				}
				for _, k := range items {
					writeRow(w, k.Id, k.Name, enumText(k.Role, "ROLE_"), k.Prefix, ageText(k.CreatedAt), timeText(k.ExpiresAt), timeText(k.RevokedAt), cmp.Or(names[k.Family], k.Family))
				}
			})
		}),
	}
	revoke := &cobra.Command{
		Use: "revoke KEY", Short: "Revoke a key", Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.access.RevokeApiKey(ctx, &windlassv1.RevokeApiKeyRequest{Mutation: newMutation(), Key: args[0]})
			if err != nil {
				return err
			}
			return a.showDone(resp, "key %s is revoked", args[0])
		}),
	}
	return groupCommands(c, create, list, revoke)
}

func (a *app) versionCommand() *cobra.Command {
	var strict bool
	c := &cobra.Command{
		Use: "version", Short: "Show the versions of this command and of the control plane", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			versions := map[string]string{"windlass": a.Version}
			err := a.connect(cmd.Context())
			if err != nil && strict {
				return err
			}
			if err == nil {
				versions["server"] = a.target.Server
				who, err := a.clients.access.WhoAmI(cmd.Context(), &windlassv1.WhoAmIRequest{})
				if err != nil && strict {
					return err
				}
				if err != nil {
					// The version of this command is shown without the control plane's.
					a.infof("control plane  unknown: %s", firstLine(Explain(err)))
				} else {
					versions["controlPlane"] = who.ServerVersion
				}
			}
			if a.output != "table" {
				if err := a.showValue(versions); err != nil {
					return err
				}
				return a.versionsFit(strict, versions)
			}
			fmt.Fprintf(a.Stdout, "windlass       %s\n", versions["windlass"]) //nolint:errcheck // a closed stdout cannot be reported
			if v := versions["controlPlane"]; v != "" {
				fmt.Fprintf(a.Stdout, "control plane  %s (%s)\n", v, a.target.Server) //nolint:errcheck // a closed stdout cannot be reported
			}
			return a.versionsFit(strict, versions)
		},
	}
	c.Flags().BoolVar(&strict, "check", false, "end with 1 if the control plane cannot be reached, or if its version does not fit this command")
	return c
}

// versionsFit returns an error if strict is set and the two versions do not fit.
func (a *app) versionsFit(strict bool, versions map[string]string) error {
	if fit := checkVersions(versions["windlass"], versions["controlPlane"]); strict && fit.Result == checkFail {
		return errors.New(fit.Detail + "\n" + fit.Fix)
	}
	return nil
}
