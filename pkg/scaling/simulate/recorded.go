package simulate

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/windlass-run/windlass/pkg/scaling"
)

// Recorded is the load of an app in a region in one step of time, as the control plane stored it. Numbers that are
// not known are nil or absent. Times are in seconds.
type Recorded struct {
	At   time.Time
	Span time.Duration
	// Rate is in requests a second. InFlight is the number of requests at instances, and Queued of requests that wait
	// at gateways. They are means of the step.
	Rate, InFlight, Queued *float64
	// Ready, Starting and Desired are numbers of replicas.
	Ready, Starting, Desired int
	// FirstToken and Latency are 95th percentiles.
	FirstToken, Latency *float64
	// Levels are means over ready replicas: "kvCache", "cpu", "memory", "queue", "models".
	Levels map[string]float64
	// Results are the values of Prometheus queries, by query.
	Results map[string]float64
}

// Replay is the result of RunRecorded.
type Replay struct {
	// Outcomes begin with the outcome of the replicas that really ran. Its Algorithm is "ran".
	Outcomes []Outcome
	// From is the beginning of the first step, and To is the end of the last step. Covered is the total time of the
	// steps with a known rate of requests.
	From, To time.Time
	Covered  time.Duration
	// Concurrency is how many requests a replica serves at a time in the simulation.
	Concurrency int
}

// LackError says that the recorded load has no value of a metric of the policy, by its index.
type LackError struct {
	Metric       int
	Message, Fix string
}

// Error returns the message and the fix.
func (e *LackError) Error() string { return e.Message + ": " + e.Fix }

// minCovered is the shortest recorded time that is simulated.
const minCovered = time.Minute

// RunRecorded plays the recorded load against the policy, and against each other algorithm that supports one of its
// metrics. The steps must be sorted by time. Requests take the time that was recorded: their number at instances,
// divided by their rate. Times between steps, and steps without a known rate, are left out.
//
// Model.Service is not used. If Model.Concurrency is 0, a replica serves as many requests at a time as replicas did on
// average in the busiest step. It serves the policy's target of requests in flight, if that is more.
//
// A level of a simulated replica is the recorded total divided by the number of simulated replicas. A time is the
// recorded time, in which the simulated wait replaces the recorded wait.
func RunRecorded(p *scaling.Policy, load []Recorded, m Model) (*Replay, error) {
	load = slices.DeleteFunc(slices.Clone(load), func(r Recorded) bool { return r.Rate == nil || r.Span <= 0 })
	out := &Replay{Concurrency: m.Concurrency}
	for _, r := range load {
		out.Covered += r.Span
	}
	if out.Covered < minCovered {
		return nil, fmt.Errorf("the stored load covers %s: wait until it covers %s, and check that a gateway is connected in the region, because gateways count the requests", out.Covered, minCovered)
	}
	if err := lackingMetric(p, load); err != nil {
		return nil, err
	}
	first, last := load[0], load[len(load)-1]
	out.From, out.To = first.At, last.At.Add(last.Span)
	if out.Concurrency == 0 {
		out.Concurrency = seenConcurrency(p, load)
	}
	m.Concurrency = out.Concurrency
	r := run{policy: p, initial: first.Desired, epoch: first.At, model: m}
	service := time.Second
	for i := range load {
		service = load[i].serviceTime(service)
		from := load[i].At.Sub(first.At)
		r.steps = append(r.steps, step{from: from, to: from + load[i].Span, rate: *load[i].Rate, service: service, recorded: &load[i]})
	}
	out.Outcomes = append([]Outcome{outcomeOfRun(load, m.Objective)}, runAll(r)...)
	return out, nil
}

// lackingMetric returns a LackError for the first metric of the policy that no step has.
func lackingMetric(p *scaling.Policy, load []Recorded) error {
	for i, m := range p.Metrics {
		has, fix := func(Recorded) bool { return true }, ""
		switch m.Type {
		case scaling.InFlight:
			has = func(r Recorded) bool { return r.InFlight != nil }
			fix = "connect a gateway, which counts requests"
		case scaling.KVCache, scaling.CPU, scaling.Memory, scaling.Models:
			has = func(r Recorded) bool { _, ok := r.Levels[string(m.Type)]; return ok }
			fix = "deploy the app with this metric and mode: advise, and simulate once it was measured"
		case scaling.Prometheus:
			has = func(r Recorded) bool { _, ok := r.Results[m.Query]; return ok }
			fix = "deploy the app with this query and mode: advise, and simulate once it was asked"
		case scaling.FirstToken, scaling.Latency:
			if m.Percentile != 95 {
				return &LackError{Metric: i, Message: fmt.Sprintf("the 95th percentile of %s is stored, not the %gth", m.Type, m.Percentile), Fix: "use percentile: 95"}
			}
			has = func(r Recorded) bool { return r.timeOf(m.Type) != nil }
			fix = "use another metric, such as inFlight, or send requests first"
		case scaling.RequestsPerSecond, scaling.Queue:
		}
		if !slices.ContainsFunc(load, has) {
			return &LackError{Metric: i, Message: fmt.Sprintf("the stored load has no value of %s", m.Type), Fix: fix}
		}
	}
	return nil
}

func (r *Recorded) timeOf(t scaling.MetricType) *float64 {
	if t == scaling.FirstToken {
		return r.FirstToken
	}
	return r.Latency
}

// servedRequests returns the number of requests that engines worked on. ok is false if it is not known.
func (r *Recorded) servedRequests() (n float64, ok bool) {
	if r.InFlight == nil {
		return 0, false
	}
	return max(*r.InFlight-r.Levels[string(scaling.Queue)]*float64(r.Ready), 0), true
}

// serviceTime returns the time that a request takes at instances. It returns before if the step does not have this time.
func (r *Recorded) serviceTime(before time.Duration) time.Duration {
	served, ok := r.servedRequests()
	if !ok || served == 0 || *r.Rate <= 0 {
		return before
	}
	return max(time.Duration(served / *r.Rate * float64(time.Second)), time.Millisecond)
}

// waitingRequests returns the number of requests that wait at gateways and in engines.
func (r *Recorded) waitingRequests() float64 {
	waiting := r.Levels[string(scaling.Queue)] * float64(r.Ready)
	if r.Queued != nil {
		waiting += *r.Queued
	}
	return waiting
}

// wait returns the mean time that requests of the step waited.
func (r *Recorded) wait() time.Duration {
	waiting := r.waitingRequests()
	switch {
	case waiting <= 0:
		return 0
	case *r.Rate <= 0:
		return r.Span
	}
	return time.Duration(waiting / *r.Rate * float64(time.Second))
}

// seenConcurrency returns the default of Model.Concurrency.
func seenConcurrency(p *scaling.Policy, load []Recorded) int {
	most := 1.0
	for _, m := range p.Metrics {
		if m.Type == scaling.InFlight {
			most = max(most, m.Target)
		}
	}
	for _, r := range load {
		if served, ok := r.servedRequests(); ok && r.Ready > 0 {
			most = max(most, served/float64(r.Ready))
		}
	}
	return int(math.Ceil(most))
}

// fillSample sets the levels, times and results of a simulated sample. wait is the simulated wait.
func (r *Recorded) fillSample(s *scaling.Sample, p *scaling.Policy, wait time.Duration) {
	if s.Ready > 0 {
		s.Levels = map[string]float64{}
		for name, v := range r.Levels {
			s.Levels[name] = v * float64(r.Ready) / float64(s.Ready)
		}
		if v, ok := s.Levels[string(scaling.KVCache)]; ok {
			s.Levels[string(scaling.KVCache)] = min(v, 1)
		}
		// The model has one queue, which is that of the gateways.
		s.Levels[string(scaling.Queue)] = 0
	}
	took := func(recorded *float64) time.Duration {
		return max(time.Duration(*recorded*float64(time.Second))-r.wait(), 0) + wait
	}
	if r.FirstToken != nil {
		s.FirstToken = oneTime(took(r.FirstToken))
	}
	if r.Latency != nil {
		s.Latency = oneTime(took(r.Latency))
	}
	s.Results = map[string]float64{}
	for _, m := range p.Metrics {
		v, ok := r.Results[m.Query]
		if m.Type != scaling.Prometheus || !ok {
			continue
		}
		if !m.Total {
			v *= float64(r.Ready) / float64(max(s.Ready, 1))
		}
		s.Results[m.Query] = v
	}
}

// outcomeOfRun returns the outcome of the replicas that really ran. Each step has one wait, the mean of its requests. So a peak
// that is shorter than a step may not show.
func outcomeOfRun(load []Recorded, objective time.Duration) Outcome {
	out := Outcome{Algorithm: "ran"}
	over, longest, now := 0.0, time.Duration(0), -1
	for _, r := range load {
		requests, wait := *r.Rate*r.Span.Seconds(), r.wait()
		out.Requests += requests
		longest = max(longest, wait)
		if wait > objective {
			over += requests
		}
		out.ReplicaHours += float64(r.Ready+r.Starting) * r.Span.Hours()
		out.Peak = max(out.Peak, r.Desired)
		if r.Desired != now {
			now = r.Desired
			out.addNumber(r.At.Sub(load[0].At), now)
		}
	}
	out.LongestWait = longest.Seconds()
	if out.Requests > 0 {
		out.OverObjective = over / out.Requests
	}
	return out
}
