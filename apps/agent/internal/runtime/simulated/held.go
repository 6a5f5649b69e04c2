package simulated

import (
	"context"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

// Held is the runtime for one agent. A region may have two agents for a while. Only the agent that
// holds the region's Lease can use the runtime. Calls of the other agent fail.
type Held struct {
	*Runtime
	changes chan struct{}
}

// Take gives the runtime to the caller, and takes it from the previous holder.
func (r *Runtime) Take() *Held {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holder = &Held{Runtime: r, changes: make(chan struct{}, 1)}
	r.released, r.patience = nil, nil
	return r.holder
}

// checkHolder returns an error if another agent has taken the runtime.
func (h *Held) checkHolder() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.holder != h {
		return &runtime.Rejection{Code: runtime.ReasonUnavailable, Message: "another agent holds the region's lease", Retryable: true}
	}
	return nil
}

// Apply implements runtime.Runtime.
func (h *Held) Apply(ctx context.Context, a runtime.Assignment) error {
	if err := h.checkHolder(); err != nil {
		return err
	}
	return h.Runtime.Apply(ctx, a)
}

// Remove implements runtime.Runtime.
func (h *Held) Remove(ctx context.Context, id string) error {
	if err := h.checkHolder(); err != nil {
		return err
	}
	return h.Runtime.Remove(ctx, id)
}

// Observe implements runtime.Runtime.
func (h *Held) Observe(ctx context.Context) (runtime.Observation, error) {
	if err := h.checkHolder(); err != nil {
		return runtime.Observation{}, err
	}
	return h.Runtime.Observe(ctx)
}

// Changes implements runtime.Runtime.
func (h *Held) Changes() <-chan struct{} { return h.changes }
