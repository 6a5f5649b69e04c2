// Command onnxserver serves many models, which it loads and unloads while it runs, with ONNX Runtime.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/windlass-run/windlass/apps/onnxserver"
	"github.com/windlass-run/windlass/apps/onnxserver/internal/ort"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var cfg onnxserver.Config
	cli := kong.Parse(&cfg, kong.Name("onnxserver"), kong.DefaultEnvars("ONNXSERVER"), kong.Description(onnxserver.About))
	cfg.Logger = cfg.NewLogger(os.Stderr)
	if cfg.Library == "" {
		program, err := os.Executable()
		cli.FatalIfErrorf(err)
		cfg.Library = ort.DefaultLibrary(program)
	}
	engine, err := ort.Open(cfg.Library)
	cli.FatalIfErrorf(err)
	cfg.Engine = engine
	server, err := onnxserver.New(cfg)
	cli.FatalIfErrorf(err)
	cli.FatalIfErrorf(server.Run(ctx))
}
