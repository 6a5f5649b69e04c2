package simulated

import (
	"container/heap"
	"time"
)

// what is the kind of an event.
type what uint8

const (
	started what = iota // a start has succeeded or failed
	stopped             // an instance has ended
)

// event is an event that is due. Events of one time happen in the order of their creation, so that equal
// seeds give equal histories.
type event struct {
	at       int64 // unix ns
	order    uint64
	workload *workload
	group    int32
	serial   uint32
	what     what
}

// timeline holds the events that are due, earliest first, under its runtime's lock.
type timeline struct {
	events []event
	order  uint64
	timer  *time.Timer
	// doing is whether due is handling events. It sets the timer at its end.
	doing bool
}

func (t *timeline) Len() int { return len(t.events) }

func (t *timeline) Less(i, j int) bool {
	a, b := &t.events[i], &t.events[j]
	return a.at < b.at || a.at == b.at && a.order < b.order
}

func (t *timeline) Swap(i, j int) { t.events[i], t.events[j] = t.events[j], t.events[i] }

func (t *timeline) Push(e any) { t.events = append(t.events, e.(event)) }

func (t *timeline) Pop() any {
	last := len(t.events) - 1
	e := t.events[last]
	t.events[last] = event{}
	t.events = t.events[:last]
	return e
}

// after schedules the event after a drawn delay, or handles it at once without one.
func (r *Runtime) after(draw func() time.Duration, e event) {
	delay := time.Duration(0)
	if draw != nil {
		delay = draw()
	}
	if delay <= 0 {
		r.happen(e)
		return
	}
	t := &r.timeline
	e.at, e.order = time.Now().Add(delay).UnixNano(), t.order
	t.order++
	heap.Push(t, e)
	switch {
	case t.doing:
	case t.timer == nil:
		t.timer = time.AfterFunc(delay, r.due)
	case t.events[0] == e:
		t.timer.Reset(delay)
	}
}

// due handles all events whose time has come.
func (r *Runtime) due() {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &r.timeline
	now := time.Now().UnixNano()
	t.doing = true
	for len(t.events) > 0 && t.events[0].at <= now {
		r.happen(heap.Pop(t).(event))
	}
	t.doing, t.timer = false, nil
	if len(t.events) > 0 {
		t.timer = time.AfterFunc(time.Duration(t.events[0].at-now), r.due)
	}
	r.signal()
}
