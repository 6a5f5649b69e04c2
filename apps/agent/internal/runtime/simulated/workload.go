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

// workload has the instances with one key. The caller of a method holds the runtime's mu.
type workload struct {
	key string
	// members has the deployments whose assignment names the workload, in the order of their last
	// assignments.
	members []*deployment
	// instances has the rows. With one role, they are ordered by group. A row without a serial is
	// empty.
	instances []instance
	count     int // number of rows that are not empty
	stopping  int // number of instances without a row that have not ended yet
	// leaving are the stopping instances that drain.
	leaving []instance
	// reportedTo is the deployment for which reportTakenOver last called Config.Ready.
	reportedTo *deployment
	// rolling is true while instances of another template wait until other instances are ready.
	rolling bool
	// deciding is true while reconcileRoles runs.
	deciding bool
	// grouped is true if the workload has, or had, several roles or stable slots.
	grouped bool
	// view is the list that Observe last returned. It is nil after a change.
	view []runtime.Instance
}

// ownerOf returns the deployment that has the instances: the last assigned deployment that is not
// being removed. If all are being removed, it is the last assigned deployment.
func (w *workload) ownerOf() *deployment {
	for _, d := range slices.Backward(w.members) {
		if !d.removing {
			return d
		}
	}
	return w.members[len(w.members)-1]
}

// ownsWorkload reports whether the workload's instances belong to the deployment.
func (d *deployment) ownsWorkload() bool { return d.workload.ownerOf() == d }

// moveLast makes d the last assigned deployment.
func (w *workload) moveLast(d *deployment) {
	w.members = append(slices.DeleteFunc(w.members, func(o *deployment) bool { return o == d }), d)
}

// joinWorkload adds the deployment to the workload with this key. It makes the workload if it does
// not exist.
func (r *Runtime) joinWorkload(d *deployment, key string) {
	w := r.workloads[key]
	if w == nil {
		w = &workload{key: key}
		r.workloads[key] = w
	}
	w.members = append(w.members, d)
	d.workload = w
}

// leaveWorkload removes the deployment from its workload.
func (r *Runtime) leaveWorkload(d *deployment) {
	w := d.workload
	if w == nil {
		return
	}
	d.workload = nil
	w.members = slices.DeleteFunc(w.members, func(o *deployment) bool { return o == d })
	if len(w.members) > 0 {
		r.reconcileWorkload(w)
		return
	}
	// Instances of the workload that are ending are no longer reported.
	delete(r.workloads, w.key)
	for _, i := range slices.Concat(w.instances, w.leaving) {
		r.endServer(i.serial, false)
	}
	r.draining -= len(w.leaving)
	w.instances, w.leaving = nil, nil
}

// reconcileWorkload starts, stops and replaces instances until the workload is as its owner wants it, as
// far as that is possible now.
func (r *Runtime) reconcileWorkload(w *workload) {
	d := w.ownerOf()
	if w.grouped = w.grouped || runtime.HasRoles(d.assignment.Deployment.GetSpec()) || runtime.HasStableSlots(d.assignment.Deployment.GetSpec()); w.grouped {
		r.reconcileRoles(w, d)
		r.forgetRemoved(w)
		return
	}
	want := 0
	if !d.removing {
		want = int(max(d.assignment.Deployment.Replicas, 0))
	}
	for g := want; g < len(w.instances); g++ {
		if w.instances[g].serial != 0 {
			r.stopStarted(w, g)
		}
	}
	if want < len(w.instances) {
		w.instances = slices.Clip(w.instances[:want])
	}
	w.instances = slices.Grow(w.instances, want-len(w.instances))[:want]
	r.reportTakenOver(w, d)
	for g := range w.instances {
		switch i := &w.instances[g]; {
		case i.serial == 0:
			r.startRow(w, g)
		case i.hash != d.assignment.TemplateHash && !i.isReady():
			r.replaceRow(w, g)
		}
	}
	r.replaceOld(w)
	r.forgetRemoved(w)
}

// reportTakenOver calls Config.Ready for the ready instances that d has taken over, once.
func (r *Runtime) reportTakenOver(w *workload, d *deployment) {
	if w.reportedTo == d || d.removing {
		return
	}
	w.reportedTo = d
	for g := range w.instances {
		if i := &w.instances[g]; r.cfg.Ready != nil && i.isReady() && i.hash == d.assignment.TemplateOf(i.roleName()) {
			r.cfg.Ready(d.assignment.Deployment.Id, i.id)
		}
	}
}

// replaceOld replaces ready instances of another template as long as fewer than MaxUnavailable
// instances are out of service.
func (r *Runtime) replaceOld(w *workload) {
	w.rolling = false
	if len(w.members) == 0 {
		return // all deployments of the workload were removed
	}
	a := w.ownerOf().assignment
	away := 0
	for g := range w.instances {
		if !w.instances[g].isReady() {
			away++
		}
	}
	for g := range w.instances {
		if !w.instances[g].isReady() || w.instances[g].hash == a.TemplateHash {
			continue
		}
		if away >= a.MaxUnavailable() {
			w.rolling = true
			return
		}
		r.replaceRow(w, g)
		if !w.instances[g].isReady() {
			away++
		}
	}
}

func (r *Runtime) replaceRow(w *workload, row int) {
	r.stopStarted(w, row)
	r.startRow(w, row)
}

func (r *Runtime) startRow(w *workload, row int) {
	r.startInRow(w, row, nil)
}

// startInRow starts an instance in a row. place is nil in a workload with one role.
func (r *Runtime) startInRow(w *workload, row int, place *groups.ID) {
	if r.serial++; r.serial == 0 {
		r.serial = 1
	}
	a := w.ownerOf().assignment
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
	r.scheduleEvent(r.cfg.Start, event{workload: w, row: int32(row), serial: r.serial, kind: startEnded})
}

// stopStarted empties the row of a started instance. The instance counts as stopping until it has
// ended.
func (r *Runtime) stopStarted(w *workload, row int) {
	i := w.instances[row]
	w.instances[row] = instance{}
	w.count--
	w.stopping++
	w.view = nil
	if r.mustDrain(w, &i) {
		r.drain(w, i)
		return
	}
	r.scheduleEvent(r.cfg.Stop, event{workload: w, serial: i.serial, kind: stopEnded})
}

// handle handles an event.
func (r *Runtime) handle(e event) {
	w := e.workload
	switch e.kind {
	case startEnded:
	case drainEnded:
		r.stopDrained(w, e.serial)
		return
	case stopEnded:
		r.endServer(e.serial, false)
		w.stopping--
		r.forgetRemoved(w)
		if r.cfg.Room > 0 {
			r.reconcileWaiting()
		}
		return
	}
	if int(e.row) >= len(w.instances) || w.instances[e.row].serial != e.serial {
		return
	}
	i := &w.instances[e.row]
	w.view = nil
	if i.failures == 0 {
		i.status, i.readyAt = windlassv1.InstanceStatus_INSTANCE_STATUS_READY, time.Now().UnixMilli()
		r.serve(w, i)
		if r.cfg.Ready != nil {
			r.cfg.Ready(w.ownerOf().assignment.Deployment.Id, i.id)
		}
		switch {
		case !w.rolling:
		case w.grouped:
			r.reconcileWorkload(w)
		default:
			r.replaceOld(w)
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
	r.scheduleEvent(r.cfg.Start, e)
}

// forgetRemoved drops removed deployments without instances.
func (r *Runtime) forgetRemoved(w *workload) {
	if len(w.members) == 0 {
		return // leaveWorkload has dropped the workload
	}
	owner := w.ownerOf()
	w.members = slices.DeleteFunc(w.members, func(d *deployment) bool {
		if !d.removing || d == owner && w.stopping+w.count > 0 {
			return false
		}
		delete(r.deployments, d.assignment.Deployment.Id)
		return true
	})
	if len(w.members) == 0 {
		delete(r.workloads, w.key)
	}
}

// observationOf returns the instances in the form of Observe.
func (r *Runtime) observationOf(w *workload) []runtime.Instance {
	if w.view != nil {
		return w.view
	}
	out := make([]runtime.Instance, 0, w.count+len(w.leaving))
	for n := range len(w.instances) + len(w.leaving) {
		var i *instance
		g := n
		if n < len(w.instances) {
			i = &w.instances[n]
		} else {
			i, g = &w.leaving[n-len(w.instances)], 0
		}
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
		case windlassv1.InstanceStatus_INSTANCE_STATUS_READY, windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING:
			seen.ReadyAt, seen.Address = time.UnixMilli(i.readyAt), r.addressOf(i)
		case windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED:
			seen.Reason, seen.Message = runtime.ReasonExited, "exit code 1"
			if i.failures >= Doomed {
				seen.Reason, seen.Doomed = runtime.ReasonCrashLoop, true
			}
		case windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING:
			seen.StartedAt, seen.Reason, seen.Message = time.Time{}, runtime.ReasonWaitsForRole, "waits for other roles of its group"
			if i.unfit {
				seen.Reason, seen.Message = runtime.ReasonUnschedulable, "waits for room"
			}
		default:
		}
		out = append(out, seen)
	}
	w.view = out
	return out
}

func (i *instance) roleName() string {
	if i.place == nil {
		return runtime.DefaultRole
	}
	return i.place.Role
}

func (i *instance) isReady() bool { return i.status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY }
