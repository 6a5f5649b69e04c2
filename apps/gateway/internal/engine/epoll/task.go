//go:build linux

package epoll

import (
	"iter"
	"sync/atomic"
)

// Task is a function that waits for its connections without a goroutine that the scheduler has to wake. A poller
// that finds an event for a task continues the task itself, at once. Tasks continue in the order of their events.
// A task must not block its poller: calls that may block run in Blocking, except for reads and writes of the task's
// connections. A test of the layout rules finds calls that break this rule.
//
//	poller ── event ──▶ task: read, work, write ─┐
//	   ▲                                         │ waits for a connection
//	   └─────────────────────────────────────────┘
//	                task: Blocking ──▶ a goroutine, until the task waits for a connection next
//
// state ensures that at most one goroutine runs a task at a time.
type Task struct {
	// resume runs the task until it suspends itself, and returns the reason. false: the task has ended.
	resume  func() (suspendReason, bool)
	suspend func(suspendReason) bool
	// state is running, runAgain or parked.
	state atomic.Int32
	// onPoller is whether a poller's goroutine runs the task.
	onPoller bool
	// readsLeft is how many more reads the task may make before it leaves its poller.
	readsLeft int
}

// These are the values of Task.state.
const (
	// running: a goroutine runs the task.
	running int32 = iota
	// runAgain: a goroutine runs the task and must resume it once more, because an event came meanwhile.
	runAgain
	// parked: no goroutine runs the task. The goroutine that changes parked to running must run it.
	parked
)

// suspendReason is why a task suspends itself.
type suspendReason int

const (
	// forConn: the task waits for a connection.
	forConn suspendReason = iota
	// forGoroutine: the task leaves its poller, and must continue on a goroutine of its own.
	forGoroutine
)

// maxReads is how many reads a task may make on its poller without a wait. A request needs one or two. A large body
// on a fast connection needs many. Then the task continues on a goroutine of its own, because Go's scheduler shares
// processors well among goroutines that work for long.
const maxReads = 16

// Go runs f as a task. f calls Conn.Give for the connections that it reads and writes.
func Go(f func(t *Task)) {
	t := &Task{}
	// The stop function of the iterator is not used, because a waiting task ends when its connections are cut.
	t.resume, _ = iter.Pull(func(yield func(suspendReason) bool) {
		t.suspend = yield
		f(t)
	})
	go t.runUntilWait(false)
}

// runUntilWait runs the task until it waits, leaves its poller or ends. The caller has marked it as running.
func (t *Task) runUntilWait(onPoller bool) {
	for {
		t.onPoller, t.readsLeft = onPoller, maxReads
		reason, more := t.resume()
		switch {
		case !more:
			return
		case reason == forGoroutine:
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
			if t.state.CompareAndSwap(running, runAgain) {
				return false
			}
		default:
			return false
		}
	}
}

// parkUntilWoken parks the task until wakeUp is called. It returns at once if an event came after the task was
// resumed or last called parkUntilWoken.
func (t *Task) parkUntilWoken() {
	if !t.state.CompareAndSwap(runAgain, running) {
		t.suspend(forConn)
	}
}

// Blocking runs f, which may block, on a goroutine of the task's own. The task stays on that goroutine until it
// waits for a connection next. A nil Task runs f on the caller's goroutine.
func (t *Task) Blocking(f func()) {
	t.leavePoller()
	f()
}

// leavePoller continues the task on a goroutine of its own if a poller runs it.
func (t *Task) leavePoller() {
	if t != nil && t.onPoller {
		t.suspend(forGoroutine)
	}
}

// countRead counts a read, and leaves the poller at the last read that is allowed there.
func (t *Task) countRead() {
	if t.readsLeft--; t.readsLeft == 0 {
		t.leavePoller()
	}
}
