package rollout

import (
	"context"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
)

// Measurer takes an app's due measurements in one call. A failed measurement is returned with a problem. A measurement
// for which no time was left is not returned, and stays due. Measure returns when ctx ends, or earlier.
type Measurer interface {
	Measure(ctx context.Context, due []plan.Measure) []plan.Measurement
}

// Unmeasured is the Measurer of a control plane without a source of measurements. A rollout whose policy has
// checks is held, and reports the problem.
type Unmeasured struct{}

// Measure implements Measurer.
func (Unmeasured) Measure(_ context.Context, due []plan.Measure) []plan.Measurement {
	var out []plan.Measurement
	for _, m := range due {
		problem := "this control plane reads no metrics: its operator has to start it with --prometheus-url"
		if m.Hook != nil {
			problem = "this control plane calls no webhooks"
		}
		out = append(out, plan.Measurement{
			RegionID: m.RegionID, Check: m.Check, Since: m.Since, At: nowMillis(), Figures: analysis.Figures{Problem: problem},
		})
	}
	return out
}

// takeMeasurements takes the due measurements, figures and webhooks concurrently. No row is locked meanwhile. A
// result counts only if it is still requested when it is written.
func (s *Stepper) takeMeasurements(ctx context.Context, d decision) []plan.Measurement {
	ctx, span := s.cfg.Tracer.Start(underRollout(ctx, d.in.Rollout), "rollout.measure")
	defer span.End()
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	var figures, hooks []plan.Measure
	for _, m := range d.out.Measure {
		if m.Hook != nil {
			hooks = append(hooks, m)
		} else {
			figures = append(figures, m)
		}
	}
	switch {
	case len(hooks) == 0:
		return s.cfg.Metrics.Measure(ctx, figures)
	case len(figures) == 0:
		return s.cfg.Hooks.Measure(ctx, hooks)
	}
	var said []plan.Measurement
	var calling sync.WaitGroup
	calling.Go(func() { said = s.cfg.Hooks.Measure(ctx, hooks) })
	out := s.cfg.Metrics.Measure(ctx, figures)
	calling.Wait()
	return append(out, said...)
}

// measureTimeout bounds a Measurer that has no limit of its own.
const measureTimeout = 30 * time.Second
