// Command windlass is the command line of Windlass.
package main

import (
	"context"
	"os"

	"github.com/windlass-run/windlass/apps/windlass"
	"github.com/windlass-run/windlass/pkg/service"
)

func main() {
	ctx, stop := service.SignalContext(context.Background())
	code := windlass.Main(ctx, os.Args)
	stop()
	os.Exit(code)
}
