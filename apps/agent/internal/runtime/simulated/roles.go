package simulated

import (
	"maps"
	"slices"
	"strconv"

	"github.com/windlass-run/windlass/apps/agent/internal/groups"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// reconcileRoles is reconcile for a workload with several roles. Package groups decides which
// instances to create, to delete and to replace. The row of an instance that waits for other roles
// has the status PENDING. rolling is true while there is such a row, or an instance of an older
// template.
func (r *Runtime) reconcileRoles(w *workload, d *deployment) {
	want := wantedOf(d)
	r.reportTakenOver(w, d)
	if w.deciding {
		return // this call is of an instance that ended at once
	}
	w.deciding = true
	defer func() { w.deciding = false }()
	w.rolling = false // because an instance that is ready at once must not call reconcileRoles again
	for again := true; again; {
		again = false
		seen, rows := rolesObserved(w, d)
		decision := groups.Decide(want, seen)
		for _, key := range decision.Delete {
			r.stopRow(w, rows[key])
			again = true // decide again, because there is room for another instance
		}
		for _, key := range decision.Replace {
			r.stopRow(w, rows[key])
			again = true // decide again, to create the successor
		}
		for _, c := range decision.Create {
			r.createPending(w, c.ID)
			again = true // decide again whether the instance waits
		}
		if again {
			continue // only the next decision knows which new instances wait
		}
		for n := range w.instances {
			i := &w.instances[n]
			if i.serial == 0 || i.status != windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING || decision.Wait[*i.place] != "" {
				continue
			}
			if !r.hasRoom() {
				again = again || !i.unfit // decide again, because it may take another one's place
				i.unfit, w.view = true, nil
				continue
			}
			w.count--
			r.startInRow(w, n, i.place)
			again = true // if the instance is ready at once, other instances need not wait
		}
	}
	for n := range w.instances {
		i := &w.instances[n]
		if i.serial != 0 && (i.status == windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING || i.hash != d.assignment.TemplateOf(i.roleName())) {
			w.rolling = true
		}
	}
}

// hasRoom reports whether one more instance may run.
func (r *Runtime) hasRoom() bool {
	if r.cfg.Room == 0 {
		return true
	}
	taken := 0
	for _, w := range r.workloads {
		if !w.grouped {
			continue
		}
		taken += w.stopping
		for n := range w.instances {
			if i := &w.instances[n]; i.serial != 0 && i.status != windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING {
				taken++
			}
		}
	}
	return taken < r.cfg.Room
}

// reconcileWaiting reconciles the workloads with instances that wait for room, in the order of their keys.
func (r *Runtime) reconcileWaiting() {
	for _, key := range slices.Sorted(maps.Keys(r.workloads)) {
		w := r.workloads[key]
		if w != nil && slices.ContainsFunc(w.instances, func(i instance) bool { return i.unfit }) {
			r.reconcileWorkload(w)
		}
	}
}

// wantedOf returns the wanted groups of a deployment: none if it is being removed.
func wantedOf(d *deployment) groups.Wanted {
	w := d.assignment.GroupsWanted()
	for n := range w.Roles {
		w.Roles[n].Hosts = 1 // its ranks are one instance
	}
	if d.removing {
		w.Replicas = 0
	}
	return w
}

// rolesObserved returns the instances of a workload, and their rows by key.
func rolesObserved(w *workload, d *deployment) (seen []groups.Instance, rows map[string]int) {
	rows = map[string]int{}
	for n := range w.instances {
		i := &w.instances[n]
		if i.serial == 0 {
			continue
		}
		if i.place == nil {
			i.place = &groups.ID{Role: runtime.DefaultRole, Group: n} // the workload had one role when this instance started
		}
		key := strconv.FormatUint(uint64(i.serial), 10)
		rows[key] = n
		seen = append(seen, groups.Instance{
			ID: *i.place, Key: key, Started: i.status != windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING, Ready: i.isReady(),
			Old: i.hash != d.assignment.TemplateOf(i.roleName()), Unfit: i.unfit,
		})
	}
	return seen, rows
}

// createPending adds an instance that has not started yet.
func (r *Runtime) createPending(w *workload, place groups.ID) {
	row := 0
	for row < len(w.instances) && w.instances[row].serial != 0 {
		row++
	}
	if row == len(w.instances) {
		w.instances = append(w.instances, instance{})
	}
	if r.serial++; r.serial == 0 {
		r.serial = 1
	}
	a := w.ownerOf().assignment
	w.instances[row] = instance{
		id: ident.New("ins"), name: r.cfg.Region + "-" + a.Deployment.AppName + "-" + place.Role,
		hash: a.TemplateOf(place.Role), serial: r.serial, place: &place, status: windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING,
	}
	w.count++
	w.view = nil
}

// stopRow stops the instance in a row. An instance that was never started is gone at once.
func (r *Runtime) stopRow(w *workload, row int) {
	if w.instances[row].status == windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING {
		w.instances[row] = instance{}
		w.count--
		w.view = nil
		return
	}
	r.stopStarted(w, row)
}
