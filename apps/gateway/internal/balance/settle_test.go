package balance

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// machine serves as many requests at a time as it has workers, first come, first served.
type machine struct {
	workers, busy int
	mean          time.Duration
	queue         []*job
	// stood are requests that found all workers busy.
	served, stood int
}

type job struct {
	at   time.Time
	then func()
}

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

// world is time that passes as fast as it can be worked out.
type world struct {
	random   *rand.Rand
	now      time.Time
	agenda   agenda
	strategy Strategy
	all      []*Endpoint
	machines []*machine
}

func newWorld(t *testing.T, strategy string, machines ...*machine) *world {
	t.Helper()
	s, err := New(strategy)
	require.NoError(t, err)
	return &world{random: rand.New(rand.NewPCG(1, 2)), now: noon, strategy: s, all: endpoints(len(machines)), machines: machines}
}

func (w *world) in(d time.Duration, then func()) {
	heap.Push(&w.agenda, &job{at: w.now.Add(d), then: then})
}

// ask sends a request where the strategy has it.
func (w *world) ask(done func()) {
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
		m.stood++
	}
	w.start(m)
}

func (w *world) start(m *machine) {
	for m.busy < m.workers && len(m.queue) > 0 {
		j := m.queue[0]
		m.queue = m.queue[1:]
		m.busy++
		j.at = w.now.Add(time.Duration(float64(m.mean) * (0.5 + w.random.Float64())))
		heap.Push(&w.agenda, j)
	}
}

func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); len(w.agenda) > 0 && w.agenda[0].at.Before(end); {
		j := heap.Pop(&w.agenda).(*job)
		w.now = j.at
		j.then()
	}
}

// open makes requests come at random, rate a second on average, whether the earlier ones are
// answered or not.
func (w *world) open(rate float64) {
	w.in(time.Duration(w.random.ExpFloat64()/rate*float64(time.Second)), func() {
		w.ask(func() {})
		w.open(rate)
	})
}

// clients ask again as soon as they are answered.
func (w *world) clients(n int) {
	var again func()
	again = func() { w.ask(again) }
	for range n {
		w.in(0, again)
	}
}

// share of the first machine in the windows that follow, one after the other.
func (w *world) share(window time.Duration, windows int) (low, high float64) {
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

// Of two instances, one three times as fast, that has three quarters of the requests, at any load,
// and for as long as it lasts: weights do not swing with the queues that they make.
func TestSharesSettleWhereTheWorkIsDone(t *testing.T) {
	machines := func(workers int, mean time.Duration) []*machine {
		return []*machine{{workers: workers, mean: mean}, {workers: workers, mean: 3 * mean}}
	}
	const mean = 10 * time.Millisecond
	capacity := 1/mean.Seconds() + 1/(3*mean).Seconds()
	for _, load := range []float64{0.2, 0.5, 0.8, 0.9, 0.95} {
		t.Run(fmt.Sprint("open at ", load), func(t *testing.T) {
			w := newWorld(t, Weighted, machines(1, mean)...)
			w.open(load * capacity)
			w.run(time.Minute)
			low, high := w.share(10*time.Second, 30)
			require.InDelta(t, 0.75, low, 0.06)
			require.InDelta(t, 0.75, high, 0.06)
		})
	}
	for _, n := range []int{2, 8, 64} {
		t.Run(fmt.Sprint("clients ", n), func(t *testing.T) {
			w := newWorld(t, Weighted, machines(1, mean)...)
			w.clients(n)
			w.run(time.Minute)
			low, high := w.share(10*time.Second, 30)
			require.InDelta(t, 0.75, low, 0.02)
			require.InDelta(t, 0.75, high, 0.02)
		})
	}
	// Prompts that take ten seconds and half a minute: of a few answers not too much is made.
	for _, n := range []int{8, 32} {
		t.Run(fmt.Sprint("long answers, clients ", n), func(t *testing.T) {
			w := newWorld(t, Weighted, machines(16, 10*time.Second)...)
			w.clients(n)
			w.run(2 * time.Minute)
			low, high := w.share(10*time.Minute, 6)
			require.Greater(t, low, 0.6)
			require.Less(t, high, 0.8)
		})
	}
}

// Near what both can do together, round robin lets half of the requests stand in the queue of the
// slow one for good, and weights do not.
func TestFewStandInTheQueueOfTheSlowOne(t *testing.T) {
	stood := map[string]int{}
	for _, strategy := range []string{RoundRobin, Weighted} {
		w := newWorld(t, strategy, &machine{workers: 4, mean: 10 * time.Millisecond}, &machine{workers: 4, mean: 30 * time.Millisecond})
		w.open(350) // of 533
		w.run(time.Minute)
		w.machines[1].stood = 0
		w.run(time.Minute)
		stood[strategy] = w.machines[1].stood
	}
	require.Less(t, stood[Weighted], stood[RoundRobin]/3, "%v", stood)
}

// An instance that is throttled loses what it gets too much within a minute, and has it back as
// soon when it recovers.
func TestAnInstanceThatIsThrottledIsFollowed(t *testing.T) {
	w := newWorld(t, Weighted, &machine{workers: 8, mean: 20 * time.Millisecond}, &machine{workers: 8, mean: 20 * time.Millisecond})
	w.open(200)
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
