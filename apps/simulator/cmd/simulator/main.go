// Command simulator measures Windlass with a simulated fleet on this machine.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/simulator"
	"github.com/windlass-run/windlass/pkg/service"
)

func main() {
	if agent.IsShim(os.Args) {
		os.Exit(agent.ShimMain(os.Args))
	}
	ctx, stop := service.SignalContext(context.Background())
	err := simulator.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "simulator:", err)
		os.Exit(1)
	}
}
