package scaling

import (
	"time"

	"github.com/windlass-run/windlass/pkg/histogram"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// SampleOf adds up the load of the deployments whose ids are in counts. at is the time of the deciding process's clock at
// which it received the load.
func SampleOf(load *agentv1.LoadReport, counts map[string]bool, at time.Time) Sample {
	s := Sample{At: at, Queued: load.Queued, Levels: map[string]float64{}}
	inFlight, rate, isReported := 0.0, 0.0, false
	knowsInFlight, knowsRate := true, true
	weights := map[string]float64{}
	for _, d := range load.GetDeployments() {
		if !counts[d.GetDeploymentId()] {
			continue
		}
		isReported = true
		s.Ready, s.Starting = s.Ready+int(d.GetReady()), s.Starting+int(d.GetStarting())
		knowsInFlight, knowsRate = knowsInFlight && d.InFlight != nil, knowsRate && d.Rate != nil
		inFlight, rate = inFlight+d.GetInFlight(), rate+d.GetRate()
		addLevels(s.Levels, weights, d.GetLevels(), d.GetReady())
		s.FirstToken, s.Latency = addTimes(s.FirstToken, d.GetFirstToken()), addTimes(s.Latency, d.GetLatency())
	}
	meanLevels(s.Levels, weights)
	if isReported && knowsInFlight {
		s.InFlight = &inFlight
	}
	if isReported && knowsRate {
		s.Rate = &rate
	}
	return s
}

// RoleSampleOf is SampleOf for a role of a pool. Gateways measure the whole pool, not each role. ok is false if the
// agent does not report roles.
func RoleSampleOf(load *agentv1.LoadReport, counts map[string]bool, role string, at time.Time) (s Sample, ok bool) {
	s = SampleOf(load, counts, at)
	s.Ready, s.Starting, s.Levels = 0, 0, map[string]float64{}
	weights := map[string]float64{}
	for _, d := range load.GetDeployments() {
		if !counts[d.GetDeploymentId()] {
			continue
		}
		for _, r := range d.GetRoles() {
			if r.GetRole() != role {
				continue
			}
			ok = true
			s.Ready, s.Starting = s.Ready+int(r.GetReady()), s.Starting+int(r.GetStarting())
			addLevels(s.Levels, weights, r.GetLevels(), r.GetReady())
		}
	}
	meanLevels(s.Levels, weights)
	return s, ok
}

// addLevels adds the levels of ready instances to sums, and the instances to weights. meanLevels divides the sums.
func addLevels(sums, weights, levels map[string]float64, ready int32) {
	for name, v := range levels {
		sums[name] += v * float64(ready)
		weights[name] += float64(ready)
	}
}

// meanLevels divides the sums of addLevels by their weights. A level without ready instances is not known.
func meanLevels(sums, weights map[string]float64) {
	for name, weight := range weights {
		if sums[name] /= weight; weight == 0 {
			delete(sums, name)
		}
	}
}

// addTimes adds packed counts to a sum, which is nil while nothing was added.
func addTimes(to *histogram.Counts, packed []uint64) *histogram.Counts {
	if len(packed) == 0 {
		return to
	}
	if to == nil {
		to = &histogram.Counts{}
	}
	more := histogram.Unpack(packed)
	to.Add(&more)
	return to
}
