package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/pkg/ident"
)

var defaultRegions = []string{"us-east-1", "eu-west-1"}

// envPrometheus is the default of --prometheus-url. Only the control plane gets it, because a URL may hold a
// password.
const envPrometheus = "WINDLASS_PROMETHEUS_URL"

// options are the options of `dev` as the user gave them.
type options struct {
	dataDir string
	// usualDir reports whether dataDir is the default.
	usualDir bool
	regions  []string // nil: the regions of the last run
	context  string
	// config is the file that gets the context. Empty: the CLI's usual file.
	config  string
	gpus    string
	runtime string   // empty: that of the last run
	nodes   int      // of each cluster; 0: not given
	groups  []string // of nodes; nil: the groups of the last run
	tls     *bool    // nil: that of the last run
	reset   bool
	detach  bool
	// prometheus is the URL of the Prometheus that the control plane queries. Empty: none.
	prometheus string
	// reportFD is the file descriptor to which a detached dev reports. 0: it is not detached.
	reportFD int
}

// Command returns `windlass dev` with its subcommands.
func Command(cfg Config) *cobra.Command {
	var opts options
	var secure bool
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run all of Windlass on this machine",
		Long: `Run all of Windlass on this machine: MariaDB, Restate, the control plane, and an
agent and a gateway for each region, each as a separate process.

Apps are reached through the gateways, at URLs below localhost, which "windlass deploy" and
"windlass status" show: curl http://echo-0123456789ab.localhost:7709/

With --tls every port has TLS, except the ports of instances, because only gateways on this machine
call them. A CA is created in the folder tls of the data folder, and certificates that last a day are
renewed while dev runs. The CLI's context has the CA. Other clients need it, too:
curl --cacert ~/.local/share/windlass/dev/tls/ca.crt https://...

With --runtime kubernetes every region is its own Kubernetes cluster. Kubelab
runs the cluster: a real control plane with simulated nodes, whose pods answer
requests. The first start builds kubelab, which takes minutes.

MariaDB and Restate are installed when they are missing. Data, logs and the
choice of ports are kept in one folder, so that the next start brings back the
same apps. Ctrl-C stops everything, instances included. A process that
dies is started again.`,
		Example: `  windlass dev
  windlass dev --detach --regions us-east-1,eu-west-1,ap-south-1
  windlass dev --tls
  windlass dev --runtime kubernetes --nodes 4 --gpus 8:NVIDIA-H100-80GB-HBM3
  windlass dev status
  windlass dev stop`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := forPeople(cmd, cfg, opts); err != nil {
				return err
			}
			if cmd.Flags().Changed("tls") {
				opts.tls = &secure
			}
			if err := opts.completeAndCheck(cmd, cfg); err != nil {
				return err
			}
			cmd.SilenceUsage = true
			if opts.detach {
				return runDetached(cmd, cfg, opts)
			}
			return runForeground(cmd, cfg, opts)
		},
	}
	cmd.PersistentFlags().StringVar(&opts.dataDir, "data-dir", "", "folder for all data (default ~/.local/share/windlass/dev)")
	flags := cmd.Flags()
	flags.StringSliceVar(&opts.regions, "regions", nil, "regions to run an agent for (default: the regions of the last run, or "+strings.Join(defaultRegions, ",")+")")
	flags.StringVar(&opts.context, "context", "dev", "name of the CLI context that is created for this Windlass")
	flags.StringVar(&opts.runtime, "runtime", "", "runtime for instances: process or kubernetes (default: the runtime of the last run, or process)")
	flags.StringVar(&opts.gpus, "gpus", "auto", "GPUs of each region, or of each node of a cluster: none, a number with or without a product (4:H100), or auto. With auto, the first region gets this machine's GPUs, and a cluster gets nodes with different GPUs")
	flags.IntVar(&opts.nodes, "nodes", 0, "nodes of each region's cluster (kubernetes)")
	flags.StringArrayVar(&opts.groups, "group", nil, "a group of nodes of each region's cluster, in kubelab's form: name=h100,nodes=4,gpu=nvidia.com/gpu=8,...; can be repeated (kubernetes)")
	flags.StringVar(&opts.prometheus, "prometheus-url", "", "URL of a Prometheus for the analysis of rollouts (default $"+envPrometheus+")")
	flags.BoolVar(&secure, "tls", false, "use TLS on every port except the ports of instances, with certificates of a CA that is created in the data folder (default: as in the last run)")
	flags.BoolVar(&opts.reset, "reset", false, "remove everything of earlier runs first: apps, history, keys")
	flags.BoolVarP(&opts.detach, "detach", "d", false, "return once everything is ready, and leave it running")
	flags.IntVar(&opts.reportFD, "report-fd", 0, "")
	_ = flags.MarkHidden("report-fd")

	cmd.AddCommand(statusCommand(cfg, &opts), stopCommand(cfg, &opts))
	cmd.AddCommand(hiddenCommands(cfg)...)
	return cmd
}

// forPeople returns an error if --output asks for a format for programs. The error names the command with output for
// programs, in a form that works in a shell in the current folder.
func forPeople(cmd *cobra.Command, cfg Config, o options) error {
	f := cmd.Flag("output")
	if f == nil || f.Value.String() == "table" {
		return nil
	}
	if err := o.completeDataDir(cfg); err != nil {
		return err
	}
	return fmt.Errorf("--output=%s: %s has output for people only: use `%s -o %[1]s` to read the state",
		f.Value, cmd.CommandPath(), o.dataLayout().shellCommand(programName(), "status"))
}

// completeAndCheck checks the options and fills in the values that were not given.
func (o *options) completeAndCheck(cmd *cobra.Command, cfg Config) error {
	if err := o.completeDataDir(cfg); err != nil {
		return err
	}
	if cmd.Flags().Changed("regions") && len(o.regions) == 0 {
		return errors.New("--regions is empty: name at least one, such as --regions us-east-1")
	}
	for i, r := range o.regions {
		if !ident.ValidName(r) {
			return fmt.Errorf("--regions: %q is not a name: use at most 63 lower-case letters, digits and dashes, starting with a letter", r)
		}
		if slices.Contains(o.regions[:i], r) {
			return fmt.Errorf("--regions: %s is named twice", r)
		}
	}
	if o.context == "" {
		return errors.New("--context is empty")
	}
	if o.prometheus == "" {
		o.prometheus = cfg.Getenv(envPrometheus)
	}
	// This is the CLI's flag, which all its commands have.
	if f := cmd.Flag("config"); f != nil && f.Value.String() != "" {
		var err error
		if o.config, err = filepath.Abs(f.Value.String()); err != nil {
			return fmt.Errorf("--config: %w", err)
		}
	}
	count, _, _ := strings.Cut(o.gpus, ":")
	if n, err := strconv.Atoi(count); o.gpus != "auto" && o.gpus != "none" && (err != nil || n < 0 || n > 64) {
		return fmt.Errorf("--gpus: %q is not auto, none or a number from 0 to 64", o.gpus)
	}
	return o.completeKubernetes()
}

func (o *options) dataLayout() layout { return layout{root: o.dataDir, usual: o.usualDir} }

func (o *options) completeDataDir(cfg Config) (err error) {
	usual, err := defaultDataDir(cfg.Getenv)
	if o.dataDir == "" {
		o.dataDir, o.usualDir = usual, true
		return err
	}
	if o.dataDir, err = filepath.Abs(o.dataDir); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	// A dev in the background always gets its directory as a flag.
	o.usualDir = o.dataDir == usual
	if st, err := os.Stat(o.dataDir); err == nil && !st.IsDir() {
		return fmt.Errorf("--data-dir: %s is not a folder", o.dataDir)
	}
	return nil
}

// runForeground runs until a signal. A second signal shortens the stop.
func runForeground(cmd *cobra.Command, cfg Config, opts options) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	screen := newTerminal(cmd.OutOrStdout(), cfg.Getenv)
	defer screen.close()
	report := reporter(screen.showEvent)
	if opts.reportFD != 0 {
		parent := os.NewFile(uintptr(opts.reportFD), "report")
		if parent == nil {
			return fmt.Errorf("--report-fd: %d is not open", opts.reportFD)
		}
		defer func() { _ = parent.Close() }()
		report = combineReporters(report, pipeReporter(parent))
	}

	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	// The caller's context may end at the first signal, but a stop takes longer.
	hurry, giveUp := context.WithCancel(context.WithoutCancel(cmd.Context()))
	defer giveUp()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-ended:
				return
			case s := <-signals:
				switch {
				case n == 0:
					report(event{Kind: eventNote, Text: "stopping everything; a second signal stops it without waiting"})
					stop()
				case s != syscall.SIGHUP:
					report(event{Kind: eventWarn, Text: "killing the processes that still run; the next start takes over instances that do not end in time"})
					giveUp()
				}
			}
		}
	}()

	r := &run{cfg: cfg, opts: opts, layout: opts.dataLayout(), self: self, report: report}
	if opts.reportFD == 0 {
		screen.printLine("Windlass in " + shortPath(opts.dataDir))
	}
	err = r.runUntilStopped(ctx, hurry)
	if err != nil {
		report(event{Kind: eventFailed, Text: err.Error()})
	}
	return err
}

// nextSteps returns the text that a person needs when everything runs. apps are the apps of earlier runs.
func (r *run) nextSteps(dashboard string, apps []string) string {
	name := commandName(r.self, r.cfg.Getenv)
	var b strings.Builder
	fmt.Fprintf(&b, "Windlass is ready.\n\n")
	fmt.Fprintf(&b, "  Dashboard   %s\n", dashboard)
	fmt.Fprintf(&b, "  API         %s\n", r.urlOfPort(r.ports[portAPI]))
	fmt.Fprintf(&b, "  Workflows   Restate at %s\n", restateAddress(r.urlOfPort(r.ports[portRestateAdmin])))
	for i, region := range r.regions {
		title := "Regions"
		if i > 0 {
			title = ""
		}
		fmt.Fprintf(&b, "  %-11s %s, gateway %s\n", title, region, r.urlOfPort(r.ports[portGateway(region)]))
	}
	fmt.Fprintf(&b, "  Data, logs  %s\n", shortPath(r.layout.root))
	if len(apps) > 0 {
		fmt.Fprintf(&b, "  Apps        %s, of an earlier run; after a stop, `%s` begins anew\n", appsText(apps), r.layout.shellCommand(name, "--reset"))
	}
	if r.tls {
		fmt.Fprintf(&b, "  CA          curl --cacert %s https://...\n", shellWord(r.layout.caFile()))
	}
	if hints := clusterHints(r.state.currentState().Processes); len(hints) > 0 {
		fmt.Fprintf(&b, "\nInto the clusters:\n\n  %s\n", strings.Join(hints, "\n  "))
	}
	fmt.Fprintf(&b, "\nNow, in another shell (the CLI's context %q is this Windlass):\n\n", r.opts.context)
	example := "echo.yaml"
	if r.runtime == runtimeKubernetes {
		example = "echo-kubernetes.yaml"
	}
	file := "app.yaml"
	if dir := examplesDir(r.self); dir != "" {
		file = filepath.Join(dir, example)
		if wd, err := os.Getwd(); err == nil {
			if rel, err := filepath.Rel(wd, file); err == nil && !strings.HasPrefix(rel, "..") {
				file = rel
			}
		}
	}
	cli := name
	if r.opts.config != "" {
		cli += " --config " + shellWord(r.opts.config)
	}
	fmt.Fprintf(&b, "  %s deploy -f %s\n", cli, shellWord(file))
	fmt.Fprintf(&b, "  %s list apps\n", cli)
	fmt.Fprintf(&b, "  %s route list          # hosts of apps; `status` has their URLs\n", cli)
	fmt.Fprintf(&b, "  %s dashboard           # another link that signs in\n", cli)
	fmt.Fprintf(&b, "  %s\n", r.layout.shellCommand(name, "status"))
	if r.opts.reportFD != 0 {
		fmt.Fprintf(&b, "\n`%s` stops everything; the next start brings the same apps back.", r.layout.shellCommand(name, "stop"))
	} else {
		fmt.Fprintf(&b, "\nCtrl-C stops everything; the next start brings the same apps back. `%s dev --detach` runs it in the background,\n"+
			"and `%s dev --data-dir FOLDER` runs another one, with its own data.", name, name)
	}
	return b.String()
}

// examplesDir returns the folder of the examples, or "". It searches next to the folder of this program, and
// below the current folder.
func examplesDir(self string) string {
	dirs := []string{filepath.Join(filepath.Dir(filepath.Dir(self)), "deployments", "examples")}
	if wd, err := os.Getwd(); err == nil {
		dirs = append(dirs, filepath.Join(wd, "deployments", "examples"))
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "echo.yaml")); err == nil {
			return dir
		}
	}
	return ""
}

// commandName returns how a shell in this folder calls this program: its bare name only if PATH leads to it.
func commandName(self string, getenv func(string) string) string {
	for _, dir := range filepath.SplitList(getenv("PATH")) {
		path := filepath.Join(dir, filepath.Base(self))
		if target, err := filepath.EvalSymlinks(path); err == nil && sameFile(target, self) {
			return filepath.Base(self)
		} else if err == nil {
			break // another program of this name comes first
		}
	}
	if wd, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(wd, self); err == nil && !strings.HasPrefix(rel, "..") {
			return "./" + rel
		}
	}
	return shortPath(self)
}

// programName returns the commandName of this program, or its usual name if its path is not known.
func programName() string {
	self, err := os.Executable()
	if err != nil {
		return "windlass"
	}
	return commandName(self, os.Getenv)
}

func sameFile(a, b string) bool {
	sa, errA := os.Stat(a)
	sb, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(sa, sb)
}
