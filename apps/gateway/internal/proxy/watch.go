package proxy

import (
	"sync"
	"time"
)

// watch limits the time until the header of an instance's answer. It stops while the gateway waits for a part of the
// request's body, because then the client is slow. It starts again with each part.
type watch struct {
	limit time.Duration

	mu    sync.Mutex
	timer *time.Timer
	// since is when the watch was last started. Zero: it is stopped.
	since time.Time
	over  bool
}

// startWatch calls late once limit has passed.
func startWatch(limit time.Duration, late func()) *watch {
	return &watch{limit: limit, timer: time.AfterFunc(limit, late), since: time.Now()}
}

func (w *watch) pauseWatch() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.timer.Stop()
		w.since = time.Time{}
	}
}

func (w *watch) resumeWatch() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.timer.Reset(w.limit)
		w.since = time.Now()
	}
}

// endWatch stops the watch, and returns how long the instance was silent. 0: the watch waited for the client.
func (w *watch) endWatch() (silent time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
	if w.since.IsZero() {
		return 0
	}
	return time.Since(w.since)
}
