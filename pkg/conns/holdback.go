package conns

import (
	"math"
	"time"
)

const (
	// mostFaults is how many faults an address or a caller may have at once. Each faultWindow forgives as many.
	mostFaults  = 256
	faultWindow = time.Minute
	// An address or caller with more faults is held back for firstHold. Each further hold is twice as long, up to
	// longestHold. After longestHold without a fault, the next hold is firstHold again.
	firstHold, longestHold = time.Minute, 16 * time.Minute
	// mostAtFault is the maximum number of addresses that are remembered, and also of callers.
	mostAtFault = 16 << 10
)

// faults are the faults of an address (see Entry.Fault) or of a caller (see Entry.Refused).
type faults struct {
	level float64   // the number of faults that are not forgiven yet
	at    time.Time // when the last fault came
	hold  time.Duration
	until time.Time
}

// holdback holds back the addresses or callers with too many faults. The time is an argument of its methods.
type holdback[K comparable] map[K]*faults

// chargeFault counts a fault of k, and reports whether k has too many faults.
func (h holdback[K]) chargeFault(k K, now time.Time) bool {
	f := h[k]
	if f == nil {
		if len(h) >= mostAtFault {
			h.forgetOld(now)
		}
		f = &faults{at: now}
		h[k] = f
	}
	since := now.Sub(f.at)
	f.at = now
	if now.Before(f.until) {
		return true
	}
	if since > longestHold {
		f.hold = 0
	}
	if f.level = max(f.level-mostFaults*float64(since)/float64(faultWindow), 0) + 1; f.level <= mostFaults {
		return false
	}
	f.hold = min(max(2*f.hold, firstHold), longestHold)
	f.level, f.until = 0, now.Add(f.hold)
	return true
}

// isHeldBack reports whether k is held back.
func (h holdback[K]) isHeldBack(k K, now time.Time) bool {
	f := h[k]
	return f != nil && now.Before(f.until)
}

// forgetOld removes the keys whose last fault was longer ago than longestHold and that are not held back. If that makes no
// room, it removes the key whose last fault is the oldest.
func (h holdback[K]) forgetOld(now time.Time) {
	var oldest K
	age := time.Duration(math.MinInt64)
	for k, f := range h {
		if since := now.Sub(f.at); since > age {
			oldest, age = k, since
		}
		if now.Sub(f.at) > longestHold && !now.Before(f.until) {
			delete(h, k)
		}
	}
	if len(h) >= mostAtFault {
		delete(h, oldest)
	}
}
