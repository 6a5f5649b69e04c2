// Package simulate plays a trace of requests, or the recorded load of an app, against a scaling policy, and against
// the published algorithms of the Kubernetes HorizontalPodAutoscaler and of Knative's autoscaler. It is pure: the same
// input gives the same output.
//
// The model counts requests as real numbers, in ticks of one second. A replica serves Model.Concurrency
// requests at a time. Each request takes Model.Service, or the time that was recorded. Further requests wait in
// one queue without a limit. A new replica becomes ready after Model.Start. A removed replica stops at once.
// Nothing fails.
package simulate

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/windlass-run/windlass/pkg/histogram"
	"github.com/windlass-run/windlass/pkg/scaling"
)

// Point is one point of a trace. Its rate holds until the next point.
type Point struct {
	At time.Duration
	// Rate is in requests a second.
	Rate float64
}

// Model describes the simulated app.
type Model struct {
	// Start is the time that a new replica takes to become ready.
	Start time.Duration
	// Service is the time that a request takes, without its time in the queue.
	Service time.Duration
	// Concurrency is how many requests a replica serves at a time.
	Concurrency int
	// Objective is the time that a request may wait.
	Objective time.Duration
}

// Outcome is the result of one algorithm.
type Outcome struct {
	Algorithm string `json:"algorithm"`
	// ReplicaHours include replicas that are starting.
	ReplicaHours float64 `json:"replicaHours"`
	// OverObjective is the share of requests that waited longer than the objective, 0 to 1.
	OverObjective float64 `json:"overObjective"`
	// LongestWait is in seconds.
	LongestWait float64 `json:"longestWaitSeconds"`
	Peak        int     `json:"peakReplicas"`
	// Turns counts how often the direction changed: from growing to shrinking, or from shrinking to growing.
	Turns    int     `json:"turns"`
	Requests float64 `json:"requests"`
	// Numbers are the wanted numbers of replicas. Each number holds until the next number.
	Numbers []Number `json:"numbers"`

	// direction is 1 after a number that grew, -1 after one that shrank.
	direction int
}

// Number is a wanted number of replicas, and the time from which it holds.
type Number struct {
	Seconds  int `json:"seconds"`
	Replicas int `json:"replicas"`
}

// scaler is one algorithm. wanted is called in every tick. It returns the number of replicas that the app should
// have.
type scaler interface {
	wanted(now time.Duration, s scaling.Sample, desired int) int
}

// Run plays the trace against the policy, and then against each algorithm that supports one of its metrics.
func Run(p *scaling.Policy, trace []Point, m Model) ([]Outcome, error) {
	switch {
	case len(trace) < 2:
		return nil, errors.New("the trace has fewer than two points: use two or more, because the last point is the end")
	case m.Concurrency < 1 || m.Service <= 0:
		return nil, errors.New("concurrency and service must be above 0")
	}
	for i, point := range trace {
		if i > 0 && point.At <= trace[i-1].At {
			return nil, fmt.Errorf("point %d of the trace is not later than the point before it", i+1)
		}
		if point.Rate < 0 || math.IsNaN(point.Rate) || math.IsInf(point.Rate, 0) {
			return nil, fmt.Errorf("point %d of the trace has a rate that is not a number of 0 or more", i+1)
		}
	}
	steps := make([]step, len(trace)-1)
	for i := range steps {
		steps[i] = step{from: trace[i].At, to: trace[i+1].At, rate: trace[i].Rate, service: m.Service}
	}
	return runAll(run{policy: p, steps: steps, initial: p.Initial, epoch: epoch, model: m}), nil
}

// run is the input of a simulation.
type run struct {
	policy  *scaling.Policy
	steps   []step
	initial int
	// epoch is the time from which the times of steps count.
	epoch time.Time
	model Model
}

// step is a time with one rate of requests. The time from one step to the next one is left out.
type step struct {
	from, to time.Duration
	rate     float64
	service  time.Duration
	// recorded is what was recorded in the step, nil for a trace.
	recorded *Recorded
}

// runAll runs the simulation with each algorithm that supports a metric of the policy.
func runAll(r run) []Outcome {
	p := r.policy
	out := []Outcome{runAlgorithm("windlass", &decider{policy: p, epoch: r.epoch}, r)}
	if h := newHPA(p); h != nil {
		out = append(out, runAlgorithm("hpa", h, r))
	}
	if k := newKPA(p); k != nil {
		out = append(out, runAlgorithm("kpa", k, r))
	}
	return out
}

// tick is the step of simulated time.
const tick = time.Second

// runAlgorithm runs the simulation with one algorithm.
func runAlgorithm(name string, by scaler, r run) Outcome {
	out := Outcome{Algorithm: name}
	w := &simulatedApp{policy: r.policy, model: r.model, epoch: r.epoch, ready: r.initial}
	desired, over, now := r.initial, 0.0, r.steps[0].from
	out.addNumber(0, desired)
	for _, at := range r.steps {
		if at.from > now {
			w.waitedUntil(now, &over)
			w.skipTo(at)
			now = at.from
		}
		for w.step = at; now < at.to; now += tick {
			out.Requests += at.rate * tick.Seconds()
			over += w.runTick(now, at.rate)
			if n := by.wanted(now, w.sampleAt(now), desired); n != desired {
				desired = n
				w.resizeTo(now, n)
				out.addNumber(now-r.steps[0].from, n)
			}
			out.Peak = max(out.Peak, desired)
			out.ReplicaHours += float64(w.ready+len(w.starting)) * tick.Hours()
		}
	}
	w.waitedUntil(now, &over)
	out.LongestWait = w.longest.Seconds()
	if out.Requests > 0 {
		out.OverObjective = over / out.Requests
	}
	return out
}

// addNumber adds a number to the outcome, and counts a turn if it changes the direction.
func (o *Outcome) addNumber(at time.Duration, n int) {
	if last := len(o.Numbers) - 1; last >= 0 {
		direction := signOf(n - o.Numbers[last].Replicas)
		if o.direction != 0 && o.direction != direction {
			o.Turns++
		}
		o.direction = direction
	}
	o.Numbers = append(o.Numbers, Number{int(at.Seconds()), n})
}

func signOf(n int) int {
	if n < 0 {
		return -1
	}
	return 1
}

// simulatedApp has the replicas and requests of the app.
type simulatedApp struct {
	policy *scaling.Policy
	model  Model
	epoch  time.Time
	step   step
	ready  int
	// starting has the times at which the starting replicas become ready, soonest first.
	starting []time.Duration
	// served is the number of requests that replicas are serving. queue has the waiting requests in the order of
	// their arrival, and waiting is their number.
	served, waiting float64
	queue           []cohort
	rates           []float64
	// wait is the waiting time of the last request that a replica accepted. longest is the longest waiting time.
	wait, longest time.Duration
}

// cohort is the requests of one tick.
type cohort struct {
	at time.Duration
	n  float64
}

// runTick simulates one tick. It returns the number of requests that replicas accepted after a wait longer than the
// objective.
func (w *simulatedApp) runTick(now time.Duration, rate float64) (over float64) {
	for len(w.starting) > 0 && w.starting[0] <= now {
		w.starting, w.ready = w.starting[1:], w.ready+1
	}
	w.queue, w.waiting = append(w.queue, cohort{now, rate * tick.Seconds()}), w.waiting+rate*tick.Seconds()
	w.served -= min(w.served, w.served/w.step.service.Seconds()*tick.Seconds())
	// If requests take less than a tick, a replica serves several of them within a tick in the place of one.
	turns := max(1, tick.Seconds()/w.step.service.Seconds())
	free := max(0, float64(w.ready*w.model.Concurrency)-w.served) * turns
	for len(w.queue) > 0 && free > 0 {
		n := min(free, w.queue[0].n)
		free, w.served, w.waiting = free-n, w.served+n/turns, w.waiting-n
		w.wait = now - w.queue[0].at
		w.recordWait(w.wait, n, &over)
		if w.queue[0].n -= n; w.queue[0].n > 1e-9 {
			break
		}
		w.queue = w.queue[1:]
	}
	if len(w.queue) == 0 {
		w.waiting = 0 // remove rounding errors
	}
	if w.rates = append(w.rates, rate); len(w.rates) > 10 {
		w.rates = w.rates[1:]
	}
	return over
}

// waitedUntil records the waits of requests that still wait at the end of a part of the simulation, and drops them.
func (w *simulatedApp) waitedUntil(end time.Duration, over *float64) {
	for _, c := range w.queue {
		w.recordWait(end-c.at, c.n, over)
	}
	w.queue, w.waiting = nil, 0
}

// skipTo begins a step after a time that is left out. Replicas serve the step's requests as if they had served them for
// a long time.
func (w *simulatedApp) skipTo(at step) {
	w.served = min(at.rate*at.service.Seconds(), float64(w.ready*w.model.Concurrency))
	w.rates, w.wait = nil, 0
}

// recordWait records that n requests waited for a time, and adds them to over if it exceeds the objective.
func (w *simulatedApp) recordWait(wait time.Duration, n float64, over *float64) {
	if n > 0 {
		w.longest = max(w.longest, wait)
	}
	if wait > w.model.Objective {
		*over += n
	}
}

// sampleAt returns the sample that the region would report.
func (w *simulatedApp) sampleAt(now time.Duration) scaling.Sample {
	slots := float64(w.ready * w.model.Concurrency)
	rate, waiting := 0.0, max(0, w.waiting)
	for _, r := range w.rates {
		rate += r / float64(len(w.rates))
	}
	s := scaling.Sample{
		At: w.epoch.Add(now), Ready: w.ready, Starting: len(w.starting),
		InFlight: new(w.served), Queued: new(waiting), Rate: new(rate),
	}
	if w.step.recorded != nil {
		w.step.recorded.fillSample(&s, w.policy, w.wait)
		return s
	}
	if w.ready > 0 {
		s.Levels = map[string]float64{"kvCache": min(w.served/slots, 1), "cpu": min(100*w.served/slots, 100), "queue": 0}
	}
	if rate > 0 {
		s.FirstToken, s.Latency = oneTime(w.wait), oneTime(w.wait+w.step.service)
	}
	return s
}

// oneTime returns counts of requests that all took d.
func oneTime(d time.Duration) *histogram.Counts {
	var counts histogram.Counts
	counts[histogram.Bucket(d)] = 100
	return &counts
}

// resizeTo changes the number of replicas to n. It removes starting replicas first.
func (w *simulatedApp) resizeTo(now time.Duration, n int) {
	for w.ready+len(w.starting) < n {
		w.starting = append(w.starting, now+w.model.Start)
	}
	for w.ready+len(w.starting) > n && len(w.starting) > 0 {
		w.starting = slices.Delete(w.starting, len(w.starting)-1, len(w.starting))
	}
	w.ready = min(w.ready, n)
}

// epoch is the time of second 0 of a trace: a Monday.
var epoch = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// decider is the algorithm of Windlass. It calls scaling.Decide, and adds a sample every 5 s.
type decider struct {
	policy *scaling.Policy
	epoch  time.Time
	window scaling.Window
	kept   scaling.Kept
	next   time.Time
	// reported is the time of the last sample, if begun is true.
	reported time.Duration
	begun    bool
}

const reportEvery = 5 * time.Second

func (o *decider) wanted(now time.Duration, s scaling.Sample, desired int) int {
	due := !o.epoch.Add(now).Before(o.next)
	if !o.begun || now-o.reported >= reportEvery {
		o.window.Add(s, o.policy.Up.Window)
		o.reported, o.begun, due = now, true, true
	}
	if !due {
		return desired
	}
	d := scaling.Decide(o.policy, &o.window, scaling.State{Desired: desired, Kept: o.kept}, o.epoch.Add(now))
	o.kept, o.next = d.Kept, d.Next
	return d.Wanted
}
