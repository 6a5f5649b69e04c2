package plan

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

func (r *running) outdated() (n int32) {
	for _, ready := range r.taken {
		n += ready
	}
	return n
}

// stop takes so many away of those that serve and are of other versions.
func (r *running) stop(n int32) {
	for _, id := range sortedKeys(r.taken) {
		less := min(n, r.taken[id])
		r.taken[id] -= less
		n -= less
	}
}

// adopt has the row go on with what runs under its workload.
func (f *fleet) adopt(key rowKey, workload string) {
	r := f.runs[key]
	r.workload = workload
	if r.taken == nil {
		r.taken = map[string]int32{}
	}
	for k, o := range f.runs {
		if k == key || k.region != key.region || o.workload != workload {
			continue
		}
		for id, n := range o.taken {
			r.taken[id] += n
		}
		r.taken[k.deployment] += o.ready
		r.other, r.draining = r.other+o.other, r.draining+o.draining
		*o = running{generation: o.generation, epoch: o.epoch, told: o.told, gone: o.gone}
	}
	for id, n := range r.taken {
		if id == key.deployment || f.alike(id, key.deployment) {
			r.ready += n
			delete(r.taken, id)
		}
	}
}

// awaitsHeir tells whether the region takes nothing of the row away yet: who is to go on with
// it comes first.
func (f *fleet) awaitsHeir(row model.Topology) bool {
	for k, heir := range f.rows {
		if !row.Told() && k.region == row.RegionID && heir.Told() && heir.WorkloadKey() == row.WorkloadKey() &&
			(f.runs[k] == nil || f.runs[k].workload != heir.WorkloadKey()) {
			return true
		}
	}
	return false
}
