// Command fetchstack installs MariaDB and Restate for this user in parallel, if they are missing, and starts
// neither. It has few packages, so that it runs while the programs of Windlass are still built.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/windlass-run/windlass/pkg/localstack/mariadb"
	"github.com/windlass-run/windlass/pkg/localstack/restate"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := fetchServers(ctx, func(line string) { fmt.Fprintln(os.Stderr, line) })
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fetchstack:", err)
		os.Exit(1)
	}
}

// fetchServers installs MariaDB and Restate. If one fails, the other is still installed.
func fetchServers(ctx context.Context, progress func(string)) error {
	var database, workflows error
	var both sync.WaitGroup
	both.Go(func() { _, database = mariadb.Ensure(ctx, progress) })
	both.Go(func() { _, workflows = restate.Ensure(ctx, progress) })
	both.Wait()
	return errors.Join(database, workflows)
}
