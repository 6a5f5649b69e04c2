package conns

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const (
	// testSlots is the number of processors in the tests.
	testSlots = 2
	// firstPart and secondPart are the processor time of a handshake before and after the client's second message.
	firstPart, secondPart = 18 * time.Millisecond, 2 * time.Millisecond
	// roundTrip is the time until the second message comes.
	roundTrip = 50 * time.Millisecond
	// allowed is how long a handshake may take. It waits for half of that at most.
	allowed = 10 * time.Second
)

// processors simulates processors that all handshakes share in time slices.
type processors chan struct{}

const slice = 2 * time.Millisecond

func (p processors) compute(ctx context.Context, cost time.Duration) error {
	for ; cost > 0; cost -= slice {
		select {
		case p <- struct{}{}:
			time.Sleep(slice)
			<-p
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// shake makes a handshake, and returns an error if it does not end in time. A nil queue limits nothing.
func shake(p processors, g *handshakeQueue, client netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(context.Background(), allowed)
	defer cancel()
	var h *Handshake
	if g != nil {
		var err error
		if h, err = g.begin(ctx, client, &tally{}, time.Now().Add(allowed/2)); err != nil {
			return err
		}
	}
	defer h.Pause()
	if err := p.compute(ctx, firstPart); err != nil {
		return err
	}
	h.Pause()
	time.Sleep(roundTrip)
	return errors.Join(h.Resume(ctx), p.compute(ctx, secondPart))
}

func clientNumber(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 0)
}

// capacity is how many handshakes the processors can compute while a flood lasts.
const (
	floodTime = 10 * time.Second
	capacity  = int(testSlots * floodTime / (firstPart + secondPart))
	offered   = 10 * capacity
)

// flood offers ten times the capacity, and returns how many handshakes of each client end in time and before the flood
// ends. clientOf returns the client of the n-th handshake.
func flood(g *handshakeQueue, clientOf func(n int) netip.AddrPort) map[netip.AddrPort]int {
	p := make(processors, testSlots)
	random := rand.New(rand.NewPCG(1, 2))
	end := time.Now().Add(floodTime)
	ended := map[netip.AddrPort]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for n := range offered {
		all.Go(func() {
			client := clientOf(n)
			if shake(p, g, client) == nil && time.Now().Before(end) {
				mu.Lock()
				defer mu.Unlock()
				ended[client]++
			}
		})
		time.Sleep(time.Duration(2 * random.Float64() * float64(floodTime) / float64(offered)))
	}
	all.Wait()
	return ended
}

func TestHandshakes_KeepTheirGoodputInAFlood(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		queue    *handshakeQueue
		clientOf func(n int) netip.AddrPort
		min, max int
	}{
		"each of another client": {newHandshakeQueue(testSlots), clientNumber, capacity * 8 / 10, capacity},
		"of a hundred clients":   {newHandshakeQueue(testSlots), func(n int) netip.AddrPort { return clientNumber(n % 100) }, capacity * 8 / 10, capacity},
		"of one client":          {newHandshakeQueue(testSlots), func(int) netip.AddrPort { return clientNumber(0) }, capacity * 8 / 10, capacity},
		// This case shows why the queue is needed.
		"without a queue": {nil, clientNumber, 0, capacity / 2},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				got := 0
				for _, n := range flood(test.queue, test.clientOf) {
					got += n
				}
				t.Logf("%d of %d", got, capacity)
				require.GreaterOrEqual(t, got, test.min)
				require.LessOrEqual(t, got, test.max)
			})
		})
	}
}

func TestHandshakes_OfAClientStarveNoOther(t *testing.T) {
	t.Parallel()
	few := clientNumber(1 << 20)
	cases := map[string]struct {
		clientOf func(n int) netip.AddrPort
		// Of each "every" handshakes, one comes from the client few. At least "least" of its handshakes end in time.
		every, least int
	}{
		"one address":   {func(int) netip.AddrPort { return clientNumber(0) }, 200, offered / 200 * 9 / 10},
		"ten addresses": {func(n int) netip.AddrPort { return clientNumber(n % 10) }, 200, offered / 200 * 9 / 10},
		// The client few gets its share of the capacity, which is less than it asks for.
		"a hundred addresses": {func(n int) netip.AddrPort { return clientNumber(n % 100) }, 200, capacity / 101 * 9 / 10},
		"new addresses only":  {clientNumber, 20, capacity / longestRound * 8 / 10},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ended := flood(newHandshakeQueue(testSlots), func(n int) netip.AddrPort {
					if n%test.every == 0 {
						return few
					}
					return test.clientOf(n)
				})
				t.Logf("%d of %d", ended[few], offered/test.every)
				require.GreaterOrEqual(t, ended[few], test.least)
			})
		})
	}
}

// checkInvariants checks the invariants of a queue between two calls.
func checkInvariants(t require.TestingT, g *handshakeQueue) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.free > 0 {
		require.Zero(t, g.all.Len()+g.begun.Len(), "no handshake waits while a slot is free")
	}
	require.LessOrEqual(t, g.all.Len(), g.queue)
	require.Equal(t, len(g.clients), g.now.Len()+g.later.Len())
	waiters := 0
	for _, q := range g.clients {
		require.Positive(t, q.waiters.Len())
		require.LessOrEqual(t, q.waiters.Len(), g.perClient)
		waiters += q.waiters.Len()
	}
	require.Equal(t, g.all.Len(), waiters)
}

func TestHandshakes_NeverHoldMoreThanTheSlots(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(0, 1<<16), 1, 60).Draw(r, "steps")
		synctest.Test(t, func(t *testing.T) {
			g := &handshakeQueue{free: testSlots, queue: 8, perClient: 3, clients: map[netip.AddrPort]*clientQueue{}}
			counts := &tally{}
			var held atomic.Int64
			for i, step := range steps {
				client := clientNumber(step % 5)
				wait, cost := time.Duration(step%7)*time.Millisecond, time.Duration(step%11)*time.Millisecond
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(step%13+1)*time.Millisecond)
					defer cancel()
					h, err := g.begin(ctx, client, counts, time.Now().Add(wait))
					if err != nil {
						return
					}
					defer h.Pause()
					for range 2 {
						require.LessOrEqual(t, held.Add(1), int64(testSlots))
						time.Sleep(cost)
						held.Add(-1)
						h.Pause()
						time.Sleep(cost)
						if h.Resume(ctx) != nil {
							return
						}
						h.Pause()
						if h.Resume(ctx) != nil {
							return
						}
					}
				}()
				if i%3 == 0 {
					time.Sleep(time.Duration(step%3) * time.Millisecond)
				}
				synctest.Wait()
				checkInvariants(t, g)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			checkInvariants(t, g)
			require.Equal(t, testSlots, g.free, "all slots are given back")
			require.Zero(t, counts.waiting.Load())
		})
	})
}

func TestHandshakes_AreRefusedForAReason(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &handshakeQueue{free: 1, queue: 3, perClient: 2, clients: map[netip.AddrPort]*clientQueue{}}
		counts := &tally{}
		errs := map[string]error{}
		var mu sync.Mutex
		begin := func(name string, client int, wait time.Duration) {
			go func() {
				_, err := g.begin(t.Context(), clientNumber(client), counts, time.Now().Add(wait))
				mu.Lock()
				defer mu.Unlock()
				errs[name] = err
			}()
			synctest.Wait()
		}
		ended := func() map[string]error {
			mu.Lock()
			defer mu.Unlock()
			return maps.Clone(errs)
		}
		begin("the only slot", 0, time.Hour)
		begin("of client 1", 1, time.Hour)
		begin("of client 1, second", 1, time.Hour)
		begin("of client 1, third", 1, time.Second)
		require.Equal(t, map[string]error{"the only slot": nil, "of client 1": ErrClientQueueFull}, ended())
		begin("of client 2", 2, time.Hour)
		begin("of client 3", 3, time.Hour)
		require.Equal(t, ErrQueueFull, ended()["of client 1, second"])
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, ErrHandshakeLate, ended()["of client 1, third"])
		require.Equal(t, int64(2), counts.waiting.Load())
		for i, r := range handshakeRefusals {
			require.Equal(t, int64(1), counts.handshakes[i].Load(), r.name)
		}
		(&Handshake{queue: g, held: true}).Pause()
		synctest.Wait()
		require.Contains(t, ended(), "of client 3", "the newest client is first")
		require.NotContains(t, ended(), "of client 2")
		(&Handshake{queue: g, held: true}).Pause()
		synctest.Wait()
		require.Contains(t, ended(), "of client 2")
	})
}

// BenchmarkHandshakes_RefusedInAFlood measures the cost of a handshake that gets no slot, without its connection.
func BenchmarkHandshakes_RefusedInAFlood(b *testing.B) {
	for name, clients := range map[string]int{"of one client": 1, "of a thousand clients": 1000, "each of another client": 1 << 22} {
		b.Run(name, func(b *testing.B) {
			g, counts := newHandshakeQueue(1), &tally{}
			g.free = 0
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				g.mu.Lock()
				g.addWaiter(clientNumber(n%clients), &waiter{handshake: &Handshake{queue: g}, ended: make(chan error, 1), tally: counts})
				g.mu.Unlock()
			}
		})
	}
}
