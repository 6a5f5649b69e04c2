package rollout

import (
	"context"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
)

// Measurer takes measurements, all that are due in one call. What it cannot measure it
// returns with a problem; it ends with ctx, or before.
type Measurer interface {
	Measure(ctx context.Context, due []plan.Measure) []plan.Measurement
}

// Unmeasured is the Measurer of a control plane that reads no metrics. A rollout whose
// policy asks for some is held, and says so.
type Unmeasured struct{}

// Measure implements Measurer.
func (Unmeasured) Measure(_ context.Context, due []plan.Measure) []plan.Measurement {
	var out []plan.Measurement
	for _, m := range due {
		out = append(out, plan.Measurement{
			RegionID: m.RegionID, Check: m.Check, Since: m.Since, At: nowMillis(),
			Figures: analysis.Figures{Problem: "this control plane reads no metrics: its operator has to start it with --prometheus-url"},
		})
	}
	return out
}

// measure has what is due measured. No row is locked meanwhile; what came of it counts
// only if it is still asked for when it is written.
func (s *Stepper) measure(ctx context.Context, d decision) []plan.Measurement {
	ctx, span := s.cfg.Tracer.Start(underRollout(ctx, d.in.Rollout), "rollout.measure")
	defer span.End()
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	return s.cfg.Metrics.Measure(ctx, d.out.Measure)
}

// measureTimeout bounds a Measurer that has no bound of its own.
const measureTimeout = 30 * time.Second
