package balance

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/orca"
)

// Weighted takes instances in turn, and those that do more work more often. What work one does it
// says itself, by ORCA, or is what meter sees of it.
//
// The turns are a static stride schedule, as gRPC's clients have it: a number that grows tells the
// instance that has the turn, and the round. It takes part in as many of stride rounds as its
// weight says, spread evenly over them. So nothing is locked or allocated for a choice, which takes
// as many steps as the mean goes into the largest weight; equal weights are round robin; and
// instances that are left out, because they are ejected or were tried, change nothing of the others.
var Weighted = register("weighted", func() Strategy { return &weighted{} })

const (
	// weighEvery is how often weights are made anew, as gRFC A58 has it: instances say and show
	// anything new less often, and the sums of a hundred of them take microseconds.
	weighEvery = time.Second
	// stride is the rounds in which the largest weight has all its turns.
	stride = math.MaxUint16
	// spread bounds how many times as much as another an instance gets. GPUs of one version
	// differ by less; and who is thought to be a hundred times as slow has to get requests, to
	// show when he no longer is.
	spread = 10
)

type weighted struct {
	turn atomic.Uint64
	// weighed is when, in nanoseconds of Unix.
	weighed atomic.Int64
	// scale turns the largest weight into stride; 0: all are equal. mean is of those that have a
	// weight, for those that have none. Both are bits of floats.
	scale, mean atomic.Uint64
	// answer is what one took on average at the last look.
	answer atomic.Int64
}

func (s *weighted) Pick(candidates []*Endpoint, req Request) int {
	s.weigh(candidates, req)
	n := uint64(len(candidates))
	scale := math.Float64frombits(s.scale.Load())
	if scale == 0 {
		return int(s.turn.Add(1) % n)
	}
	for {
		turn := s.turn.Add(1)
		i, round := turn%n, turn/n
		weight := candidates[i].weight()
		if weight == 0 {
			weight = math.Float64frombits(s.mean.Load())
		}
		// It may be of a look that saw others than the last one did.
		w := uint64(min(max(weight*scale, stride/spread), stride))
		// Every second one begins half way, so that not all that are light sit out the same rounds.
		if (w*round+i*(stride/2))%stride >= stride-w {
			return int(i)
		}
	}
}

// weigh makes weights anew, if it is time: one of those who choose does it for all.
func (s *weighted) weigh(candidates []*Endpoint, req Request) {
	now, before := req.Now.UnixNano(), s.weighed.Load()
	if since := now - before; since >= 0 && since < int64(weighEvery) || !s.weighed.CompareAndSwap(before, now) {
		return // a clock that was set back is followed
	}
	if before == 0 {
		s.turn.Store(req.Random >> 32) // gateways that start together do not march in step
	}
	memory := min(max(memoryAnswers*time.Duration(s.answer.Load()), leastMemory), mostMemory)
	all := make([]estimate, len(candidates))
	for i, c := range candidates {
		all[i] = c.metered().estimate(req.Now, memory)
	}
	s.answer.Store(int64(meanOf(all) * float64(time.Second)))
	made := weights(all)
	for i, w := range made {
		candidates[i].metered().weight.Store(math.Float64bits(w))
	}
	s.compare(made)
}

// compare weights, as they are from now on.
func (s *weighted) compare(weights []float64) {
	mean, largest, known := compared(weights)
	if known < 2 { // nothing to compare
		s.scale.Store(0)
		return
	}
	s.mean.Store(math.Float64bits(mean))
	s.scale.Store(math.Float64bits(stride / largest))
}

// compared are the mean and the largest of the weights that are known, and how many that is.
func compared(weights []float64) (mean, largest float64, known int) {
	for _, w := range weights {
		if w > 0 {
			mean, largest, known = mean+w, max(largest, w), known+1
		}
	}
	return mean / float64(max(known, 1)), largest, known
}

func (s *weighted) Began(e *Endpoint, now time.Time) { e.metered().begin(now) }

func (s *weighted) Ended(e *Endpoint, now time.Time, how Outcome) { e.metered().end(now, how) }

func (s *weighted) Reported(e *Endpoint, now time.Time, load orca.Load, failed bool) {
	e.metered().report(now, load, failed)
}

// Parts that instances of a weighted deployment have of its requests, for people: 1 is the mean.
func Parts(all []*Endpoint) []float64 {
	out := make([]float64, len(all))
	for i, e := range all {
		out[i] = e.weight()
	}
	mean, largest, known := compared(out)
	total := 0.0
	for i, w := range out {
		switch {
		case known < 2:
			out[i] = 1
		case w == 0:
			out[i] = mean
		default:
			out[i] = max(w, largest/spread)
		}
		total += out[i]
	}
	for i := range out {
		out[i] *= float64(len(all)) / total
	}
	return out
}

// weights of instances, relative to each other; 0: nothing is known.
func weights(all []estimate) []float64 {
	out := make([]float64, len(all))
	said := 0
	for i := range all {
		if all[i].said > 0 {
			said++
		}
	}
	if said >= 2 { // what is said and what is seen have no common measure
		for i := range all {
			out[i] = all[i].said
		}
		return out
	}
	if mean := meanOf(all); mean > 0 {
		for i := range all {
			e := &all[i]
			out[i] = (e.done + prior) / (e.busy + (prior+e.failed*penalty)*mean)
		}
	}
	return out
}

// meanOf is the seconds that an answer takes in the mean of all; 0: too few are remembered.
func meanOf(all []estimate) float64 {
	done, busy := 0.0, 0.0
	for i := range all {
		done, busy = done+all[i].done, busy+all[i].busy
	}
	if done < 1 {
		return 0
	}
	return busy / done
}
