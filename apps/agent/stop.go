package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/process"
	"github.com/windlass-run/windlass/pkg/plural"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// StopInstances stops the instances of a data directory whose agent has ended, each within its
// grace period. The desired state stays, so the next agent on the directory starts them again. The
// error says how many instances still run. If ctx ends first, the instances still stop, because
// their shims have the order already.
func StopInstances(ctx context.Context, dataDir string, log *slog.Logger) error {
	dir := filepath.Join(dataDir, "process")
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		// The data directory belongs to another runtime, whose instances are not processes of this
		// host.
		return nil
	}
	r, err := process.New(ctx, process.Config{
		DataDir: dir, StopInstancesOnExit: true, Log: log, Random: rand.Float64,
	})
	if err != nil {
		return err
	}
	told, tell := context.WithCancel(ctx)
	tell()
	// Run waits for the longest grace period, even if ctx ends.
	stopped := make(chan error, 1)
	go func() { stopped <- r.Run(told) }()
	select {
	case err := <-stopped:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	seen, seeErr := r.Observe(context.WithoutCancel(ctx))
	if seeErr != nil {
		return seeErr
	}
	live := 0
	for _, d := range seen.Deployments {
		for _, i := range d.Instances {
			switch i.Status { //nolint:exhaustive // instances with another status have no process
			case windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING, windlassv1.InstanceStatus_INSTANCE_STATUS_READY,
				windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING:
				live++
			}
		}
	}
	if live > 0 {
		return fmt.Errorf("not stopped yet: %s", plural.Count(live, "instance"))
	}
	return err
}
