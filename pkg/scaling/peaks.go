package scaling

import "time"

// slots is how many parts peaks divides a window into.
const slots = 30

// peaks keeps the highest number wanted in each part of a window, in bounded memory. A copy is independent.
type peaks struct {
	window time.Duration
	parts  [slots + 1]part
}

type part struct {
	// at is the number of the part since the epoch.
	at   int64
	most int
}

func (p *peaks) width() time.Duration { return max(p.window/slots, time.Millisecond) }

// add records the number wanted now. Calls must come in the order of time. A window with another length begins
// empty, and its first number is at least desired.
func (p *peaks) add(now time.Time, wanted, desired int, window time.Duration) {
	if p.window != window {
		*p, wanted = peaks{window: window}, max(wanted, desired)
	}
	at := now.UnixNano() / int64(p.width())
	slot := &p.parts[at%int64(len(p.parts))]
	if slot.at != at {
		*slot = part{at: at}
	}
	slot.most = max(slot.most, wanted)
}

// most returns the highest number within the window, and when that number leaves the window.
func (p *peaks) most(now time.Time) (most int, expires time.Time) {
	width := int64(p.width())
	current := now.UnixNano() / width
	for _, slot := range p.parts {
		if slot.at == 0 || current-slot.at > slots {
			continue
		}
		end := time.Unix(0, (slot.at+slots+1)*width)
		if slot.most > most || slot.most == most && end.After(expires) {
			most, expires = slot.most, end
		}
	}
	return most, expires
}
