// Package simulated is a runtime without processes. Instances become ready after a random time, and
// may fail. It is for tests in virtual time, and for fleets that are larger than one machine could
// run. Its state outlives the agent that uses it, as processes and pods do: pass the same *Runtime
// to the next agent.
//
// An instance of several hosts is one instance here: its ranks start, fail and end as one.
//
// It supports hundreds of thousands of instances in a region. An instance is a row in its
// workload's slice, without a pointer or a timer. One timeline with one timer has the future
// events, which refer to a row by (row, serial). When a row is replaced, it gets another serial, so
// events of the previous instance have no effect. An observation shares the lists of unchanged
// deployments with the previous observation.
package simulated

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/groups"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Config configures a Runtime.
type Config struct {
	// Start and Stop return how long an instance takes to become ready and to end. Nil: no time.
	Start, Stop func() time.Duration
	// Failures returns how many starts of a new instance fail before one succeeds. Nil: none.
	// Doomed or more failures are a crash loop.
	Failures func(d *agentv1.Deployment) int
	// Room is how many instances of deployments with several roles run at a time. More of them wait. 0 means that there is
	// room for all.
	Room int
	// Region makes the names of instances unique in a fleet.
	Region string
	// Applied and Removed are called for each Apply and Remove, before it takes effect, on the
	// caller's goroutine. They may be nil.
	Applied func(deploymentID string, epoch, generation int64)
	Removed func(deploymentID string)
	// Ready is called for each instance that becomes ready. It is also called for each ready
	// instance that another deployment with the same template takes over. It is called before
	// Observe can return the instance. It must not call the runtime. It may be nil.
	Ready func(deploymentID, instanceID string)
	// CPU returns how many millicores the ready instances of a role of an app use together. The role
	// of an app without roles is "main". The ready instances in one call of Usage share it evenly. The
	// agent's call leaves out instances of deployments that are not assigned, because they get no
	// requests. ok is false if the number is not known. Nil: it is never known. CPU must not call the
	// runtime.
	CPU func(app, role string) (millicores float64, ok bool)
	// Serve starts a server for an instance that becomes ready, and returns its address (host:port). The
	// runtime calls end once: with crashed at once when the instance crashes, and otherwise when the
	// instance has ended. An instance with a server stops only once gateways have released it; see
	// runtime.Drainer. Serve and end must not call the runtime. Nil: instances have an address where
	// nothing listens, and stop at once.
	Serve func(app, instanceID string) (address string, end func(crashed bool))
}

// Doomed is the number of failures that make a crash loop, as in real runtimes.
const Doomed = runtime.LoopAfter

// Runtime is a simulated runtime. It is safe for concurrent use.
type Runtime struct {
	cfg     Config
	changes chan struct{}

	mu          sync.Mutex
	silent      bool
	deployments map[string]*deployment
	workloads   map[string]*workload
	timeline    timeline
	starts      int // number of instances ever started
	serial      uint32
	holder      *Held // nil if Take was not called
	// servers are by the serial of their instance. draining is the number of draining instances.
	servers  map[uint32]server
	draining int
	// released and patience are the arguments of the holder's Drain. Nil: it has not called Drain yet. gated is true
	// once any holder has called it.
	released func(instanceID string) bool
	patience func(instanceID string) time.Duration
	gated    bool
}

type deployment struct {
	assignment runtime.Assignment
	removing   bool
	workload   *workload
}

// hasAssignment reports whether the deployment has this assignment already.
func (d *deployment) hasAssignment(a runtime.Assignment) bool {
	return !d.removing && d.assignment.Generation == a.Generation && d.assignment.TemplateHash == a.TemplateHash &&
		maps.Equal(d.assignment.RoleTemplates, a.RoleTemplates) && d.assignment.Deployment.Replicas == a.Deployment.Replicas && d.assignment.MaxUnavailable() == a.MaxUnavailable()
}

type instance struct {
	id, name string
	hash     string // hash of its template
	// startedAt and readyAt are in Unix ms. 0: not yet.
	startedAt, readyAt int64
	serial             uint32
	restarts           int32
	// failures is how many starts will still fail.
	failures int8
	status   windlassv1.InstanceStatus
	// unfit is true while the instance waits for room.
	unfit bool
	// place is the instance's place. It is nil in a workload with one role, where the number of a
	// row is the number of its group.
	place *groups.ID
}

// New returns a runtime without deployments.
func New(cfg Config) *Runtime {
	return &Runtime{cfg: cfg, changes: make(chan struct{}, 1), deployments: map[string]*deployment{}, workloads: map[string]*workload{}, servers: map[uint32]server{}}
}

var (
	_ runtime.Runtime = (*Runtime)(nil)
	_ runtime.Meter   = (*Runtime)(nil)
)

// Starts returns how many instances were ever started.
func (r *Runtime) Starts() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.starts
}

// Silence makes Apply, Remove, Observe and Usage fail, as if there were no API server, until it is
// called with false. Instances still start and stop.
func (r *Runtime) Silence(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent = on
}

// checkReachable returns an error while the runtime is silent.
func (r *Runtime) checkReachable() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.silent {
		return &runtime.Rejection{Code: runtime.ReasonUnavailable, Message: "the runtime does not answer", Retryable: true}
	}
	return nil
}

// Apply implements runtime.Runtime. The deployment takes over the workload that the assignment
// names, with its instances. Instances of another template are replaced, MaxUnavailable at a time.
func (r *Runtime) Apply(_ context.Context, a runtime.Assignment) error {
	if err := r.checkReachable(); err != nil {
		return err
	}
	if rej := runtime.RefuseRoles(a.Deployment.GetSpec()); rej != nil {
		return rej
	}
	if r.cfg.Applied != nil {
		r.cfg.Applied(a.Deployment.Id, a.Epoch, a.Generation)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := cmp.Or(a.WorkloadKey, a.Deployment.Id)
	d := r.deployments[a.Deployment.Id]
	if d == nil {
		d = &deployment{}
		r.deployments[a.Deployment.Id] = d
	}
	if d.workload == nil || d.workload.key != key {
		r.leaveWorkload(d)
		r.joinWorkload(d, key)
	} else if !d.hasAssignment(a) {
		d.workload.moveLast(d)
	}
	d.assignment, d.removing = a, false
	r.reconcileWorkload(d.workload)
	r.signalChange()
	return nil
}

// Remove stops every instance of the deployment, unless another deployment has taken them over.
func (r *Runtime) Remove(_ context.Context, id string) error {
	if err := r.checkReachable(); err != nil {
		return err
	}
	if r.cfg.Removed != nil {
		r.cfg.Removed(id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.deployments[id]
	if d == nil {
		return nil
	}
	d.removing = true
	r.stopAllDrained(d.workload)
	r.reconcileWorkload(d.workload)
	r.signalChange()
	return nil
}

// Observe returns all deployments with their instances.
func (r *Runtime) Observe(context.Context) (runtime.Observation, error) {
	if err := r.checkReachable(); err != nil {
		return runtime.Observation{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := runtime.Observation{
		Capacity:    &agentv1.Capacity{CpuMillicores: 1 << 30, MemoryMib: 1 << 30},
		Deployments: make([]runtime.ObservedDeployment, 0, len(r.deployments)),
	}
	for id, d := range r.deployments {
		seen := runtime.ObservedDeployment{
			DeploymentID: id, Generation: d.assignment.Generation,
			TemplateHash: d.assignment.TemplateHash, Roles: d.assignment.RoleCounts(), Removing: d.removing,
		}
		if d.ownsWorkload() {
			seen.Instances = r.observationOf(d.workload)
		}
		out.Deployments = append(out.Deployments, seen)
	}
	slices.SortFunc(out.Deployments, func(a, b runtime.ObservedDeployment) int { return cmp.Compare(a.DeploymentID, b.DeploymentID) })
	return out, nil
}

// Usage implements runtime.Meter.
func (r *Runtime) Usage(_ context.Context, instanceIDs []string) (map[string]runtime.Usage, error) {
	if err := r.checkReachable(); err != nil {
		return nil, err
	}
	out := map[string]runtime.Usage{}
	if r.cfg.CPU == nil {
		return out, nil
	}
	wanted := make(map[string]bool, len(instanceIDs))
	for _, id := range instanceIDs {
		wanted[id] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	type appRole struct{ app, role string }
	ready := map[appRole][]string{}
	for _, w := range r.workloads {
		for g := range w.instances {
			if i := &w.instances[g]; i.isReady() && wanted[i.id] {
				of := appRole{w.ownerOf().assignment.Deployment.AppName, i.roleName()}
				ready[of] = append(ready[of], i.id)
			}
		}
	}
	for of, ids := range ready {
		all, ok := r.cfg.CPU(of.app, of.role)
		if !ok {
			continue
		}
		for _, id := range ids {
			out[id] = runtime.Usage{CPUMillicores: all / float64(len(ids)), HasCPU: true}
		}
	}
	return out, nil
}

// Changes returns a channel that is signalled after a change.
func (r *Runtime) Changes() <-chan struct{} { return r.changes }

// Logs returns a fixed text, because instances write no logs.
func (r *Runtime) Logs(_ context.Context, id string, _ int) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, i := r.find(id); i == nil {
		return nil, runtime.ErrUnknownInstance
	}
	return []byte("simulated instances write nothing\n"), nil
}

// ReadLog returns an empty page.
func (r *Runtime) ReadLog(_ context.Context, id string, _ runtime.LogQuery) (runtime.LogPage, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, i := r.find(id); i == nil {
		return runtime.LogPage{}, runtime.ErrUnknownInstance
	}
	return runtime.LogPage{}, nil
}

// Restart counts a restart of the instance.
func (r *Runtime) Restart(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, i := r.find(id)
	if i == nil {
		return runtime.ErrUnknownInstance
	}
	i.restarts++
	w.view = nil
	r.signalChange()
	return nil
}

// Churn counts a restart of every ready instance. It returns the number of these instances, which
// is the number of states that the agent must report.
func (r *Runtime) Churn() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, w := range r.workloads {
		for g := range w.instances {
			if w.instances[g].isReady() {
				w.instances[g].restarts++
				n++
			}
		}
		w.view = nil
	}
	r.signalChange()
	return n
}

// Crash removes one started instance of the deployment, and starts a new instance in its row.
func (r *Runtime) Crash(deploymentID string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.deployments[deploymentID]
	if d == nil || !d.ownsWorkload() || d.workload.count == 0 {
		return errors.New("the deployment has no instance to crash")
	}
	w := d.workload
	g := slices.IndexFunc(w.instances, func(i instance) bool {
		return i.serial != 0 && i.status != windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING
	})
	if g < 0 {
		return errors.New("the deployment has no started instance to crash")
	}
	w.count--
	r.endServer(w.instances[g].serial, true)
	r.startInRow(w, g, w.instances[g].place)
	r.signalChange()
	return nil
}

// find searches all workloads. That is slow in a large region, but callers there do not look up
// single instances.
func (r *Runtime) find(id string) (*workload, *instance) {
	for _, w := range r.workloads {
		for g := range w.instances {
			if i := &w.instances[g]; i.serial != 0 && i.id == id {
				return w, i
			}
		}
	}
	return nil, nil
}

// Run does nothing until ctx ends.
func (r *Runtime) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// signalChange signals Changes of the present holder. The caller holds mu.
func (r *Runtime) signalChange() {
	changes := r.changes
	if r.holder != nil {
		changes = r.holder.changes
	}
	select {
	case changes <- struct{}{}:
	default:
	}
}

// Running returns the number of instances by deployment id. A known deployment without instances is listed
// with 0.
func (r *Runtime) Running() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]int, len(r.deployments))
	for id, d := range r.deployments {
		out[id] = 0
		if d.ownsWorkload() {
			out[id] = d.workload.count + d.workload.stopping
		}
	}
	return out
}

// Ready returns the ids of ready instances, by deployment id.
func (r *Runtime) Ready() map[string][]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string][]string, len(r.deployments))
	for id, d := range r.deployments {
		if !d.ownsWorkload() {
			continue
		}
		for g := range d.workload.instances {
			if i := &d.workload.instances[g]; i.isReady() {
				out[id] = append(out[id], i.id)
			}
		}
	}
	return out
}
