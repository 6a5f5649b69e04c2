// Command kubelabpath prints the path of kubelab's program. It first builds the program, which takes minutes, if this
// machine has no build from this checkout's sources.
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
