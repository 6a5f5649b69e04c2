package simulated

import (
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// noAddress is the address of ready instances if Config.Serve is nil. Nothing listens there.
const noAddress = "127.0.0.1:1"

// lonePatience is how long an instance drains if it began to drain while no agent had the runtime.
const lonePatience = 30 * time.Second

// server is the server of an instance.
type server struct {
	address string
	end     func(crashed bool)
}

var _ runtime.Drainer = (*Held)(nil)

// Drain implements runtime.Drainer. Only instances with a server wait for gateways.
func (h *Held) Drain(released func(instanceID string) bool, patience func(instanceID string) time.Duration) (again func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.holder == h {
		h.released, h.patience, h.gated = released, patience, true
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.holder == h && h.draining > 0 {
			h.stopReleased()
		}
	}
}

// serve starts the server of an instance that becomes ready.
func (r *Runtime) serve(w *workload, i *instance) {
	if r.cfg.Serve == nil {
		return
	}
	address, end := r.cfg.Serve(w.ownerOf().assignment.Deployment.AppName, i.id)
	r.servers[i.serial] = server{address, end}
}

// endServer ends the server of an instance, if it has one.
func (r *Runtime) endServer(serial uint32, crashed bool) {
	if s, ok := r.servers[serial]; ok {
		delete(r.servers, serial)
		s.end(crashed)
	}
}

// addressOf returns the address of a ready instance.
func (r *Runtime) addressOf(i *instance) string {
	if s, ok := r.servers[i.serial]; ok {
		return s.address
	}
	return noAddress
}

// mustDrain reports whether an instance that should stop has to wait, because gateways may send requests to it.
func (r *Runtime) mustDrain(w *workload, i *instance) bool {
	if _, ok := r.servers[i.serial]; !ok || !r.gated || !i.isReady() || len(w.members) == 0 || w.ownerOf().removing {
		return false
	}
	if r.released != nil && r.released(i.id) {
		return false
	}
	roles := w.ownerOf().assignment.RoleCounts()
	return len(roles) == 0 || slices.ContainsFunc(roles, func(of runtime.RoleCount) bool { return of.Entry && of.Name == i.roleName() })
}

// drain keeps the instance until gateways have released it, or until its patience is over.
func (r *Runtime) drain(w *workload, i instance) {
	i.status = windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
	w.leaving = append(w.leaving, i)
	r.draining++
	patience := lonePatience
	if r.patience != nil {
		patience = r.patience(i.id)
	}
	r.scheduleEvent(func() time.Duration { return patience }, event{workload: w, serial: i.serial, kind: drainEnded})
}

// stopReleased stops the draining instances that gateways have released.
func (r *Runtime) stopReleased() {
	for _, w := range r.workloads {
		for _, i := range slices.Clone(w.leaving) {
			if r.released(i.id) {
				r.stopDrained(w, i.serial)
			}
		}
	}
	r.signalChange()
}

// stopAllDrained stops the draining instances of a workload that is being removed, as the agent waits for gateways
// before it removes a deployment.
func (r *Runtime) stopAllDrained(w *workload) {
	if !w.ownerOf().removing {
		return
	}
	for _, i := range slices.Clone(w.leaving) {
		r.stopDrained(w, i.serial)
	}
}

// stopDrained stops a draining instance. It does nothing if the instance has stopped already.
func (r *Runtime) stopDrained(w *workload, serial uint32) {
	at := slices.IndexFunc(w.leaving, func(i instance) bool { return i.serial == serial })
	if at < 0 {
		return
	}
	w.leaving = slices.Delete(w.leaving, at, at+1)
	w.view = nil
	r.draining--
	r.scheduleEvent(r.cfg.Stop, event{workload: w, serial: serial, kind: stopEnded})
}
