// Package scenario has the measurements. Each has a name, and its sizes are flags. A scenario starts a testbed
// of its own, prepares it, measures one thing, and checks that the measured changes happened: the figures of a
// run that lost a change do not count.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/result"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
)

// Env is the environment of a scenario.
type Env struct {
	testbed.Options
	Result *result.Result
}

// Scenario measures one thing and puts it into the Env's result.
type Scenario interface {
	Run(ctx context.Context, env Env) error
	// Deadline returns the deadline of the whole run on a machine without other work.
	Deadline() time.Duration
}

// startTestbed starts a testbed for a scenario. cfg has the settings that differ between scenarios.
func (e Env) startTestbed(ctx context.Context, cfg testbed.Config) (context.Context, *testbed.Testbed, error) {
	cfg.Options, cfg.Name = e.Options, e.Result.Scenario
	e.Result.Sizes["control_planes"] = max(e.ControlPlanes, 1)
	e.Result.Sizes["relaxed"] = e.Relaxed
	return testbed.Start(ctx, cfg)
}

// recordSizes records the requested sizes: names and values in turn.
func (e Env) recordSizes(pairs ...any) {
	for i := 0; i+1 < len(pairs); i += 2 {
		e.Result.Sizes[pairs[i].(string)] = pairs[i+1]
	}
}

// measureWindow runs fn in a window, and returns how long that took and what it cost.
func measureWindow(ctx context.Context, w *testbed.Testbed, fn func() error) (time.Duration, map[string]measure.Part, error) {
	end, err := w.Measure(ctx)
	if err != nil {
		return 0, nil, err
	}
	begin := time.Now()
	err = fn()
	took := time.Since(begin)
	parts, profiled := end()
	return took, parts, errors.Join(err, profiled)
}

// cpuSeconds returns the processor time of the named parts, or of all parts if no names are given.
func cpuSeconds(parts map[string]measure.Part, names ...string) float64 {
	sum := 0.0
	for name, p := range parts {
		for _, n := range names {
			if n == name {
				sum += p.CPUSeconds
			}
		}
		if len(names) == 0 {
			sum += p.CPUSeconds
		}
	}
	return sum
}

// requirePositive returns an error about a size that is not above 0. pairs are names and values in turn.
func requirePositive(pairs ...any) error {
	for i := 0; i+1 < len(pairs); i += 2 {
		if v, ok := pairs[i+1].(int); ok && v < 1 {
			return fmt.Errorf("%s=%d: has to be above 0", pairs[i], v)
		}
		if v, ok := pairs[i+1].(float64); ok && v <= 0 {
			return fmt.Errorf("%s=%v: has to be above 0", pairs[i], v)
		}
		if v, ok := pairs[i+1].(time.Duration); ok && v <= 0 {
			return fmt.Errorf("%s=%v: has to be above 0", pairs[i], v)
		}
	}
	return nil
}

// waitFor waits for a duration, or until ctx ends.
func waitFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
