// Command controlplane runs the Windlass control plane.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/windlass-run/windlass/apps/controlplane"
	"github.com/windlass-run/windlass/pkg/service"
)

func main() {
	ctx, stop := service.SignalContext(context.Background())
	err := controlplane.Main(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		os.Exit(1)
	}
}
