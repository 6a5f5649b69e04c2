package fleettest

import (
	"time"

	"github.com/windlass-run/windlass/apps/controlplane"
)

// causeFaults causes faults at random while users change apps, until faults end.
func (w *fleet) causeFaults(of size, duration time.Duration) {
	w.faultsOn.Store(true)
	defer w.faultsOn.Store(false)
	if scaledApp < of.apps {
		w.actOn(of, scaledApp, 0) // early, so that it scales while things break
	}
	backup, mirrored := w.backup()
	restored := false
	deadline := time.Now().Add(duration)
	for time.Now().Before(deadline) {
		time.Sleep(w.fate.between(20*time.Millisecond, 3*time.Second))
		region, replica := w.regions[w.fate.intn(of.regions)], w.replicas[w.fate.intn(of.replicas)]
		switch w.fate.intn(26) {
		case 0, 1, 2, 3, 4, 5, 6:
			w.act(of)
		case 7:
			w.recordFault(region.name, "is cut off for a while")
			node := region.node
			node.cut("", true)
			w.later(30*time.Second, func() { node.cut("", false) })
		case 8:
			w.recordFault(region.name, "loses its connections")
			region.node.cut("", false)
		case 9:
			w.recordFault(region.name, "cannot reach "+replica.name)
			node := region.node
			node.cut(replica.name, true)
			w.later(20*time.Second, func() { node.cut(replica.name, false) })
		case 10, 11:
			w.recordFault(region.name, "has its packets held")
			node := region.node
			node.hold("")
			w.later(25*time.Second, func() { node.release("") })
		case 12, 13:
			w.recordFault(region.name, "its agent is killed")
			region.process.kill()
			time.Sleep(w.fate.between(0, 4*time.Second))
			region.retire()
			region.start()
		case 14:
			w.recordFault(region.name, "its agent is killed, and comes back much later")
			region.process.kill()
			time.Sleep(w.fate.between(10*time.Second, 30*time.Second))
			region.retire()
			region.start()
		case 15, 16:
			w.recordFault(region.name, "gets a second agent while the first one hangs")
			region.twin()
		case 17:
			w.recordFault(replica.name, "is killed")
			replica.kill()
			time.Sleep(w.fate.between(0, 15*time.Second))
			replica.start()
		case 18:
			w.recordFault(replica.name, "is drained and started again")
			replica.drain(w.fate.between(0, 5*time.Second))
			time.Sleep(w.fate.between(0, 3*time.Second))
			replica.start()
		case 19, 20:
			w.recordFault(replica.name, "stands still")
			replica.stalled.Store(time.Now().Add(w.fate.between(0, 25*time.Second)).UnixNano())
		case 21:
			w.recordFault(replica.name, "loses its database")
			replica.away.Store(true)
			w.later(15*time.Second, func() { replica.away.Store(false) })
		case 22:
			w.recordFault(replica.name, "cannot call its peers")
			peers := replica.peers
			peers.cut("", true)
			w.later(30*time.Second, func() { peers.cut("", false) })
		case 23:
			w.recordFault("every replica", "is killed")
			for _, r := range w.replicas {
				r.kill()
			}
			time.Sleep(w.fate.between(0, 25*time.Second))
			for _, r := range w.replicas {
				r.start()
			}
		case 24:
			// In some fleets, the database is restored once from an earlier state.
			if restored || w.fate.intn(3) > 0 {
				continue
			}
			restored = true
			w.recordFault("the database", "is restored from a backup")
			for _, r := range w.replicas {
				r.kill()
			}
			w.memory.Restore(backup)
			w.check.restored(mirrored)
			for _, r := range w.replicas {
				r.start()
			}
		case 25:
			if !restored {
				backup, mirrored = w.backup()
			}
		}
	}
}

func (w *fleet) backup() (*controlplane.Memory, *mirror) {
	return w.memory.Backup(), w.check.mirrored()
}

// recordFault records the fault that follows.
func (w *fleet) recordFault(whom, what string) {
	w.trace.addf("fault: %s %s", whom, what)
	w.check.history.add(event{region: regionOf(whom), part: "fault", text: whom + " " + what})
}

func regionOf(whom string) string {
	if len(whom) > 7 && whom[:7] == "region-" {
		return whom
	}
	return ""
}

// later calls mend after a random time.
func (w *fleet) later(within time.Duration, mend func()) {
	time.AfterFunc(w.fate.between(0, within), mend)
}

// retire keeps the agent's node in past. The next agent gets a new node.
func (r *region) retire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.past = append(r.past, r.node)
}

// twin starts an agent on a copy of the disk while the earlier agent still runs. The network holds the
// messages of the earlier agent for a while, and then delivers all of them.
func (r *region) twin() {
	w := r.w
	old, process := r.node, r.process
	old.hold("")
	r.retire()
	r.mu.Lock()
	r.disk, r.served = r.disk.Clone(), r.served.clone()
	r.mu.Unlock()
	r.start()
	ended, released := w.fate.between(0, 10*time.Second), w.fate.between(0, 10*time.Second)
	w.running.Go(func() {
		// The agent ends when it finds that it lost its Lease. The network may deliver its messages later.
		_ = sleep(w.ctx, ended)
		process.kill()
		_ = sleep(w.ctx, released)
		old.release("")
		_ = sleep(w.ctx, latest)
		old.end()
	})
}

// heal mends all faults.
func (w *fleet) heal() {
	time.Sleep(31 * time.Second) // until the last fault has ended
	for _, n := range w.nodes() {
		n.release("")
		n.cut("", false)
	}
}
