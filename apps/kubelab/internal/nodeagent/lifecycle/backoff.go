package lifecycle

import "time"

// Backoff is the wait before a container runs again or an image is pulled again. The wait doubles from Base
// to Max.
type Backoff struct{ Base, Max time.Duration }

// delay is one container's position in a Backoff.
//
// It works like the kubelet's. A container starts again at once after its first failure. Waits begin with the
// second failure, and end after twice Max without a failure. A pull waits after its first failure, too.
type delay struct {
	current time.Duration
	grownAt time.Time
}

// nextAttempt returns when the next attempt after a failure at failedAt may begin, and the wait until then.
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
