package simulated

import (
	"strconv"

	"github.com/windlass-run/windlass/apps/agent/internal/groups"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// workRoles is work for a workload with several roles. Package groups decides about its instances. Those that wait for
// other roles are rows that were not started; rolling says that they, or instances of an older template, wait until
// others are ready.
func (r *Runtime) workRoles(w *workload, d *deployment) {
	want := wantedOf(d)
	r.tell(w, d)
	w.rolling = false // an instance that is ready at once must not call this again
	for again := true; again; {
		again = false
		seen, rows := observed(w, d)
		decision := groups.Decide(want, seen)
		for _, key := range decision.Delete {
			r.end(w, rows[key])
		}
		for _, key := range decision.Replace {
			r.end(w, rows[key])
			again = true // its successor
		}
		for _, c := range decision.Create {
			r.create(w, c.ID)
			again = true // it starts, or waits
		}
		if again {
			continue // whether those that were made wait is not known yet
		}
		for n := range w.instances {
			i := &w.instances[n]
			if i.serial == 0 || i.status != windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING || decision.Wait[*i.place] != "" {
				continue
			}
			w.count--
			r.startAs(w, n, i.place)
			again = true // if it is ready at once, others need not wait
		}
	}
	for n := range w.instances {
		i := &w.instances[n]
		if i.serial != 0 && (i.status == windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING || i.hash != d.assignment.TemplateOf(i.role())) {
			w.rolling = true
		}
	}
}

func wantedOf(d *deployment) groups.Wanted {
	w := d.assignment.GroupsWanted()
	if d.removing {
		w.Replicas = 0
	}
	return w
}

// observed returns the instances of a workload, and their rows by key.
func observed(w *workload, d *deployment) (seen []groups.Instance, rows map[string]int) {
	rows = map[string]int{}
	for n := range w.instances {
		i := &w.instances[n]
		if i.serial == 0 {
			continue
		}
		if i.place == nil {
			i.place = &groups.ID{Role: runtime.DefaultRole, Group: n} // it had one role before
		}
		key := strconv.FormatUint(uint64(i.serial), 10)
		rows[key] = n
		seen = append(seen, groups.Instance{
			ID: *i.place, Key: key, Started: i.status != windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING, Ready: i.ready(),
			Old: i.hash != d.assignment.TemplateOf(i.role()),
		})
	}
	return seen, rows
}

// create makes an instance that is not started yet.
func (r *Runtime) create(w *workload, place groups.ID) {
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
	a := w.owner().assignment
	w.instances[row] = instance{
		id: ident.New("ins"), name: r.cfg.Region + "-" + a.Deployment.AppName + "-" + place.Role,
		hash: a.TemplateOf(place.Role), serial: r.serial, place: &place, status: windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING,
	}
	w.count++
	w.view = nil
}

// end stops the instance in a row. One that was never started is gone at once.
func (r *Runtime) end(w *workload, row int) {
	if w.instances[row].status == windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING {
		w.instances[row] = instance{}
		w.count--
		w.view = nil
		return
	}
	r.stop(w, row)
}
