package process

import (
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

const (
	// peersDirName is the directory of an instance for its peers file. The instance may read it.
	peersDirName = "peers"
	peersFile    = "peers.json"
)

func (r *Runtime) peersDir(id string) string { return filepath.Join(r.instanceDir(id), peersDirName) }

// isEntry reports whether routes lead to instances of the role. The deployment has several roles.
func (w *workload) isEntry(role string) bool {
	return slices.ContainsFunc(w.roles, func(r runtime.RoleCount) bool { return r.Entry && r.Name == role })
}

// isReleased reports whether no gateway sends to the instance any more. With several roles, gateways
// send to an instance through the entry instances of its group. So the instance keeps running until
// gateways have released all of these. An entry instance of a pool waits only for its own release.
// The caller holds mu.
func (w *workload) isReleased(in *instance) bool {
	if w.roles == nil {
		return w.rt.released(in.rec.ID)
	}
	if w.leavesPool(in) {
		return false // the entry instances keep serving without it
	}
	if len(w.roles) > 0 && w.roles[0].Pool != 0 && w.isEntry(in.rec.Role) {
		return w.rt.released(in.rec.ID) // the other entry instances of the pool keep serving
	}
	for _, other := range w.instances {
		if other.live && other.rec.Group == in.rec.Group && w.isEntry(other.rec.Role) && !w.rt.released(other.rec.ID) {
			return false
		}
	}
	return true
}

// peersPause is how long an instance that leaves a pool keeps running, so that its peers can read
// that it leaves.
const peersPause = 2 * time.Second

// leavesPool reports whether entry instances of a pool stay when the instance leaves. They get a
// peers file without the instance, and no gateway says when they have finished with it. The caller
// holds mu.
func (w *workload) leavesPool(in *instance) bool {
	if len(w.roles) == 0 || w.roles[0].Pool == 0 || w.isEntry(in.rec.Role) {
		return false
	}
	for _, other := range w.instances {
		if other.live && other.rec.Stop == nil && other.rec.Group == in.rec.Group && w.isEntry(other.rec.Role) {
			return true
		}
	}
	return false
}

// stopEntriesFirst moves the stops of a pool's entry instances to the front. Whether the stop of
// another instance waits for gateways depends on which entry instances stay. So entry instances
// that do not stay must be stopping before. The caller holds mu.
func (w *workload) stopEntriesFirst(actions []action) {
	if len(w.roles) == 0 || w.roles[0].Pool == 0 {
		return
	}
	first := func(a action) int {
		if in := w.instances[a.ID]; in != nil && (a.Kind == doStop || a.Kind == doRetire) && w.isEntry(in.rec.Role) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(actions, func(a, b action) int { return first(a) - first(b) })
}

// tellPeers writes the peers file of each instance for which it has changed. The caller holds mu.
func (w *workload) tellPeers() {
	if w.roles == nil {
		return
	}
	var roles []string
	for _, r := range w.roles {
		roles = append(roles, r.Name)
	}
	serving := map[string]bool{}
	var all []runtime.Instance
	for _, in := range w.instances {
		s := seen{record: in.rec, Live: in.live}
		// An instance whose order to stop is held back serves requests that gateways still send to
		// its group.
		serving[in.rec.ID] = s.Live && s.Ready && (s.Stop == nil || !s.Stop.Await.IsZero() && !w.leavesPool(in))
		all = append(all, s.describeInstance(nil))
	}
	files := runtime.PeersOf(roles, all, func(in *runtime.Instance) bool { return serving[in.ID] })
	for _, in := range w.instances {
		data := files[in.rec.Group]
		if in.peers == string(data) || in.busy == forgetting {
			continue
		}
		if err := writePeers(w.rt.peersDir(in.rec.ID), data); err != nil {
			w.rt.log.Error("cannot write the peers of an instance; will try again with the next change", "instance", in.rec.ID, "err", err)
			continue
		}
		in.peers = string(data)
	}
}

// writePeers replaces the peers file. Every user may read it, because the directories above it
// decide who can reach it.
func writePeers(dir string, data []byte) error {
	if err := os.Mkdir(dir, 0o700); err == nil {
		err = os.Chmod(dir, 0o755) // an instance runs as another user
		if err != nil {
			return err
		}
	} else if !os.IsExist(err) {
		return err
	}
	tmp := filepath.Join(dir, "."+peersFile+".tmp")
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, peersFile))
}
