package process

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// loadInstances reads the records of the instances that an earlier agent left. The
// keepers then find out which of them run, and how the others ended.
func (r *Runtime) loadInstances() error {
	dirs, err := os.ReadDir(filepath.Join(r.cfg.DataDir, instancesDir))
	if err != nil {
		return fmt.Errorf("read instances: %w", err)
	}
	for _, e := range dirs {
		rec, found, err := readJSON[record](r.instanceDir(e.Name()), recordFile)
		if err != nil {
			return fmt.Errorf("read instance %s: %w", e.Name(), err)
		}
		if !found || rec.ID != e.Name() {
			if err := r.dropStray(e.Name()); err != nil {
				return fmt.Errorf("drop instance %s: %w", e.Name(), err)
			}
			continue
		}
		r.ledger.restore(rec)
		r.users.restore(rec)
		w := r.workloadLocked(rec.Workload)
		w.instances[rec.ID] = &instance{rec: rec, adopt: rec.Attempt > 0 && !rec.ended(), live: rec.Attempt > 0 && !rec.ended()}
	}
	for _, w := range r.workloads {
		// If an agent ended between an assignment and a pass, the records still name the deployment before.
		w.belongTo(r.ownerLocked(w.key))
		w.publish(nil, 0)
	}
	return nil
}

// dropStray removes a directory without a record: one whose deletion was cut
// short, or whose record a power cut took.
func (r *Runtime) dropStray(id string) error {
	dir := r.instanceDir(id)
	if f, found, err := readJSON[facts](dir, factsFile); err == nil && found && f.Boot == r.boot {
		_ = f.Shim.signal(syscall.SIGKILL)
		sweep(id, f.Shim, f.UID)
	}
	return forgetInstance(context.Background(), dir)
}

// takeUp decides about an instance of an earlier agent. Called with mu held.
func (w *workload) takeUp(ctx context.Context, in *instance) {
	in.adopt = false
	if in.rec.Stop != nil && in.rec.Stop.Await.IsZero() {
		// The order may have been written and not given. A shim that gets it twice stops once.
		if f, found, err := readJSON[facts](w.rt.instanceDir(in.rec.ID), factsFile); err == nil && found &&
			f.Attempt == in.rec.Attempt && f.Boot == w.rt.boot {
			_ = f.Shim.signal(syscall.SIGTERM)
		}
	}
	w.settleAs(ctx, in, exit{Kind: exitNeverRan})
}

// stranger names the process that listens on the checked port of an instance, if that process
// is not one of the instance's. Empty: it is one of them, or its owner cannot be found out.
func stranger(rec record, shim, child proc) string {
	port := rec.checked()
	sockets := listeners(port)
	if len(sockets) == 0 || holds(child.PID, sockets) {
		return ""
	}
	for _, p := range remains(rec.ID, shim, rec.UID) {
		if holds(p.PID, sockets) {
			return ""
		}
	}
	return portOwner(port)
}

// holds reports whether a process has one of the sockets open.
func holds(pid int, sockets map[string]bool) bool {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && sockets[target] {
			return true
		}
	}
	return false
}
