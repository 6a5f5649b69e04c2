package kubelab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/alecthomas/kong"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/windlass-run/windlass/apps/kubelab/internal/component"
	"github.com/windlass-run/windlass/apps/kubelab/internal/nodes"
	"github.com/windlass-run/windlass/pkg/service"
)

// Main runs the program with args like os.Args, and returns its exit code.
func Main(args []string) int {
	if code, ok := component.Run(args); ok {
		return code
	}
	ctx, stop := service.SignalContext(context.Background())
	defer stop()
	if err := run(ctx, args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "kubelab:", err)
		return 1
	}
	return 0
}

type commands struct {
	Up         upCommand         `cmd:"" help:"Run a cluster in the foreground, until SIGINT or SIGTERM."`
	Kubeconfig kubeconfigCommand `cmd:"" help:"Print the administrator's kubeconfig of a running cluster."`
	Node       struct {
		List    nodeListCommand `cmd:"" help:"List the nodes and whether they are ready."`
		Lose    loseCommand     `cmd:"" help:"Lose nodes, as if their power had failed: no heartbeats, pods that do not answer and cannot be ended."`
		Restore restoreCommand  `cmd:"" help:"Bring lost nodes back."`
	} `cmd:"" help:"List nodes, lose them, and bring them back."`
}

// streams are the outputs of commands.
type streams struct{ out, err io.Writer }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var cmd commands
	parser, err := kong.New(&cmd, kong.Name("kubelab"), kong.UsageOnError(), kong.Writers(stdout, stderr),
		kong.Description("A real Kubernetes control plane with simulated nodes. Its pods answer requests."),
		kong.BindTo(ctx, (*context.Context)(nil)), kong.Bind(streams{out: stdout, err: stderr}))
	if err != nil {
		return err
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return err
	}
	return parsed.Run()
}

// where is the location of a running cluster.
type where struct {
	DataDir    string `type:"path" default:".windlass/kubelab" env:"KUBELAB_DATA_DIR" help:"Data directory of the cluster."`
	Kubeconfig string `type:"path" help:"Kubeconfig of the cluster; by default the one in the data directory."`
}

func (w where) file() string {
	if w.Kubeconfig != "" {
		return w.Kubeconfig
	}
	return filepath.Join(w.DataDir, kubeconfigName)
}

func (w where) client() (kubernetes.Interface, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", w.file())
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w; start a cluster with kubelab up, or say where it is with --data-dir", err)
	}
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(cfg)
}

type kubeconfigCommand struct {
	where `embed:""`
}

// Run the command.
func (c *kubeconfigCommand) Run(s streams) error {
	content, err := os.ReadFile(c.file())
	if err != nil {
		return fmt.Errorf("%w; start a cluster with kubelab up, or say where it is with --data-dir", err)
	}
	_, err = s.out.Write(content)
	return err
}

type loseCommand struct {
	where `embed:""`
	Names []string `arg:"" name:"name" help:"Names of nodes."`
}

// Run the command.
func (c *loseCommand) Run(ctx context.Context) error { return setLost(ctx, c.where, c.Names, true) }

type restoreCommand struct {
	where `embed:""`
	Names []string `arg:"" name:"name" help:"Names of nodes."`
}

// Run the command.
func (c *restoreCommand) Run(ctx context.Context) error { return setLost(ctx, c.where, c.Names, false) }

func setLost(ctx context.Context, w where, names []string, lost bool) error {
	client, err := w.client()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := nodes.SetLost(ctx, client, name, lost); err != nil {
			return err
		}
	}
	return nil
}

// newLogger returns the logger of `up`, with text for people or JSON for collectors.
func newLogger(w io.Writer, format string, verbose bool) *slog.Logger {
	options := &slog.HandlerOptions{}
	if verbose {
		options.Level = slog.LevelDebug
	}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
