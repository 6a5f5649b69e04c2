// Command modelserver serves an OpenAI-compatible echo model with fault injection.
//
// With the command line "modelserver vllm serve MODEL", or under the name of an engine, it takes the engine's flags and
// has the engine's endpoints and metrics.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/windlass-run/windlass/apps/modelserver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	for _, words := range [][]string{os.Args, os.Args[1:]} {
		if modelserver.IsEngineCommand(words) {
			os.Exit(serveEngine(ctx, words))
		}
	}
	var cfg modelserver.Config
	cli := kong.Parse(&cfg, kong.Name("modelserver"), kong.DefaultEnvars("MODELSERVER"),
		kong.Description("OpenAI-compatible model server for demos and tests: it repeats the prompt's words, and fails on demand. "+
			"`modelserver vllm serve MODEL` and `modelserver sglang serve --model-path MODEL` take the flags of vLLM and SGLang instead."))
	cfg.Logger = cfg.NewLogger(os.Stderr)
	server, err := modelserver.New(cfg)
	cli.FatalIfErrorf(err)
	cli.FatalIfErrorf(server.Run(ctx))
}

// serveEngine serves as an engine, and returns the exit code.
func serveEngine(ctx context.Context, words []string) int {
	cfg, _, err := modelserver.ParseArgs(words, os.LookupEnv)
	if err == nil {
		cfg.Logger = cfg.NewLogger(os.Stderr)
		var server *modelserver.Server
		if server, err = modelserver.New(cfg); err == nil {
			err = server.Run(ctx)
		}
	}
	if err == nil {
		return 0
	}
	code := 1
	if ended, ok := errors.AsType[interface {
		error
		ExitCode() int
	}](err); ok {
		code = ended.ExitCode()
	}
	out := os.Stderr
	if code == 0 {
		out = os.Stdout
	}
	_, _ = fmt.Fprintln(out, err)
	return code
}
