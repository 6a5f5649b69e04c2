package nodeagent

import (
	"container/heap"
	"time"
)

// wakes is a heap of pods by their next wake-up time.
type wakes []*pod

// Len implements heap.Interface.
func (w *wakes) Len() int { return len(*w) }

// Less implements heap.Interface.
func (w *wakes) Less(i, j int) bool { return (*w)[i].wakeAt.Before((*w)[j].wakeAt) }

// Swap implements heap.Interface.
func (w *wakes) Swap(i, j int) {
	all := *w
	all[i], all[j] = all[j], all[i]
	all[i].wakeIndex, all[j].wakeIndex = i, j
}

// Push implements heap.Interface.
func (w *wakes) Push(x any) {
	p := x.(*pod)
	p.wakeIndex = len(*w)
	*w = append(*w, p)
}

// Pop implements heap.Interface.
func (w *wakes) Pop() any {
	old := *w
	p := old[len(old)-1]
	old[len(old)-1] = nil
	*w = old[:len(old)-1]
	p.wakeIndex = -1
	return p
}

// setTime sets a pod's time. The zero time removes the pod.
func (w *wakes) setTime(p *pod, at time.Time) {
	switch {
	case at.IsZero() && p.wakeIndex >= 0:
		heap.Remove(w, p.wakeIndex)
	case at.IsZero():
	case p.wakeIndex < 0:
		p.wakeAt = at
		heap.Push(w, p)
	case !p.wakeAt.Equal(at):
		p.wakeAt = at
		heap.Fix(w, p.wakeIndex)
	}
}

// popDue removes and returns a pod whose time has come, or nil.
func (w *wakes) popDue(now time.Time) *pod {
	if len(*w) == 0 || (*w)[0].wakeAt.After(now) {
		return nil
	}
	return heap.Pop(w).(*pod)
}
