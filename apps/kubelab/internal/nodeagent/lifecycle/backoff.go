package lifecycle

import "time"

// Backoff bounds the wait before a container is run again or an image is pulled
// again. It doubles from Base to Max.
type Backoff struct{ Base, Max time.Duration }

// delay is one container's position in a Backoff.
//
// As the kubelet does it: the first failure is answered at once, the wait begins with the
// second, and a container that ran without trouble for twice Max starts afresh.
type delay struct {
	current time.Duration
	grownAt time.Time
}

// nextAttempt returns when the next attempt may begin, after a failure at the given
// time, and how long a wait that is.
func (d *delay) nextAttempt(b Backoff, failedAt time.Time) (time.Time, time.Duration) {
	if d.current == 0 || failedAt.Sub(d.grownAt) > 2*b.Max {
		d.current = 0
		return failedAt, 0
	}
	return failedAt.Add(d.current), d.current
}

// grow is called when the next attempt begins.
func (d *delay) grow(b Backoff, now time.Time) {
	d.current = min(max(2*d.current, b.Base), b.Max)
	d.grownAt = now
}
