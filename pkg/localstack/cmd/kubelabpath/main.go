// Command kubelabpath prints the path of kubelab's program. If this machine has no program built from this checkout's
// sources, it first builds it, which takes minutes.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/windlass-run/windlass/pkg/localstack/kubelab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	path, err := kubelab.Ensure(ctx, func(line string) { fmt.Fprintln(os.Stderr, line) })
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubelabpath:", err)
		os.Exit(1)
	}
	fmt.Println(path)
}
