//go:build linux

package epoll

import (
	"iter"
	"sync/atomic"
)

// Task is a function that waits for its connections without a goroutine that must be woken. The
// poller that finds something for the task goes on with it, there and then. No goroutine is
// scheduled for that, and no thread is woken. Tasks go on in the order in which something came for
// them. In turn a task must not hold up its poller: what may block, except for reads and writes of its
// connections, runs in Blocking. A check of the layout rules finds calls that do not.
//
//	poller ── told ──▶ task: read, work, write ─┐
//	   ▲                                        │ waits for a connection
//	   └────────────────────────────────────────┘
//	                task: Blocking ──▶ a goroutine, until it waits for a connection next
//
// At most one goroutine runs a task at a time, which state ensures.
type Task struct {
	// next runs it until it stops at why; false: it has ended.
	next func() (why, bool)
	stop func(why) bool
	// state is running, again or parked.
	state atomic.Int32
	// onPoller: a poller runs it. left is how many reads the task may still hold it up for.
	onPoller bool
	left     int
}

// States of a Task.
const (
	// running: a goroutine runs it.
	running int32 = iota
	// again: a goroutine runs it, and has to run it once more, because an event came meanwhile.
	again
	// parked: no goroutine runs it. The one that changes this to running must run it.
	parked
)

// why a task stops.
type why int

const (
	// waits for a connection.
	waits why = iota
	// leaves its poller.
	leaves
)

// readsInTurn is how many reads a task may hold up its poller for: none that is waited for is
// among them. A request has one or two; what has many is a large body on a fast connection,
// which has a goroutine of its own from there on, as the runtime knows how to share a processor
// among such.
const readsInTurn = 16

// Go runs f as a task. Connections are f's by Conn.Give.
func Go(f func(t *Task)) {
	t := &Task{}
	// It is never stopped: what it waits for ends when its connections are cut.
	t.next, _ = iter.Pull(func(yield func(why) bool) {
		t.stop = yield
		f(t)
	})
	go t.runUntilWait(false)
}

// runUntilWait runs the task until it waits, leaves or ends. The caller has marked it as running.
func (t *Task) runUntilWait(onPoller bool) {
	for {
		t.onPoller, t.left = onPoller, readsInTurn
		stopped, more := t.next()
		switch {
		case !more:
			return
		case stopped == leaves:
			go t.runUntilWait(false)
			return
		case t.state.CompareAndSwap(running, parked):
			return
		}
		t.state.Store(running)
	}
}

// wakeUp makes the task check again what it waits for. It returns true if the caller has to run the task.
func (t *Task) wakeUp() bool {
	for {
		switch t.state.Load() {
		case parked:
			if t.state.CompareAndSwap(parked, running) {
				return true
			}
		case running:
			if t.state.CompareAndSwap(running, again) {
				return false
			}
		default:
			return false
		}
	}
}

// parkUntilWoken parks the task until it is woken, or returns if it was woken since it last looked.
func (t *Task) parkUntilWoken() {
	if !t.state.CompareAndSwap(again, running) {
		t.stop(waits)
	}
}

// Blocking runs f, which may block, on a goroutine of the task's own. The task stays there until it
// waits for a connection next. The nil Task is on one anyway.
func (t *Task) Blocking(f func()) {
	t.leavePoller()
	f()
}

func (t *Task) leavePoller() {
	if t != nil && t.onPoller {
		t.stop(leaves)
	}
}

// countRead counts reads that did not wait.
func (t *Task) countRead() {
	if t.left--; t.left == 0 {
		t.leavePoller()
	}
}
