package simulated

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/groups"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// workload is the instances under one key. Its methods are called with the runtime's mu held.
type workload struct {
	key string
	// names are the deployments that name it, in the order in which they were assigned.
	names []*deployment
	// instances are by group with one role, and in any order with several; a row without a serial is empty.
	instances []instance
	count     int
	stopping  int
	// told is the deployment for which Config.Ready was last called after a takeover.
	told *deployment
	// rolling is whether instances of another template wait until others are ready.
	rolling bool
	// grouped is whether it has several roles.
	grouped bool
	// view is what Observe returns of it. Nil after a change.
	view []runtime.Instance
}

// owner returns the deployment that has the workload: the wanted one that was assigned last. If none is
// wanted, it is the last of all, and its instances are ending.
func (w *workload) owner() *deployment {
	for _, d := range slices.Backward(w.names) {
		if !d.removing {
			return d
		}
	}
	return w.names[len(w.names)-1]
}

// has reports whether the workload is the deployment's.
func (d *deployment) has() bool { return d.workload.owner() == d }

// last makes d the deployment that was assigned last.
func (w *workload) last(d *deployment) {
	w.names = append(slices.DeleteFunc(w.names, func(o *deployment) bool { return o == d }), d)
}

func (r *Runtime) join(d *deployment, key string) {
	w := r.workloads[key]
	if w == nil {
		w = &workload{key: key}
		r.workloads[key] = w
	}
	w.names = append(w.names, d)
	d.workload = w
}

// leave takes the deployment off its workload.
func (r *Runtime) leave(d *deployment) {
	w := d.workload
	if w == nil {
		return
	}
	d.workload = nil
	w.names = slices.DeleteFunc(w.names, func(o *deployment) bool { return o == d })
	if len(w.names) > 0 {
		r.work(w)
		return
	}
	// Its instances that are ending are no longer reported.
	delete(r.workloads, w.key)
	w.instances = nil
}

// work brings the workload to what its owner wants, as far as possible now.
func (r *Runtime) work(w *workload) {
	d := w.owner()
	if w.grouped = w.grouped || runtime.HasRoles(d.assignment.Deployment.GetSpec()); w.grouped {
		r.workRoles(w, d)
		r.sweep(w)
		return
	}
	want := 0
	if !d.removing {
		want = int(max(d.assignment.Deployment.Replicas, 0))
	}
	for g := want; g < len(w.instances); g++ {
		if w.instances[g].serial != 0 {
			r.stop(w, g)
		}
	}
	if want < len(w.instances) {
		w.instances = slices.Clip(w.instances[:want])
	}
	w.instances = slices.Grow(w.instances, want-len(w.instances))[:want]
	r.tell(w, d)
	for g := range w.instances {
		switch i := &w.instances[g]; {
		case i.serial == 0:
			r.start(w, g)
		case i.hash != d.assignment.TemplateHash && !i.ready():
			r.replace(w, g)
		}
	}
	r.roll(w)
	r.sweep(w)
}

// tell calls Config.Ready for the ready instances that d has taken over.
func (r *Runtime) tell(w *workload, d *deployment) {
	if w.told == d || d.removing {
		return
	}
	w.told = d
	for g := range w.instances {
		if i := &w.instances[g]; r.cfg.Ready != nil && i.ready() && i.hash == d.assignment.TemplateOf(i.role()) {
			r.cfg.Ready(d.assignment.Deployment.Id, i.id)
		}
	}
}

// roll replaces ready instances of another template, with at most MaxUnavailable out of service.
func (r *Runtime) roll(w *workload) {
	w.rolling = false
	if len(w.names) == 0 {
		return // it is over
	}
	a := w.owner().assignment
	away := 0
	for g := range w.instances {
		if !w.instances[g].ready() {
			away++
		}
	}
	for g := range w.instances {
		if !w.instances[g].ready() || w.instances[g].hash == a.TemplateHash {
			continue
		}
		if away >= a.MaxUnavailable() {
			w.rolling = true
			return
		}
		r.replace(w, g)
		if !w.instances[g].ready() {
			away++
		}
	}
}

func (r *Runtime) replace(w *workload, group int) {
	r.stop(w, group)
	r.start(w, group)
}

func (r *Runtime) start(w *workload, group int) {
	r.startAs(w, group, nil)
}

// startAs starts an instance in a row. place is nil with one role.
func (r *Runtime) startAs(w *workload, row int, place *groups.ID) {
	if r.serial++; r.serial == 0 {
		r.serial = 1
	}
	a := w.owner().assignment
	failures := 0
	if r.cfg.Failures != nil {
		failures = min(r.cfg.Failures(a.Deployment), Doomed)
	}
	id, name, hash := w.instances[row].id, strconv.Itoa(row), a.TemplateHash
	if w.instances[row].status != windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING {
		id = ident.New("ins")
	}
	if place != nil {
		name, hash = fmt.Sprintf("%d-%s-%d", place.Group, place.Role, place.Slot), a.TemplateOf(place.Role)
	}
	w.instances[row] = instance{
		id: id, name: r.cfg.Region + "-" + a.Deployment.AppName + "-" + name,
		hash: hash, serial: r.serial, failures: int8(failures), place: place,
		status: windlassv1.InstanceStatus_INSTANCE_STATUS_CREATING, startedAt: time.Now().UnixMilli(),
	}
	w.count++
	w.view = nil
	r.starts++
	r.after(r.cfg.Start, event{workload: w, group: int32(row), serial: r.serial, what: started})
}

func (r *Runtime) stop(w *workload, group int) {
	w.instances[group] = instance{}
	w.count--
	w.stopping++
	w.view = nil
	r.after(r.cfg.Stop, event{workload: w, what: stopped})
}

// happen handles an event.
func (r *Runtime) happen(e event) {
	w := e.workload
	if e.what == stopped {
		w.stopping--
		r.sweep(w)
		return
	}
	if int(e.group) >= len(w.instances) || w.instances[e.group].serial != e.serial {
		return
	}
	i := &w.instances[e.group]
	w.view = nil
	if i.failures == 0 {
		i.status, i.readyAt = windlassv1.InstanceStatus_INSTANCE_STATUS_READY, time.Now().UnixMilli()
		if r.cfg.Ready != nil {
			r.cfg.Ready(w.owner().assignment.Deployment.Id, i.id)
		}
		switch {
		case !w.rolling:
		case w.grouped:
			r.work(w)
		default:
			r.roll(w)
		}
		return
	}
	i.status = windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED
	i.restarts++
	if i.failures >= Doomed {
		i.restarts = Doomed
		return
	}
	i.failures--
	r.after(r.cfg.Start, e)
}

// sweep forgets removed deployments without instances.
func (r *Runtime) sweep(w *workload) {
	if len(w.names) == 0 {
		return // it was left
	}
	ends := w.owner()
	w.names = slices.DeleteFunc(w.names, func(d *deployment) bool {
		if !d.removing || d == ends && w.stopping+w.count > 0 {
			return false
		}
		delete(r.deployments, d.assignment.Deployment.Id)
		return true
	})
	if len(w.names) == 0 {
		delete(r.workloads, w.key)
	}
}

func (w *workload) look() []runtime.Instance {
	if w.view != nil {
		return w.view
	}
	out := make([]runtime.Instance, 0, w.count)
	for g := range w.instances {
		i := &w.instances[g]
		if i.serial == 0 {
			continue
		}
		seen := runtime.Instance{
			ID: i.id, Role: runtime.DefaultRole, Group: g, TemplateHash: i.hash, Status: i.status,
			RuntimeName: i.name, Restarts: int(i.restarts), StartedAt: time.UnixMilli(i.startedAt),
		}
		if i.place != nil {
			seen.Role, seen.Group, seen.Slot = i.place.Role, i.place.Group, i.place.Slot
		}
		switch i.status {
		case windlassv1.InstanceStatus_INSTANCE_STATUS_READY:
			seen.ReadyAt, seen.Address = time.UnixMilli(i.readyAt), "127.0.0.1:1"
		case windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED:
			seen.Reason, seen.Message = runtime.ReasonExited, "exit code 1"
			if i.failures >= Doomed {
				seen.Reason, seen.Doomed = runtime.ReasonCrashLoop, true
			}
		case windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING:
			seen.StartedAt, seen.Reason, seen.Message = time.Time{}, runtime.ReasonWaitsForRole, "waits for other roles of its group"
		default:
		}
		out = append(out, seen)
	}
	w.view = out
	return out
}

func (i *instance) role() string {
	if i.place == nil {
		return runtime.DefaultRole
	}
	return i.place.Role
}

func (i *instance) ready() bool { return i.status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY }
