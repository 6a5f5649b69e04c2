// Command modelserver serves an OpenAI-compatible echo model with fault injection.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/windlass-run/windlass/apps/modelserver"
)

func main() {
	var cfg modelserver.Config
	cli := kong.Parse(&cfg, kong.Name("modelserver"), kong.DefaultEnvars("MODELSERVER"),
		kong.Description("OpenAI-compatible model server for demos and tests: it repeats the prompt's words, and fails on demand."))
	cfg.Logger = cfg.NewLogger(os.Stderr)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	server, err := modelserver.New(cfg)
	cli.FatalIfErrorf(err)
	cli.FatalIfErrorf(server.Run(ctx))
}
