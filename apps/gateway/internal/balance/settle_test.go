package balance

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// machine simulates an instance: it serves requests first come, first served, one per worker.
type machine struct {
	workers, busy int
	mean          time.Duration
	queue         []*job
	// queued counts the requests that found all workers busy.
	served, queued int
}

// job is something that happens at a simulated time.
type job struct {
	at   time.Time
	then func()
}

// agenda is a heap of jobs by time.
type agenda []*job

func (a *agenda) Len() int           { return len(*a) }
func (a *agenda) Less(i, j int) bool { return (*a)[i].at.Before((*a)[j].at) }
func (a *agenda) Swap(i, j int)      { (*a)[i], (*a)[j] = (*a)[j], (*a)[i] }
func (a *agenda) Push(x any)         { *a = append(*a, x.(*job)) }
func (a *agenda) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// simulation has machines and clients in simulated time.
type simulation struct {
	random   *rand.Rand
	now      time.Time
	agenda   agenda
	strategy Strategy
	all      []*Endpoint
	machines []*machine
}

func newSimulation(t *testing.T, strategy string, machines ...*machine) *simulation {
	t.Helper()
	s, err := New(strategy)
	require.NoError(t, err)
	return &simulation{random: rand.New(rand.NewPCG(1, 2)), now: noon, strategy: s, all: endpoints(len(machines)), machines: machines}
}

func (w *simulation) in(d time.Duration, then func()) {
	heap.Push(&w.agenda, &job{at: w.now.Add(d), then: then})
}

// send sends a request to the machine that the strategy picks, and calls done at its end.
func (w *simulation) send(done func()) {
	i := w.strategy.Pick(w.all, Request{Now: w.now, Random: w.random.Uint64()})
	e, m := w.all[i], w.machines[i]
	e.Begin()
	observer, _ := w.strategy.(Observer)
	if observer != nil {
		observer.Began(e, w.now)
	}
	j := &job{}
	j.then = func() {
		e.End()
		if observer != nil {
			observer.Ended(e, w.now, Served)
		}
		m.served++
		m.busy--
		w.start(m)
		done()
	}
	m.queue = append(m.queue, j)
	if m.busy == m.workers {
		m.queued++
	}
	w.start(m)
}

// start gives queued requests to free workers.
func (w *simulation) start(m *machine) {
	for m.busy < m.workers && len(m.queue) > 0 {
		j := m.queue[0]
		m.queue = m.queue[1:]
		m.busy++
		j.at = w.now.Add(time.Duration(float64(m.mean) * (0.5 + w.random.Float64())))
		heap.Push(&w.agenda, j)
	}
}

// run simulates the time d.
func (w *simulation) run(d time.Duration) {
	for end := w.now.Add(d); len(w.agenda) > 0 && w.agenda[0].at.Before(end); {
		j := heap.Pop(&w.agenda).(*job)
		w.now = j.at
		j.then()
	}
}

// openLoop sends requests at random times, rate per second on average, without waiting for answers.
func (w *simulation) openLoop(rate float64) {
	w.in(time.Duration(w.random.ExpFloat64()/rate*float64(time.Second)), func() {
		w.send(func() {})
		w.openLoop(rate)
	})
}

// closedLoop adds n clients that each send the next request when the last one is answered.
func (w *simulation) closedLoop(n int) {
	var again func()
	again = func() { w.send(again) }
	for range n {
		w.in(0, again)
	}
}

// share returns the lowest and the highest share of the first machine in the next windows.
func (w *simulation) share(window time.Duration, windows int) (low, high float64) {
	low, high = 1, 0
	for range windows {
		first, total := -w.machines[0].served, 0
		for _, m := range w.machines {
			total -= m.served
		}
		w.run(window)
		for _, m := range w.machines {
			total += m.served
		}
		first += w.machines[0].served
		share := float64(first) / float64(total)
		low, high = min(low, share), max(high, share)
	}
	return low, high
}

// An instance that is three times as fast as the other gets three quarters of the requests at any
// load. Its share stays there: the queues that weights cause do not make the weights oscillate.
func TestWeighted_SharesSettleInProportionToSpeed(t *testing.T) {
	machines := func(workers int, mean time.Duration) []*machine {
		return []*machine{{workers: workers, mean: mean}, {workers: workers, mean: 3 * mean}}
	}
	const mean = 10 * time.Millisecond
	capacity := 1/mean.Seconds() + 1/(3*mean).Seconds()
	for _, load := range []float64{0.2, 0.5, 0.8, 0.9, 0.95} {
		t.Run(fmt.Sprint("open loop at ", load), func(t *testing.T) {
			w := newSimulation(t, Weighted, machines(1, mean)...)
			w.openLoop(load * capacity)
			w.run(time.Minute)
			low, high := w.share(10*time.Second, 30)
			require.InDelta(t, 0.75, low, 0.06)
			require.InDelta(t, 0.75, high, 0.06)
		})
	}
	for _, n := range []int{2, 8, 64} {
		t.Run(fmt.Sprint("clients ", n), func(t *testing.T) {
			w := newSimulation(t, Weighted, machines(1, mean)...)
			w.closedLoop(n)
			w.run(time.Minute)
			low, high := w.share(10*time.Second, 30)
			require.InDelta(t, 0.75, low, 0.02)
			require.InDelta(t, 0.75, high, 0.02)
		})
	}
	// Answers take 10 s and 30 s. A few of them do not change the weights much.
	for _, n := range []int{8, 32} {
		t.Run(fmt.Sprint("long answers, clients ", n), func(t *testing.T) {
			w := newSimulation(t, Weighted, machines(16, 10*time.Second)...)
			w.closedLoop(n)
			w.run(2 * time.Minute)
			low, high := w.share(10*time.Minute, 6)
			require.Greater(t, low, 0.6)
			require.Less(t, high, 0.8)
		})
	}
}

// At a load that round robin cannot serve without a queue at the slow instance, weights avoid the queue.
func TestWeighted_FewRequestsQueueAtTheSlowInstance(t *testing.T) {
	queued := map[string]int{}
	for _, strategy := range []string{RoundRobin, Weighted} {
		w := newSimulation(t, strategy, &machine{workers: 4, mean: 10 * time.Millisecond}, &machine{workers: 4, mean: 30 * time.Millisecond})
		w.openLoop(350) // both can serve 533
		w.run(time.Minute)
		w.machines[1].queued = 0
		w.run(time.Minute)
		queued[strategy] = w.machines[1].queued
	}
	require.Less(t, queued[Weighted], queued[RoundRobin]/3, "%v", queued)
}

// The share of an instance that is throttled falls within a minute. It rises as fast when the
// instance recovers.
func TestWeighted_FollowsAnInstanceThatIsThrottled(t *testing.T) {
	w := newSimulation(t, Weighted, &machine{workers: 8, mean: 20 * time.Millisecond}, &machine{workers: 8, mean: 20 * time.Millisecond})
	w.openLoop(200)
	w.run(time.Minute)
	for _, step := range []struct {
		mean time.Duration
		want float64
	}{{20 * time.Millisecond, 0.5}, {80 * time.Millisecond, 0.2}, {20 * time.Millisecond, 0.5}} {
		w.machines[0].mean = step.mean
		w.run(time.Minute)
		low, high := w.share(10*time.Second, 3)
		require.InDelta(t, step.want, low, 0.06)
		require.InDelta(t, step.want, high, 0.06)
	}
}
