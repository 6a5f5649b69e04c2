package balance

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/orca"
)

// Weighted chooses instances in turn, and instances that do more work more often. An instance's weight
// is the work that it reports by ORCA or, without reports, the work that its meter measures.
//
// The schedule is the static stride schedule of gRPC's clients. A counter determines the instance whose turn it is
// and the round. Of every stride rounds, an instance takes part in a number that is proportional to its weight. These
// rounds are spread evenly. The schedule has these properties:
//   - A choice neither locks nor allocates. Its mean number of steps is the largest weight divided
//     by the mean weight.
//   - With equal weights it is round robin.
//   - Candidates that are missing, because they are ejected or were tried, do not change the
//     ratios of the other instances.
var Weighted = registerStrategy("weighted", func() Strategy { return &weighted{} })

const (
	// updateInterval is how often weights are updated. It is gRFC A58's default: an update is
	// cheap, and measurements change no faster.
	updateInterval = time.Second
	// stride is the number of rounds after which the schedule repeats. The instance with the
	// largest weight takes part in all of them.
	stride = math.MaxUint16
	// maxRatio bounds the ratio of the largest weight to the smallest. GPUs of one version differ
	// by less. An instance that seems slower still has to get requests, to show when it recovers.
	maxRatio = 10
)

type weighted struct {
	turn atomic.Uint64
	// updated is when the weights were last updated, in Unix nanoseconds.
	updated atomic.Int64
	// scale is stride divided by the largest weight; 0: all weights are equal. mean is the mean of
	// the known weights, for instances whose weight is unknown. Both are bits of floats.
	scale, mean atomic.Uint64
	// meanAnswer is the mean time of an answer at the last update, in nanoseconds.
	meanAnswer atomic.Int64
}

func (s *weighted) Pick(candidates []*Endpoint, req Request) int {
	s.updateWeights(candidates, req)
	n := uint64(len(candidates))
	scale := math.Float64frombits(s.scale.Load())
	if scale == 0 {
		return int(s.turn.Add(1) % n)
	}
	for {
		turn := s.turn.Add(1)
		i, round := turn%n, turn/n
		weight := candidates[i].currentWeight()
		if weight == 0 {
			weight = math.Float64frombits(s.mean.Load())
		}
		// Clamped, because the weight can be from an update with other candidates than the last one.
		w := uint64(min(max(weight*scale, stride/maxRatio), stride))
		// The offset of every second instance keeps light instances from all skipping the same rounds.
		if (w*round+i*(stride/2))%stride >= stride-w {
			return int(i)
		}
	}
}

// updateWeights updates the weights if updateInterval has passed. One of the concurrent callers does it.
func (s *weighted) updateWeights(candidates []*Endpoint, req Request) {
	now, before := req.Now.UnixNano(), s.updated.Load()
	if since := now - before; since >= 0 && since < int64(updateInterval) || !s.updated.CompareAndSwap(before, now) {
		return // a negative since, after the clock was set back, updates too
	}
	if before == 0 {
		s.turn.Store(req.Random >> 32) // so that gateways do not all begin with the same instance
	}
	memory := min(max(memoryAnswers*time.Duration(s.meanAnswer.Load()), minMemory), maxMemory)
	all := make([]estimate, len(candidates))
	for i, c := range candidates {
		all[i] = c.ensureMeter().estimateAt(req.Now, memory)
	}
	s.meanAnswer.Store(int64(meanOf(all) * float64(time.Second)))
	updated := relativeWeights(all)
	for i, w := range updated {
		candidates[i].ensureMeter().weight.Store(math.Float64bits(w))
	}
	s.setScale(updated)
}

// setScale derives scale and mean from the weights.
func (s *weighted) setScale(weights []float64) {
	mean, largest, known := summarizeWeights(weights)
	if known < 2 { // nothing to compare
		s.scale.Store(0)
		return
	}
	s.mean.Store(math.Float64bits(mean))
	s.scale.Store(math.Float64bits(stride / largest))
}

// summarizeWeights returns the mean, the largest and the number of the known weights.
func summarizeWeights(weights []float64) (mean, largest float64, known int) {
	for _, w := range weights {
		if w > 0 {
			mean, largest, known = mean+w, max(largest, w), known+1
		}
	}
	return mean / float64(max(known, 1)), largest, known
}

func (s *weighted) Began(e *Endpoint, now time.Time) { e.ensureMeter().begin(now) }

func (s *weighted) Ended(e *Endpoint, now time.Time, how Outcome) {
	e.ensureMeter().endRequest(now, how)
}

func (s *weighted) Reported(e *Endpoint, now time.Time, load orca.Load, failed bool) {
	e.ensureMeter().keepReport(now, load, failed)
}

// RelativeShares returns each instance's share of the requests of a weighted deployment, relative to
// the mean share, which is 1. People read it; Pick does not use it.
func RelativeShares(all []*Endpoint) []float64 {
	out := make([]float64, len(all))
	for i, e := range all {
		out[i] = e.currentWeight()
	}
	mean, largest, known := summarizeWeights(out)
	total := 0.0
	for i, w := range out {
		switch {
		case known < 2:
			out[i] = 1
		case w == 0:
			out[i] = mean
		default:
			out[i] = max(w, largest/maxRatio)
		}
		total += out[i]
	}
	for i := range out {
		out[i] *= float64(len(all)) / total
	}
	return out
}

// relativeWeights returns the relative weights of instances, 0 where unknown.
func relativeWeights(all []estimate) []float64 {
	out := make([]float64, len(all))
	reported := 0
	for i := range all {
		if all[i].reported > 0 {
			reported++
		}
	}
	if reported >= 2 { // reported and measured weights have different units, so they cannot be mixed
		for i := range all {
			out[i] = all[i].reported
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

// meanOf returns the mean time of an answer over all instances, in seconds. 0: too few answers remain
// after the fading.
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
