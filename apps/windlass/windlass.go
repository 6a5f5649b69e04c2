// Package windlass is the command line program. Besides the commands that call a control plane it contains
// the control plane, the agent and the gateway. So `windlass dev` needs no other file to run the whole system
// on one machine.
package windlass

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/controlplane"
	"github.com/windlass-run/windlass/apps/gateway"
	"github.com/windlass-run/windlass/apps/windlass/internal/cli"
	"github.com/windlass-run/windlass/apps/windlass/internal/dev"
)

// Version is the version of the build. The linker sets it.
var Version = "dev"

// Main runs the program and returns its exit code.
func Main(ctx context.Context, args []string) int {
	if agent.IsShim(args) {
		return agent.ShimMain(args)
	}
	if agent.IsHealthCheck(args) {
		if err := agent.Main(ctx, args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "agent:", err)
			return 1
		}
		return 0
	}
	root := commands() //nolint:contextcheck // ExecuteContext hands it to each of them
	root.SetArgs(args[1:])
	err := root.ExecuteContext(ctx)
	var said dev.ExitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &said):
		return int(said)
	}
	return cli.Report(os.Stderr, err)
}

func commands() *cobra.Command {
	return cli.New(cli.Config{
		Version: Version,
		Stdin:   os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Getenv: os.Getenv,
		Extra:  []*cobra.Command{dev.Command(dev.Config{Programs: programs(), Getenv: os.Getenv})},
	})
}

// programs returns the programs that `windlass dev` runs.
func programs() dev.Programs {
	return dev.Programs{
		ControlPlane: controlplane.Main,
		Agent:        agent.Main,
		Gateway:      gateway.Main,
		Bootstrap: func(ctx context.Context, cfg dev.Bootstrap) (dev.Bootstrapped, error) {
			made, err := controlplane.Bootstrap(ctx, controlplane.BootstrapConfig{
				MySQLDSN: cfg.MySQLDSN, MySQLCA: cfg.MySQLCA, Workspace: cfg.Workspace, Regions: cfg.Regions,
				APIKey: cfg.APIKey, OperatorKey: cfg.OperatorKey,
			})
			return dev.Bootstrapped{APIKey: made.APIKey, OperatorKey: made.OperatorKey, JoinTokens: made.JoinTokens}, err
		},
		StopInstances: agent.StopInstances,
	}
}
