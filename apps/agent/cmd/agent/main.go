// Command agent runs the Windlass agent of a region.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/pkg/service"
)

func main() {
	if agent.IsShim(os.Args) {
		os.Exit(agent.ShimMain(os.Args))
	}
	ctx, stop := service.SignalContext(context.Background())
	err := agent.Main(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}
