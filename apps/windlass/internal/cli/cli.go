// Package cli is the command line: every command, how it reads its input, and how it shows the answer.
//
// Output for programs (-o json, -o yaml) is the API's own JSON form. Tables are for people. In a pipe, they are plain
// text. Results go to standard output. Progress and errors go to standard error.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/apps/windlass/internal/clientconfig"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// Config is the configuration of the command line.
type Config struct {
	Version string
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Getenv  func(string) string
	// HTTPClient calls the control plane. Nil means that a command creates one for its context.
	HTTPClient *http.Client
	// OpenBrowser opens a URL in the person's browser. Nil means the browser of this machine, if a person uses the
	// terminal.
	OpenBrowser func(url string) error
	// Extra are commands of other packages, such as "dev".
	Extra []*cobra.Command
	// IsTerminal reports whether the writer is a terminal. Nil means isTerminal.
	IsTerminal func(io.Writer) bool
}

// app is the state that commands share.
type app struct {
	Config
	output     string
	context    string
	configFile string
	timeout    time.Duration

	target  clientconfig.Context
	clients *clients
	// http is the HTTP client of clients.
	http *http.Client
	// documents is the number of YAML documents that were printed.
	documents int
}

// clients are the clients of every service.
type clients struct {
	apps          windlassv1connect.AppServiceClient
	deployments   windlassv1connect.DeploymentServiceClient
	rollouts      windlassv1connect.RolloutServiceClient
	history       windlassv1connect.HistoryServiceClient
	regions       windlassv1connect.RegionServiceClient
	environments  windlassv1connect.EnvironmentServiceClient
	projects      windlassv1connect.ProjectServiceClient
	workspaces    windlassv1connect.WorkspaceServiceClient
	access        windlassv1connect.AccessServiceClient
	members       windlassv1connect.MemberServiceClient
	freezes       windlassv1connect.FreezeServiceClient
	protections   windlassv1connect.ProtectionServiceClient
	notifications windlassv1connect.NotificationServiceClient
	routes        windlassv1connect.RouteServiceClient
	logs          windlassv1connect.LogServiceClient
	presets       windlassv1connect.PresetServiceClient
	scaling       windlassv1connect.ScalingServiceClient
	series        windlassv1connect.SeriesServiceClient
}

func newClients(httpClient *http.Client, server string, options ...connect.ClientOption) *clients {
	return &clients{
		apps:          windlassv1connect.NewAppServiceClient(httpClient, server, options...),
		logs:          windlassv1connect.NewLogServiceClient(httpClient, server, options...),
		deployments:   windlassv1connect.NewDeploymentServiceClient(httpClient, server, options...),
		rollouts:      windlassv1connect.NewRolloutServiceClient(httpClient, server, options...),
		history:       windlassv1connect.NewHistoryServiceClient(httpClient, server, options...),
		regions:       windlassv1connect.NewRegionServiceClient(httpClient, server, options...),
		environments:  windlassv1connect.NewEnvironmentServiceClient(httpClient, server, options...),
		projects:      windlassv1connect.NewProjectServiceClient(httpClient, server, options...),
		workspaces:    windlassv1connect.NewWorkspaceServiceClient(httpClient, server, options...),
		access:        windlassv1connect.NewAccessServiceClient(httpClient, server, options...),
		members:       windlassv1connect.NewMemberServiceClient(httpClient, server, options...),
		freezes:       windlassv1connect.NewFreezeServiceClient(httpClient, server, options...),
		protections:   windlassv1connect.NewProtectionServiceClient(httpClient, server, options...),
		notifications: windlassv1connect.NewNotificationServiceClient(httpClient, server, options...),
		routes:        windlassv1connect.NewRouteServiceClient(httpClient, server, options...),
		presets:       windlassv1connect.NewPresetServiceClient(httpClient, server, options...),
		scaling:       windlassv1connect.NewScalingServiceClient(httpClient, server, options...),
		series:        windlassv1connect.NewSeriesServiceClient(httpClient, server, options...),
	}
}

// callTimeout bounds each call of a command.
const callTimeout = 30 * time.Second

// New builds the root command.
func New(cfg Config) *cobra.Command {
	if cfg.IsTerminal == nil {
		cfg.IsTerminal = isTerminal
	}
	cfg.Stdout, cfg.Stderr = newScreen(cfg.Stdout, cfg.IsTerminal), newScreen(cfg.Stderr, cfg.IsTerminal)
	a := &app{Config: cfg}
	root := &cobra.Command{
		Use:   "windlass",
		Short: "Deploy model servers to many regions, and keep them there",
		Long: `Windlass runs GPU inference in many regions. You state which apps should run in which
regions. An agent in each region pulls this desired state and applies it. A durable
workflow moves an app from one version to the next, or back.

Try it on this machine:   windlass dev
Then, in another shell:   windlass deploy -f deployments/examples/echo.yaml`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       cfg.Version,
	}
	root.SetVersionTemplate("windlass {{.Version}}\n")
	root.SetIn(cfg.Stdin)
	root.SetOut(cfg.Stdout)
	root.SetErr(cfg.Stderr)
	flags := root.PersistentFlags()
	flags.StringVarP(&a.output, "output", "o", "table", "form of the output: table, json or yaml")
	flags.StringVar(&a.context, "context", "", "context to use, created by windlass login")
	flags.StringVar(&a.configFile, "config", "", "file that holds the contexts. Default: $"+clientconfig.EnvFile+", else windlass/config.yaml in the user's configuration folder, which is ~/.config on Linux")
	flags.DurationVar(&a.timeout, "timeout", callTimeout, "how long one call may take")
	mustSucceed(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp)))
	root.SetFlagErrorFunc(flagError)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		// Cobra checks these later, and its errors do not show the usage.
		if err := checkFlags(cmd); err != nil {
			return usageError(cmd, err)
		}
		switch a.output {
		case "table", "json", "yaml":
			return nil
		}
		return fmt.Errorf("--output=%q: use table, json or yaml", a.output)
	}

	root.AddGroup(
		&cobra.Group{ID: "apps", Title: "Apps:"},
		&cobra.Group{ID: "look", Title: "Inspect:"},
		&cobra.Group{ID: "platform", Title: "Platform:"})
	add := func(id string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = id
			root.AddCommand(c)
			if !slices.Contains(cfg.Extra, c) {
				refuseRepeats(c)
			}
		}
	}
	add("apps", a.deployCommand(), a.planCommand(), a.exportCommand(), a.scaleCommand(), a.rollbackCommand(), a.rolloutCommand(), a.cancelCommand(), a.deleteCommand(), a.envCommand(), a.secretCommand(), a.restartCommand(), a.freezeCommand(), a.protectionCommand(), a.notifyCommand(), a.pinCommand(), a.unpinCommand(), a.domainCommand(), a.appKeyCommand())
	add("look", a.statusCommand(), a.listCommand(), a.historyCommand(), a.pinsCommand(), a.urlCommand(), a.dashboardCommand(), a.routeCommand(), a.logsCommand(), a.topCommand(), a.auditCommand(), a.explainCommand(), a.presetCommand(), a.modelCommand(), a.scalingCommand())
	add("platform", append(cfg.Extra, a.loginCommand(), a.logoutCommand(), a.whoamiCommand(), a.regionCommand(), a.workspaceCommand(), a.projectCommand(), a.environmentCommand(), a.keyCommand(), a.membersCommand(), a.federationCommand(), a.doctorCommand(), a.supportBundleCommand(), a.versionCommand())...)
	groupCommands(root, exitCodesTopic())
	root.Args = cobra.NoArgs // without a check, Cobra refuses an unknown command with a text of its own
	root.SetHelpCommand(helpCommand())
	explainArgs(root)
	return root
}

func mustSucceed(err error) {
	if err != nil {
		panic(err)
	}
}

// connect reads the context and creates the clients.
func (a *app) connect(ctx context.Context) error {
	if a.clients != nil {
		return nil
	}
	path, err := a.configPath()
	if err != nil {
		return err
	}
	file, err := clientconfig.Load(path)
	if err != nil {
		return err
	}
	a.target, err = file.Resolve(a.context, a.Getenv)
	if err != nil {
		return err
	}
	clients, err := a.newClientsFor(a.target)
	if err != nil {
		return err
	}
	key := a.target.APIKey
	if err := a.renewToken(ctx, path); err != nil {
		return err
	}
	if a.target.APIKey != key {
		if clients, err = a.newClientsFor(a.target); err != nil {
			return err
		}
	}
	a.clients = clients
	return nil
}

// configPath returns the path of the file with the contexts.
func (a *app) configPath() (string, error) {
	if a.configFile != "" {
		return a.configFile, nil
	}
	return clientconfig.Path(a.Getenv)
}

// newClientsFor creates the clients for a context.
func (a *app) newClientsFor(target clientconfig.Context) (*clients, error) {
	httpClient := a.HTTPClient
	if httpClient == nil {
		config, err := target.TLS().Config(target.Server, nil)
		if err != nil {
			return nil, err
		}
		httpClient = rpc.NewHTTPClient(rpc.HTTPClientConfig{TLS: config})
	}
	a.http = httpClient
	// This interceptor is the outermost one, so that each try has the whole timeout.
	options := append([]connect.ClientOption{connect.WithInterceptors(a.retryRateLimited())}, rpc.ClientOptions(rpc.ClientConfig{
		Token:     func() string { return target.APIKey },
		UserAgent: "windlass-cli/" + a.Version,
		Timeout:   a.timeout,
	})...)
	return newClients(httpClient, strings.TrimSuffix(target.Server, "/"), options...), nil
}

// run wraps a command that calls the control plane.
func (a *app) run(fn func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := a.connect(cmd.Context()); err != nil {
			return err
		}
		return fn(cmd.Context(), args)
	}
}

// groupCommands adds subcommands to a command that does nothing itself. For an unknown subcommand it fails. Cobra would
// show the help and succeed.
func groupCommands(c *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	c.AddCommand(commands...)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return unknownCommand(cmd, args[0])
	}
	return c
}

// newMutation returns a new idempotency key for a command's call, so that a repeated call has no second effect.
func newMutation() *windlassv1.Mutation {
	return &windlassv1.Mutation{IdempotencyKey: ident.New("cli")}
}

// appPath completes an app's name to "project/environment/name".
func (a *app) appPath(name string) string {
	if strings.HasPrefix(name, "app_") || strings.Count(name, "/") == 2 {
		return name
	}
	return a.environmentPath() + "/" + name
}

func (a *app) environmentPath() string {
	project, environment := a.target.Project, a.target.Environment
	if project == "" {
		project = "default"
	}
	if environment == "" {
		environment = "production"
	}
	return project + "/" + environment
}

// isInteractive reports whether standard error is a terminal on which lines can be redrawn.
func (a *app) isInteractive() bool {
	return a.canAsk() && a.Getenv("NO_COLOR") == "" && a.Getenv("TERM") != "dumb"
}

// canAsk reports whether a person sees a question on standard error.
func (a *app) canAsk() bool {
	s, ok := a.Stderr.(*screen)
	return ok && s.terminal
}

// dataWriter returns standard output for programs.
func (a *app) dataWriter() io.Writer {
	if s, ok := a.Stdout.(*screen); ok {
		return s.dataWriter()
	}
	return a.Stdout
}

// messageCell returns a text for the last column of a table. A terminal gets its first line, as firstLine cuts it.
// A pipe or a file gets all of it, as one line.
func (a *app) messageCell(text string) string {
	if s, ok := a.Stdout.(*screen); ok && s.terminal {
		return firstLine(text)
	}
	return strings.Join(strings.Fields(text), " ")
}

// clearScreen empties the terminal before a watch prints the next state.
func (a *app) clearScreen() {
	if s, ok := a.Stdout.(*screen); ok && a.output == "table" && a.isInteractive() {
		s.writeControl("\x1b[H\x1b[2J")
	}
}

func (a *app) infof(format string, args ...any) {
	fmt.Fprintf(a.Stderr, format+"\n", args...) //nolint:errcheck // a closed output cannot be reported
}

// forever is longer than any person watches.
const forever = 365 * 24 * time.Hour

// withoutMessage removes the message from the error of a watch that the user stopped.
func withoutMessage(err error) error {
	if exit, ok := errors.AsType[*ExitError](err); ok && exit.Code == codeInterrupted {
		return &ExitError{Code: exit.Code}
	}
	return err
}

// ExitError ends the program with a code and, unless it is empty, a message.
type ExitError struct {
	Code    int
	Message string
}

func (e *ExitError) Error() string { return e.Message }

// Report prints why a command failed, and returns the exit code.
func Report(stderr io.Writer, err error) int {
	out := newScreen(stderr, isTerminal)
	if exit, ok := errors.AsType[*ExitError](err); ok {
		if exit.Message != "" {
			fmt.Fprintln(out, exit.Message) //nolint:errcheck // a closed output cannot be reported
		}
		return exit.Code
	}
	text := Explain(err)
	// The errors about a command line begin with the command.
	if !strings.HasPrefix(text, "windlass ") {
		text = "windlass: " + text
	}
	fmt.Fprintln(out, text) //nolint:errcheck // a closed output cannot be reported
	return 1
}

// Explain turns an error into text for people: what went wrong, the field at fault, the fix, and where its
// reason is explained.
func Explain(err error) string {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return err.Error()
	}
	detail := rpc.DetailOf(err)
	return withoutReason(err, ce, detail) + hintLine(detail.GetReason().String())
}

// withoutReason returns the text of Explain without the line about the reason.
func withoutReason(err error, ce *connect.Error, detail *windlassv1.ErrorDetail) string {
	var b strings.Builder
	if fault, ok := errors.AsType[*fileFault](err); ok {
		b.WriteString(fault.Error())
		if fix := detail.GetFix(); fix != "" {
			b.WriteString("\n" + fix)
		}
		return b.String()
	}
	if field := detail.GetField(); field != "" && !strings.Contains(ce.Message(), field) {
		b.WriteString(field + ": ")
	}
	switch {
	case detail == nil && isUnreached(ce):
		b.WriteString("cannot reach the control plane: " + ce.Message() + "\n" + reachHint(err))
	case ce.Code() == connect.CodeDeadlineExceeded && detail == nil:
		b.WriteString("the control plane did not answer in time (--timeout): " + ce.Message())
	default:
		b.WriteString(ce.Message())
	}
	if fix := detail.GetFix(); fix != "" {
		b.WriteString("\n" + fix)
	}
	return b.String()
}
