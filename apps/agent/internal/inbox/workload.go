package inbox

import (
	"slices"

	"github.com/windlass-run/windlass/pkg/digest"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Succession says which other items may continue the workload of an item.
type Succession struct {
	// Wanting are the assignments of other deployments that name the workload, without tombstones.
	Wanting []*agentv1.Item
	// Open means that it is not known yet which deployment continues the workload. Either several
	// assignments name the workload, or a tombstone says that the workload was transferred and no
	// held item has taken it.
	Open bool
}

// Succession returns the other items that name the item's workload.
//
// The items of one frame are stored together, but one change may have items in several frames. The
// control plane sends the newest state of an item, which may be newer than the other items of the
// frame. So an absent item means nothing until a snapshot comes, because a snapshot shows one
// moment. If only a snapshot can decide, call Ask.
//
// Which deployment continues the workload:
//
//	the item             another is       none is, and one was   none is, and all were
//	                     wanted           deleted for good       transferred, or absent
//	wanted               open             the item's             the item's
//	deleted              the other        none                   none
//	... and transferred  the other        none                   open
//
// A deployment that was deleted for good counts only if its tombstone came in the same frame as the
// item, or later. After a whole snapshot, nothing is open until a newer item names the workload: if
// the deployment that took the workload is absent from the snapshot, it was deleted for good.
//
// ok is false when the item is no longer the newest of its key.
func (in *Inbox) Succession(item *agentv1.Item) (s Succession, ok bool) {
	in.mu.RLock()
	defer in.mu.RUnlock()
	k := keyOf(item)
	if in.items[k] != item {
		return Succession{}, false
	}
	return in.successionOf(k), true
}

func (in *Inbox) successionOf(k Key) Succession {
	item := in.items[k]
	var s Succession
	ended := false // another deployment of the workload was deleted for good
	for _, o := range in.naming[workloadOf(item)] {
		switch other := in.items[o]; {
		case o == k:
		case !IsDelete(other):
			s.Wanting = append(s.Wanting, other)
		case !other.GetDeployment().HandedOver && in.since[o] >= in.since[k] && in.since[k] > 0:
			ended = true
		}
	}
	switch {
	case in.whole > 0 && in.since[k] <= in.whole && !in.cameLater(workloadOf(item)):
	case !IsDelete(item):
		s.Open = len(s.Wanting) > 0
	case item.GetDeployment().HandedOver:
		s.Open = len(s.Wanting) == 0 && !ended
	}
	return s
}

// cameLater reports whether an item that names the workload came after the newest whole snapshot. Such
// an item is a successor, or the tombstone of a successor whose workload was transferred in turn.
func (in *Inbox) cameLater(workload string) bool {
	return slices.ContainsFunc(in.naming[workload], func(o Key) bool { return in.since[o] > in.whole })
}

// Ask requests a whole snapshot from the next stream. The request stands while it is not known
// which deployment continues the key's workload.
func (in *Inbox) Ask(k Key) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.asked[k] = true
}

// Asked reports whether a snapshot is needed; see Ask.
func (in *Inbox) Asked() bool {
	in.mu.RLock()
	defer in.mu.RUnlock()
	for k := range in.asked {
		if in.successionOf(k).Open {
			return true
		}
	}
	return false
}

// answeredKeys records that a whole snapshot came, and returns the keys for which Ask requested one. The caller
// holds mu.
func (in *Inbox) answeredKeys() []Key {
	in.whole = in.frames
	var out []Key
	for k := range in.asked {
		if in.items[k] != nil {
			out = append(out, k)
		}
	}
	clear(in.asked)
	return out
}

// nameWorkload records the workload that the key's item names, and when the item came. The caller holds mu.
func (in *Inbox) nameWorkload(k Key, item *agentv1.Item) {
	if workload := workloadOf(item); workload != "" {
		in.naming[workload] = append(in.naming[workload], k)
		in.since[k] = in.frames
	}
}

// forgetName removes the record of name for the key. The caller holds mu.
func (in *Inbox) forgetName(k Key) {
	workload := workloadOf(in.items[k])
	if workload == "" {
		return
	}
	delete(in.since, k)
	delete(in.asked, k)
	rest := slices.DeleteFunc(in.naming[workload], func(o Key) bool { return o == k })
	if len(rest) == 0 {
		delete(in.naming, workload)
		return
	}
	in.naming[workload] = rest
}

// workloadOf returns the workload that the item names.
func workloadOf(item *agentv1.Item) string { return item.GetDeployment().GetWorkloadKey() }

// everyBucket reports whether a snapshot covers all keys.
func everyBucket(begin *agentv1.SnapshotBegin) bool {
	distinct := map[int32]bool{}
	for _, b := range begin.Buckets {
		distinct[b] = true
	}
	return len(begin.Buckets) == 0 || len(distinct) == digest.Buckets
}
