package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// mend undoes a fault.
type mend struct {
	name string
	at   time.Time
	do   func(context.Context) error
}

// mendTimeout is long enough for the start of a database that has to recover.
const mendTimeout = 2 * time.Minute

// breakAtRandom breaks things at random for a while and mends each in its time. Then it mends the rest. It returns the
// number of faults by kind.
func (s *injector) breakAtRandom(ctx context.Context, rnd *rand.Rand, duration, rest time.Duration) (map[string]int, error) {
	faults := s.possibleFaults()
	total := 0
	for _, b := range faults {
		total += b.weight
	}
	counts := map[string]int{}
	mends := map[string]mend{} // by target
	var failed error
	deadline := time.Now().Add(duration)
	for time.Now().Before(deadline) && ctx.Err() == nil && failed == nil {
		failed = s.mendDue(ctx, mends, time.Now())
		pick, wait := rnd.IntN(total), time.Duration(rnd.Float64()*float64(rest))
		i := 0
		for ; pick >= faults[i].weight; i++ {
			pick -= faults[i].weight
		}
		b := faults[i]
		target := b.target(rnd)
		if _, ok := mends[target]; !ok && failed == nil {
			failed = s.breakPart(ctx, rnd, b, target, counts, mends)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	// Everything is mended, whatever ended the faults.
	healing, cancel := context.WithTimeout(context.WithoutCancel(ctx), mendTimeout)
	defer cancel()
	return counts, errors.Join(failed, s.mendDue(healing, mends, time.Now().Add(time.Hour)))
}

func (s *injector) breakPart(ctx context.Context, rnd *rand.Rand, b fault, target string, counts map[string]int, mends map[string]mend) error {
	name := b.name + " " + target
	s.history.add(event{part: "fault", region: s.regionOf(target), text: name})
	ctx, cancel := context.WithTimeout(ctx, mendTimeout)
	defer cancel()
	undo, after, err := b.hit(ctx, rnd, target)
	if undo != nil {
		mends[target] = mend{name, time.Now().Add(after), undo}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	counts[b.name+" "+kindOf(target)]++
	return nil
}

// mendDue mends what is due by a time, in the order of due times: a database before parts that were broken
// later.
func (s *injector) mendDue(ctx context.Context, mends map[string]mend, by time.Time) error {
	targets := slices.SortedFunc(maps.Keys(mends), func(a, b string) int { return mends[a].at.Compare(mends[b].at) })
	var err error
	for _, target := range targets {
		m := mends[target]
		if m.at.After(by) {
			continue
		}
		delete(mends, target)
		bounded, cancel := context.WithTimeout(ctx, mendTimeout)
		failed := m.do(bounded)
		cancel()
		if failed != nil && ctx.Err() == nil {
			err = errors.Join(err, fmt.Errorf("mend after: %s: %w", m.name, failed))
		}
		s.history.add(event{part: "mended", region: s.regionOf(target), text: m.name})
	}
	return err
}

// regionOf returns the only region that a target's fault affects, or "" if it affects more.
func (s *injector) regionOf(target string) string {
	region, _, _ := strings.Cut(target, "/") // of a link
	if slices.Contains(s.w.Regions, region) {
		return region
	}
	return ""
}

// kindOf returns the name under which targets of the same kind are counted.
func kindOf(target string) string {
	for i := range len(target) {
		if target[i] >= '0' && target[i] <= '9' {
			j := i
			for j < len(target) && target[j] >= '0' && target[j] <= '9' {
				j++
			}
			return target[:i] + "N" + target[j:]
		}
	}
	return target
}
