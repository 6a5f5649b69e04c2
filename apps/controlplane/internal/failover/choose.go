package failover

import "time"

const (
	// failuresUntilDown is how many checks in a row must fail before an address counts as down. One lost packet
	// or one slow answer is no reason to leave a server.
	failuresUntilDown = 3
	// settleTime is how long an address must be up before it is used again instead of a later address. A server
	// that starts and fails repeatedly then moves no traffic.
	settleTime = 30 * time.Second
)

// health is what is known about one address. Its zero value means that nothing is known.
type health struct {
	failures int
	// upSince is the time of the first success after the last failure. Zero: the address is not known to be up.
	upSince time.Time
	err     error
}

// observe records the result of a check.
func (h *health) observe(err error, now time.Time) {
	if h.err = err; err == nil {
		h.failures = 0
		if h.upSince.IsZero() {
			h.upSince = now
		}
		return
	}
	if h.failures++; h.failures >= failuresUntilDown {
		h.upSince = time.Time{}
	}
}

// markDown records a failure that needs no second check.
func (h *health) markDown(err error) {
	h.err, h.failures, h.upSince = err, max(h.failures+1, failuresUntilDown), time.Time{}
}

func (h *health) isUp() bool { return !h.upSince.IsZero() }

// isDown reports whether the address is known to be down. An address about which nothing is known is neither up nor
// down.
func (h *health) isDown() bool { return h.failures >= failuresUntilDown }

// These are the reasons of a switch.
const (
	reasonDown      = "down"
	reasonPreferred = "preferred"
)

// chooseAddress returns the index of the address to use, and the reason if it differs from current. The first address
// is preferred, so that all processes with the same list use the same server: mayReturn reports whether an earlier
// address may be used again while the current one is up. Without an address that is up, it returns current.
func chooseAddress(all []health, current int, mayReturn func(i int) bool, now time.Time) (next int, reason string) {
	if all[current].isDown() {
		for i := range all {
			if all[i].isUp() {
				return i, reasonDown
			}
		}
		return current, ""
	}
	for i := range all[:current] {
		if all[i].isUp() && now.Sub(all[i].upSince) >= settleTime && mayReturn(i) {
			return i, reasonPreferred
		}
	}
	return current, ""
}
