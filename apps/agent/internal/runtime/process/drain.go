package process

import (
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

var _ runtime.Drainer = (*Runtime)(nil)

// Drain implements runtime.Drainer.
func (r *Runtime) Drain(released func(instanceID string) bool, patience func(instanceID string) time.Duration) (again func()) {
	r.released, r.patience = released, patience
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, w := range r.workloads {
			if w.awaits.Load() {
				w.wakeUp()
			}
		}
	}
}
