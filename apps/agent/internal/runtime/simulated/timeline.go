package simulated

import (
	"container/heap"
	"time"
)

// eventKind is the kind of an event.
type eventKind uint8

const (
	startEnded eventKind = iota // a start has succeeded or failed
	stopEnded                   // an instance has ended
	drainEnded                  // an instance has waited long enough for gateways
)

// event is a future event. Events with the same time are handled in the order of their creation, so
// equal seeds give equal histories.
type event struct {
	at       int64 // unix ns
	order    uint64
	workload *workload
	row      int32
	serial   uint32
	kind     eventKind
}

// timeline is a heap of future events, earliest first. Its runtime's lock guards it.
type timeline struct {
	events []event
	order  uint64
	timer  *time.Timer
	// handling is true while handleDue runs. At its end, handleDue sets the timer.
	handling bool
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

// scheduleEvent adds the event with a random delay. If the delay is 0 or draw is nil, it handles the
// event at once.
func (r *Runtime) scheduleEvent(draw func() time.Duration, e event) {
	delay := time.Duration(0)
	if draw != nil {
		delay = draw()
	}
	if delay <= 0 {
		r.handle(e)
		return
	}
	t := &r.timeline
	e.at, e.order = time.Now().Add(delay).UnixNano(), t.order
	t.order++
	heap.Push(t, e)
	switch {
	case t.handling:
	case t.timer == nil:
		t.timer = time.AfterFunc(delay, r.handleDue)
	case t.events[0] == e:
		t.timer.Reset(delay)
	}
}

// handleDue handles all events whose time has come.
func (r *Runtime) handleDue() {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &r.timeline
	now := time.Now().UnixNano()
	t.handling = true
	for len(t.events) > 0 && t.events[0].at <= now {
		r.handle(heap.Pop(t).(event))
	}
	t.handling, t.timer = false, nil
	if len(t.events) > 0 {
		t.timer = time.AfterFunc(time.Duration(t.events[0].at-now), r.handleDue)
	}
	r.signalChange()
}
