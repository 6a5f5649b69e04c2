package cli

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// namedKind describes workspaces, projects or environments, for the commands that rename and delete them.
type namedKind struct {
	// kind is the name of the kind in messages, and arg its name in usage lines.
	kind, arg string
	// confirms names the objects that are deleted, too. The user must confirm the deletion.
	confirms string
	rename   func(ctx context.Context, ref, name string) error
	remove   func(ctx context.Context, ref string) error
}

// renameCommand returns the command that renames an object of the kind.
func (a *app) renameCommand(k namedKind) *cobra.Command {
	return &cobra.Command{
		Use: "rename " + k.arg + " NAME", Short: "Give " + withArticle(k.kind) + " another name", Args: cobra.ExactArgs(2),
		Long: "Rename gives " + withArticle(k.kind) + " another name. Ids and running instances stay as they are. App files, contexts and scripts that have the\n" +
			"old name must be changed.",
		RunE: a.run(func(ctx context.Context, args []string) error { return k.rename(ctx, args[0], args[1]) }),
	}
}

// removeCommand returns the command that deletes an object of the kind.
func (a *app) removeCommand(k namedKind) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "delete " + k.arg, Short: "Delete " + withArticle(k.kind) + " that has no apps", Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			if !yes && a.canAsk() {
				fmt.Fprintf(a.Stderr, "Delete %s %s, %s? Type its name to go on: ", k.kind, args[0], k.confirms) //nolint:errcheck // a prompt
				var answer string
				if _, err := fmt.Fscanln(a.Stdin, &answer); err != nil || answer != args[0] {
					return &ExitError{Code: 1, Message: "nothing is deleted"}
				}
			}
			return k.remove(ctx, args[0])
		}),
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}

func withArticle(kind string) string {
	if strings.ContainsRune("aeiou", rune(kind[0])) {
		return "an " + kind
	}
	return "a " + kind
}

// workspaceCommands returns the commands that create, list, rename and delete workspaces.
func (a *app) workspaceCommands() []*cobra.Command {
	k := namedKind{
		kind: "workspace", arg: "WORKSPACE", confirms: "its projects, secrets and keys",
		rename: func(ctx context.Context, ref, name string) error {
			got, err := a.clients.workspaces.GetWorkspace(ctx, &windlassv1.GetWorkspaceRequest{Workspace: ref})
			if err != nil {
				return err
			}
			resp, err := a.clients.workspaces.UpdateWorkspace(ctx, &windlassv1.UpdateWorkspaceRequest{
				Mutation: newMutation(), Workspace: got.Workspace.GetId(), Name: name, ResourceVersion: got.Workspace.GetResourceVersion(),
			})
			if err != nil {
				return err
			}
			return a.showDone(resp, "workspace %s is now %s", got.Workspace.GetName(), resp.Workspace.GetName())
		},
		remove: func(ctx context.Context, ref string) error {
			resp, err := a.clients.workspaces.DeleteWorkspace(ctx, &windlassv1.DeleteWorkspaceRequest{Mutation: newMutation(), Workspace: ref})
			if err != nil {
				return err
			}
			return a.showDone(resp, "workspace %s is deleted", ref)
		},
	}
	create := &cobra.Command{
		Use: "create NAME", Short: "Create a workspace and print a key of its owner, once", Args: cobra.ExactArgs(1),
		Long: `The new workspace has the project "default" and the environment "production". The command needs an operator's
key. The key that it prints has the role owner, and is not shown again. To deploy, the workspace needs a region:
its owner creates one with windlass region create, or an operator grants it a region of the platform.`,
		Example: "  windlass workspace create search > owner-key.txt\n  windlass region grant us-east-1 --workspace search",
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.workspaces.CreateWorkspace(ctx, &windlassv1.CreateWorkspaceRequest{Mutation: newMutation(), Name: args[0]})
			if err != nil {
				return err
			}
			if a.output != "table" {
				return a.showMessage(resp, nil)
			}
			a.infof("workspace %s is created; its owner's key is not shown again", resp.Workspace.GetName())
			_, err = fmt.Fprintln(a.Stdout, resp.ApiKey)
			return err
		}),
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List workspaces by name (operators)", Args: cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			all, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.Workspace, *windlassv1.PageResponse, error) {
				r, err := a.clients.workspaces.ListWorkspaces(ctx, &windlassv1.ListWorkspacesRequest{Page: p})
				return r.GetWorkspaces(), r.GetPage(), err
			})
			if err != nil {
				return err
			}
			return showList(a, all, func(w *tabwriter.Writer) {
				writeRow(w, "WORKSPACE", "NAME", "AGE")
				for _, v := range all {
					writeRow(w, v.Id, v.Name, ageText(v.CreatedAt))
				}
			})
		}),
	}
	return []*cobra.Command{create, list, a.renameCommand(k), a.removeCommand(k)}
}

func (a *app) projectCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "project", Aliases: []string{"projects"}, Short: "Manage projects, which group environments and apps",
		Long: `A project groups environments, and each app is in an environment of a project. A workspace begins with the
project "default" and its environment "production". Owners manage projects.`,
	}
	k := namedKind{
		kind: "project", arg: "PROJECT", confirms: "with its environments and their secrets",
		rename: func(ctx context.Context, ref, name string) error {
			got, err := a.clients.projects.GetProject(ctx, &windlassv1.GetProjectRequest{Project: ref})
			if err != nil {
				return err
			}
			resp, err := a.clients.projects.UpdateProject(ctx, &windlassv1.UpdateProjectRequest{
				Mutation: newMutation(), Project: got.Project.GetId(), Name: name, ResourceVersion: got.Project.GetResourceVersion(),
			})
			if err != nil {
				return err
			}
			return a.showDone(resp, "project %s is now %s", got.Project.GetName(), resp.Project.GetName())
		},
		remove: func(ctx context.Context, ref string) error {
			resp, err := a.clients.projects.DeleteProject(ctx, &windlassv1.DeleteProjectRequest{Mutation: newMutation(), Project: ref})
			if err != nil {
				return err
			}
			return a.showDone(resp, "project %s is deleted", ref)
		},
	}
	create := &cobra.Command{
		Use: "create NAME", Short: `Create a project with the environment "production"`, Args: cobra.ExactArgs(1),
		Example: "  windlass project create search\n  windlass deploy -f app.yaml   # whose file has project: search",
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.projects.CreateProject(ctx, &windlassv1.CreateProjectRequest{Mutation: newMutation(), Name: args[0]})
			if err != nil {
				return err
			}
			return a.showDone(resp, "project %s is created, with the environment production", resp.Project.GetName())
		}),
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List projects by name", Args: cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			all, err := a.listProjects(ctx)
			if err != nil {
				return err
			}
			return showList(a, all, func(w *tabwriter.Writer) {
				writeRow(w, "PROJECT", "NAME", "AGE")
				for _, v := range all {
					writeRow(w, v.Id, v.Name, ageText(v.CreatedAt))
				}
			})
		}),
	}
	return groupCommands(c, create, list, a.renameCommand(k), a.removeCommand(k))
}

func (a *app) listProjects(ctx context.Context) ([]*windlassv1.Project, error) {
	return fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.Project, *windlassv1.PageResponse, error) {
		r, err := a.clients.projects.ListProjects(ctx, &windlassv1.ListProjectsRequest{Page: p})
		return r.GetProjects(), r.GetPage(), err
	})
}

func (a *app) environmentCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "environment", Aliases: []string{"environments"}, Short: "Manage environments, which hold apps, variables and secrets",
		Long: `An environment holds apps, with variables and secrets for all of them. It is named by its project and name, as
search/staging, or by its name alone in the project of the context. Owners manage environments. Variables are
changed with windlass env, secrets with windlass secret.`,
	}
	k := namedKind{
		kind: "environment", arg: "[PROJECT/]ENVIRONMENT", confirms: "with its variables and secrets",
		rename: func(ctx context.Context, ref, name string) error {
			got, err := a.clients.environments.GetEnvironment(ctx, &windlassv1.GetEnvironmentRequest{Environment: a.inProject(ref)})
			if err != nil {
				return err
			}
			e := got.Environment
			resp, err := a.clients.environments.UpdateEnvironment(ctx, &windlassv1.UpdateEnvironmentRequest{
				Mutation: newMutation(), Environment: e.GetId(), Name: name, Variables: e.GetVariables(), ResourceVersion: e.GetResourceVersion(),
			})
			if err != nil {
				return err
			}
			return a.showDone(resp, "environment %s is now %s", environmentName(e), environmentName(resp.Environment))
		},
		remove: func(ctx context.Context, ref string) error {
			resp, err := a.clients.environments.DeleteEnvironment(ctx, &windlassv1.DeleteEnvironmentRequest{Mutation: newMutation(), Environment: a.inProject(ref)})
			if err != nil {
				return err
			}
			return a.showDone(resp, "environment %s is deleted", a.inProject(ref))
		},
	}
	var assigned []string
	create := &cobra.Command{
		Use: "create [PROJECT/]NAME", Short: "Create an environment, optionally with variables", Args: cobra.ExactArgs(1),
		Example: "  windlass environment create staging --variable LOG_LEVEL=debug\n  windlass environment create search/staging",
		RunE: a.run(func(ctx context.Context, args []string) error {
			project, name, _ := strings.Cut(a.inProject(args[0]), "/")
			values, err := parseAssignments(assigned)
			if err != nil {
				return fmt.Errorf("--variable: %w", err)
			}
			resp, err := a.clients.environments.CreateEnvironment(ctx, &windlassv1.CreateEnvironmentRequest{
				Mutation: newMutation(), Project: project, Name: name, Variables: values,
			})
			if err != nil {
				return err
			}
			return a.showDone(resp, "environment %s is created", environmentName(resp.Environment))
		}),
	}
	create.Flags().StringArrayVar(&assigned, "variable", nil, "a variable of all its apps, NAME=VALUE; can be repeated")
	list := &cobra.Command{
		Use: "list [PROJECT]", Aliases: []string{"ls"}, Short: "List the environments of all projects, or of one", Args: cobra.MaximumNArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			all, err := a.listEnvironments(ctx, args)
			if err != nil {
				return err
			}
			return showList(a, all, func(w *tabwriter.Writer) {
				writeRow(w, "ENVIRONMENT", "NAME", "VARIABLES", "AGE")
				for _, e := range all {
					writeRow(w, e.Id, environmentName(e), len(e.Variables), ageText(e.CreatedAt))
				}
			})
		}),
	}
	return groupCommands(c, create, list, a.renameCommand(k), a.removeCommand(k))
}

// listEnvironments returns the environments of the named projects, or of all projects for none.
func (a *app) listEnvironments(ctx context.Context, projects []string) (out []*windlassv1.Environment, err error) {
	if len(projects) == 0 {
		all, err := a.listProjects(ctx)
		if err != nil {
			return nil, err
		}
		for _, p := range all {
			projects = append(projects, p.Id)
		}
	}
	for _, project := range projects {
		in, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.Environment, *windlassv1.PageResponse, error) {
			r, err := a.clients.environments.ListEnvironments(ctx, &windlassv1.ListEnvironmentsRequest{Project: project, Page: p})
			return r.GetEnvironments(), r.GetPage(), err
		})
		if err != nil {
			return nil, err
		}
		out = append(out, in...)
	}
	return out, nil
}

// inProject completes the name of an environment to "project/environment".
func (a *app) inProject(ref string) string {
	if strings.HasPrefix(ref, "env_") || strings.Contains(ref, "/") {
		return ref
	}
	project, _, _ := strings.Cut(a.environmentPath(), "/")
	return project + "/" + ref
}

func environmentName(e *windlassv1.Environment) string {
	return e.GetProjectName() + "/" + e.GetName()
}
