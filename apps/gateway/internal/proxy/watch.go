package proxy

import (
	"sync"
	"time"
)

// watch is the time that an instance has until the header of its answer. It stands still while a part of
// the request's body is waited for, and starts anew with each part: it is the client who sends slowly.
type watch struct {
	limit time.Duration

	mu    sync.Mutex
	timer *time.Timer
	// since is when it was started last; zero: it stands still.
	since time.Time
	over  bool
}

// startWatch calls late once limit has passed.
func startWatch(limit time.Duration, late func()) *watch {
	return &watch{limit: limit, timer: time.AfterFunc(limit, late), since: time.Now()}
}

func (w *watch) pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.timer.Stop()
		w.since = time.Time{}
	}
}

func (w *watch) resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.timer.Reset(w.limit)
		w.since = time.Now()
	}
}

// end returns how long the instance had been silent; 0: it waited for the client.
func (w *watch) end() (silent time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
	if w.since.IsZero() {
		return 0
	}
	return time.Since(w.since)
}
