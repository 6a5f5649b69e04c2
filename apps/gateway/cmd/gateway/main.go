// Command gateway runs the Windlass gateway of a region.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/windlass-run/windlass/apps/gateway"
	"github.com/windlass-run/windlass/pkg/service"
)

func main() {
	ctx, stop := service.SignalContext(context.Background())
	err := gateway.Main(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}
