package dev

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/pkg/service"
)

// These commands run this binary as one of the programs that dev starts.
const (
	commandControlPlane = "__controlplane"
	commandAgent        = "__agent"
	commandGateway      = "__gateway"
	commandFront        = "__restate-tls"
)

func hiddenCommands(cfg Config) []*cobra.Command {
	command := func(use string, main func(context.Context, []string) error) *cobra.Command {
		var file string
		cmd := &cobra.Command{
			Use: use, Hidden: true, Args: cobra.NoArgs, SilenceUsage: true,
			RunE: func(cmd *cobra.Command, _ []string) error {
				b, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				var args []string
				if err := json.Unmarshal(b, &args); err != nil {
					return fmt.Errorf("read %s: %w", file, err)
				}
				ctx, stop := service.SignalContext(cmd.Context())
				defer stop()
				return main(ctx, args)
			},
		}
		cmd.Flags().StringVar(&file, "args-file", "", "JSON list of arguments")
		return cmd
	}
	return []*cobra.Command{
		command(commandControlPlane, cfg.Programs.ControlPlane),
		command(commandAgent, cfg.Programs.Agent),
		command(commandGateway, cfg.Programs.Gateway),
		command(commandFront, restateFront),
	}
}
