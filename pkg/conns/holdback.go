package conns

import (
	"math"
	"net/netip"
	"time"
)

const (
	// mostFaults is how many faults an address may have at once, and in each faultWindow after that.
	mostFaults  = 256
	faultWindow = time.Minute
	// An address that has more is held back for firstHold, which doubles each time up to longestHold. It is forgotten
	// once it had no fault for longestHold.
	firstHold, longestHold = time.Minute, 16 * time.Minute
	// mostAtFault is how many addresses are kept.
	mostAtFault = 16 << 10
)

// faults are those of an address, see Entry.Fault. The address is the one that addressOf returns. An
// exempt address includes the port, so that it stands for one connection.
type faults struct {
	level float64   // number of faults that are not forgiven yet
	at    time.Time // of the last fault
	hold  time.Duration
	until time.Time
}

// holdback holds back addresses with too many faults. Its methods take the time from the caller.
type holdback map[netip.AddrPort]*faults

// charge counts a fault, and reports whether the address has too many.
func (h holdback) charge(address netip.AddrPort, now time.Time) bool {
	f := h[address]
	if f == nil {
		if len(h) >= mostAtFault {
			h.forget(now)
		}
		f = &faults{at: now}
		h[address] = f
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

// holds reports whether the address is held back.
func (h holdback) holds(address netip.AddrPort, now time.Time) bool {
	f := h[address]
	return f != nil && now.Before(f.until)
}

// forget removes addresses whose faults are past. When there are none, it removes the one with the oldest last fault.
func (h holdback) forget(now time.Time) {
	var oldest netip.AddrPort
	age := time.Duration(math.MinInt64)
	for address, f := range h {
		if since := now.Sub(f.at); since > age {
			oldest, age = address, since
		}
		if now.Sub(f.at) > longestHold && !now.Before(f.until) {
			delete(h, address)
		}
	}
	if len(h) >= mostAtFault {
		delete(h, oldest)
	}
}
