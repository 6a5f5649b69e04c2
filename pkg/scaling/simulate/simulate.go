// Package simulate plays a trace of requests against a scaling policy, and against the published algorithms of
// the Kubernetes HorizontalPodAutoscaler and of Knative's autoscaler. It is pure: the same input gives the same
// output.
//
// The model counts requests as real numbers, in ticks of one second. A replica serves Model.Concurrency
// requests at a time, and each request takes Model.Service. Further requests wait in one queue, without a
// limit. A new replica becomes ready after Model.Start, and a removed replica stops at once. Nothing fails.
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
	out := []Outcome{runAlgorithm("windlass", &decider{policy: p}, p, trace, m)}
	if h := newHPA(p); h != nil {
		out = append(out, runAlgorithm("hpa", h, p, trace, m))
	}
	if k := newKPA(p); k != nil {
		out = append(out, runAlgorithm("kpa", k, p, trace, m))
	}
	return out, nil
}

// tick is the step of simulated time.
const tick = time.Second

// runAlgorithm runs the simulation with one algorithm.
func runAlgorithm(name string, by scaler, p *scaling.Policy, trace []Point, m Model) Outcome {
	out := Outcome{Algorithm: name}
	w := &simulatedApp{model: m, ready: p.Initial}
	desired, direction, over := p.Initial, 0, 0.0
	begin, end := trace[0].At, trace[len(trace)-1].At
	out.addNumber(0, desired)
	at := 0
	for now := begin; now < end; now += tick {
		for at+1 < len(trace) && trace[at+1].At <= now {
			at++
		}
		out.Requests += trace[at].Rate * tick.Seconds()
		over += w.runTick(now, trace[at].Rate)
		if n := by.wanted(now, w.sample(now), desired); n != desired {
			if up := sign(n - desired); up != direction {
				if direction != 0 {
					out.Turns++
				}
				direction = up
			}
			desired = n
			w.resize(now, n)
			out.addNumber(now-begin, n)
		}
		out.Peak = max(out.Peak, desired)
		out.ReplicaHours += float64(w.ready+len(w.starting)) * tick.Hours()
	}
	for _, c := range w.queue {
		w.recordWait(end-c.at, c.n, &over)
	}
	out.LongestWait = w.longest.Seconds()
	if out.Requests > 0 {
		out.OverObjective = over / out.Requests
	}
	return out
}

// addNumber adds a number to the outcome.
func (o *Outcome) addNumber(at time.Duration, n int) {
	o.Numbers = append(o.Numbers, Number{int(at.Seconds()), n})
}

func sign(n int) int {
	if n < 0 {
		return -1
	}
	return 1
}

// simulatedApp has the replicas and requests of the app.
type simulatedApp struct {
	model Model
	ready int
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
	w.served -= min(w.served, w.served/w.model.Service.Seconds()*tick.Seconds())
	free := max(0, float64(w.ready*w.model.Concurrency)-w.served)
	for len(w.queue) > 0 && free > 0 {
		n := min(free, w.queue[0].n)
		free, w.served, w.waiting = free-n, w.served+n, w.waiting-n
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

// recordWait records that n requests waited for a time, and adds them to over if it exceeds the objective.
func (w *simulatedApp) recordWait(wait time.Duration, n float64, over *float64) {
	if n > 0 {
		w.longest = max(w.longest, wait)
	}
	if wait > w.model.Objective {
		*over += n
	}
}

// sample returns the sample that the region would report.
func (w *simulatedApp) sample(now time.Duration) scaling.Sample {
	slots := float64(w.ready * w.model.Concurrency)
	rate, waiting := 0.0, max(0, w.waiting)
	for _, r := range w.rates {
		rate += r / float64(len(w.rates))
	}
	s := scaling.Sample{
		At: epoch.Add(now), Ready: w.ready, Starting: len(w.starting),
		InFlight: new(w.served), Queued: new(waiting), Rate: new(rate),
	}
	if w.ready > 0 {
		s.Levels = map[string]float64{"kvCache": min(w.served/slots, 1), "cpu": min(100*w.served/slots, 100), "queue": 0}
	}
	if rate > 0 {
		var first, last histogram.Counts
		first[histogram.Bucket(w.wait)] = 100
		last[histogram.Bucket(w.wait+w.model.Service)] = 100
		s.FirstToken, s.Latency = &first, &last
	}
	return s
}

// resize changes the number of replicas to n. It removes starting replicas first.
func (w *simulatedApp) resize(now time.Duration, n int) {
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
	window scaling.Window
	kept   scaling.Kept
	next   time.Time
	// reported is the time of the last sample, if begun is true.
	reported time.Duration
	begun    bool
}

const reportEvery = 5 * time.Second

func (o *decider) wanted(now time.Duration, s scaling.Sample, desired int) int {
	due := !epoch.Add(now).Before(o.next)
	if !o.begun || now-o.reported >= reportEvery {
		o.window.Add(s, o.policy.Up.Window)
		o.reported, o.begun, due = now, true, true
	}
	if !due {
		return desired
	}
	d := scaling.Decide(o.policy, &o.window, scaling.State{Desired: desired, Kept: o.kept}, epoch.Add(now))
	o.kept, o.next = d.Kept, d.Next
	return d.Wanted
}
