package scaling

import "time"

// slots is how many parts of a window peaks tells apart.
const slots = 30

// peaks keeps the most that was wanted in each part of a window, so that its memory is bounded. It is a value:
// a copy is independent.
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

// add notes what is wanted at a time that is not before that of earlier calls. A new window begins with the
// replicas that there are.
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

// most returns the highest number within the window, and when it may expire.
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
