package scaling

import "time"

// windowParts is the number of parts into which peaks divides a window.
const windowParts = 30

// peaks keeps the highest wanted number of replicas in each part of a window, in bounded memory. A copy is
// independent of the original.
type peaks struct {
	window time.Duration
	parts  [windowParts + 1]part
}

type part struct {
	// index is the number of the part, counted from the Unix epoch.
	index   int64
	highest int
}

// partLength returns the length of a part.
func (p *peaks) partLength() time.Duration { return max(p.window/windowParts, time.Millisecond) }

// add records the number of replicas that is wanted now. now must not be earlier than in the calls before. If the
// length of the window changed, add forgets earlier numbers, and records at least desired.
func (p *peaks) add(now time.Time, wanted, desired int, window time.Duration) {
	if p.window != window {
		*p, wanted = peaks{window: window}, max(wanted, desired)
	}
	index := now.UnixNano() / int64(p.partLength())
	current := &p.parts[index%int64(len(p.parts))]
	if current.index != index {
		*current = part{index: index}
	}
	current.highest = max(current.highest, wanted)
}

// highestIn returns the highest number within the window, and the time at which that number leaves the window.
func (p *peaks) highestIn(now time.Time) (number int, expires time.Time) {
	length := int64(p.partLength())
	current := now.UnixNano() / length
	for _, old := range p.parts {
		if old.index == 0 || current-old.index > windowParts {
			continue
		}
		end := time.Unix(0, (old.index+windowParts+1)*length)
		if old.highest > number || old.highest == number && end.After(expires) {
			number, expires = old.highest, end
		}
	}
	return number, expires
}
