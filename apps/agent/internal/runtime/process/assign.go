package process

import (
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"sync"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Apply implements runtime.Runtime.
func (r *Runtime) Apply(_ context.Context, a runtime.Assignment) error {
	if rej := r.refuseAssignment(a); rej != nil {
		return rej
	}
	id := a.Deployment.GetId()
	disk := r.diskOf(id)
	disk.Lock()
	defer disk.Unlock()
	d := newDeployment(a)
	r.mu.Lock()
	old := r.deployments[id]
	r.mu.Unlock()
	if old.sameAs(d) {
		d.seq = old.seq
	} else {
		d.seq = r.nextSeq()
		if err := d.saveFile(r.cfg.DataDir); err != nil {
			return fmt.Errorf("apply deployment %s: %w", id, err)
		}
	}
	anew := old == nil || old.seq != d.seq
	switch {
	case old == nil:
	case old.workload != d.workload:
		d.left = old.workload
	default:
		d.left = old.left
	}
	r.mu.Lock()
	touched := r.assignLocked(d, anew)
	r.mu.Unlock()
	for _, w := range touched {
		w.wakeUp()
	}
	if anew {
		r.signalChange()
	}
	return nil
}

// assignLocked replaces the assignment of the deployment. It returns the workloads that are
// affected. anew means that the assignment changed, so their keepers are behind until they know
// about it. The caller holds mu.
func (r *Runtime) assignLocked(d *deployment, anew bool) []*workload {
	touched := []*workload{r.workloadLocked(d.workload)}
	if left := r.workloads[d.left]; left != nil {
		touched = append(touched, left)
	}
	r.deployments[d.spec.GetId()] = d
	if anew {
		for _, w := range touched {
			w.assigned++
		}
	}
	return touched
}

// unsettledLocked reports whether a keeper may still use an earlier assignment of the deployment,
// or of the deployment that had its workload before. The caller holds mu.
func (r *Runtime) unsettledLocked(d *deployment) bool {
	for _, key := range []string{d.workload, d.left} {
		if w := r.workloads[key]; w != nil && w.isBehind() {
			return true
		}
	}
	return false
}

// Remove implements runtime.Runtime.
func (r *Runtime) Remove(_ context.Context, id string) error {
	disk := r.diskOf(id)
	disk.Lock()
	defer disk.Unlock()
	r.mu.Lock()
	old := r.deployments[id]
	r.mu.Unlock()
	if old == nil {
		// The assignment may be lost while the deployment still has instances.
		if old = r.strayDeployment(id); old == nil {
			return nil
		}
	}
	if old.removing {
		return nil
	}
	d := *old
	d.removing = true
	if err := d.saveFile(r.cfg.DataDir); err != nil {
		return fmt.Errorf("remove deployment %s: %w", id, err)
	}
	r.mu.Lock()
	touched := r.assignLocked(&d, true)
	r.mu.Unlock()
	for _, w := range touched {
		w.wakeUp()
	}
	r.signalChange()
	return nil
}

// strayDeployment makes a deployment for instances that have no assignment.
func (r *Runtime) strayDeployment(id string) *deployment {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, w := range r.workloads {
		if w.publishedLists()[id] != nil {
			return &deployment{spec: &agentv1.Deployment{Id: id}, workload: key}
		}
	}
	return nil
}

// isKnown reports whether a deployment has an assignment.
func (r *Runtime) isKnown(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.deployments[id] != nil
}

// collectDeployments forgets the deployments of a workload that are being removed and have no instances left.
// Only the workload's keeper may call it, between two passes, because instances that a pass has
// made but not yet published would not be counted.
func (r *Runtime) collectDeployments(w *workload) {
	if w.uncleared.Load() {
		return // The next agent must know the workload, so that it tries again.
	}
	for _, id := range r.collectableIDs(w) {
		if err := r.collectOne(w, id); err != nil {
			r.log.Error("forgetting a deployment failed; trying again later", "deployment", id, "err", err)
		}
	}
}

func (r *Runtime) collectableIDs(w *workload) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	gone := map[string]bool{}
	for id, d := range r.deployments {
		if d.removing && d.workload == w.key {
			gone[id] = true
		}
	}
	if len(gone) == 0 {
		return nil
	}
	for _, w := range r.workloads {
		for id := range w.publishedLists() {
			delete(gone, id)
		}
	}
	return slices.Collect(maps.Keys(gone))
}

func (r *Runtime) collectOne(w *workload, id string) error {
	disk := r.diskOf(id)
	disk.Lock()
	defer disk.Unlock()
	// The deployment may have been applied again since.
	if !slices.Contains(r.collectableIDs(w), id) {
		return nil
	}
	r.mu.Lock()
	d := r.deployments[id]
	r.mu.Unlock()
	if err := d.forgetFile(r.cfg.DataDir); err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.deployments, id)
	environments := map[string]bool{}
	for _, d := range r.deployments {
		environments[environmentOf(d)] = true
	}
	r.mu.Unlock()
	r.signalChange()
	return r.users.keepGroups(environments)
}

func (r *Runtime) diskOf(id string) *sync.Mutex {
	return &r.disk[maphash.String(r.seed, id)%uint64(len(r.disk))]
}
