package process

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// loadInstances reads the records of the instances of an earlier agent. The keepers then find out
// which of these instances run, and how the other instances ended.
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
		r.ledger.restoreClaim(rec)
		r.users.restoreUser(rec)
		w := r.workloadLocked(rec.Workload)
		w.instances[rec.ID] = &instance{rec: rec, adopt: rec.Attempt > 0 && !rec.hasEnded(), live: rec.Attempt > 0 && !rec.hasEnded()}
	}
	for _, w := range r.workloads {
		// If an agent ended between an assignment and a pass, the records still name the previous
		// deployment.
		w.belongTo(r.ownerLocked(w.key))
		w.publish(nil, 0)
	}
	return nil
}

// dropStray removes a directory without a record. Its deletion was interrupted, or the record was
// lost in a power cut.
func (r *Runtime) dropStray(id string) error {
	dir := r.instanceDir(id)
	if f, found, err := readJSON[facts](dir, factsFile); err == nil && found && f.Boot == r.boot {
		_ = f.Shim.sendSignal(syscall.SIGKILL)
		killRemaining(id, f.Shim, f.UID)
	}
	return forgetInstance(context.Background(), dir)
}

// takeUp decides about an instance of an earlier agent. The caller holds mu.
func (w *workload) takeUp(ctx context.Context, in *instance) {
	in.adopt = false
	if in.rec.Stop != nil && in.rec.Stop.Await.IsZero() {
		// The earlier agent may have written the order without giving it. A shim that gets the
		// order twice stops once.
		if f, found, err := readJSON[facts](w.rt.instanceDir(in.rec.ID), factsFile); err == nil && found &&
			f.Attempt == in.rec.Attempt && f.Boot == w.rt.boot {
			_ = f.Shim.sendSignal(syscall.SIGTERM)
		}
	}
	w.settleAs(ctx, in, exit{Kind: exitNeverRan})
}

// strangerAt returns the process that listens on the checked port of an instance, if it is not a
// process of the instance. It returns "" if the process belongs to the instance, or if the process
// cannot be found.
func strangerAt(rec record, shim, child proc) string {
	port := rec.checkedPort()
	sockets := listeningSockets(port)
	if len(sockets) == 0 || hasSocket(child.PID, sockets) {
		return ""
	}
	for _, p := range remainingProcesses(rec.ID, shim, rec.UID) {
		if hasSocket(p.PID, sockets) {
			return ""
		}
	}
	return portOwner(port)
}

// hasSocket reports whether a process has one of the sockets open.
func hasSocket(pid int, sockets map[string]bool) bool {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && sockets[target] {
			return true
		}
	}
	return false
}
