package conns

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Reasons for which a handshake is refused.
var (
	// ErrQueueFull refuses the handshake that has waited for longest if too many handshakes wait.
	ErrQueueFull = errors.New("too many handshakes wait")
	// ErrClientQueueFull refuses the handshake of a client that has waited for longest if too many of the client wait.
	ErrClientQueueFull = errors.New("too many handshakes of the client wait")
	// ErrHandshakeLate refuses a handshake whose time was over before it got a slot.
	ErrHandshakeLate = errors.New("the handshake got no slot in time")
)

// handshakeRefusals names the reasons in metrics.
var handshakeRefusals = [...]struct {
	err  error
	name string
}{{ErrQueueFull, "queue"}, {ErrClientQueueFull, "address"}, {ErrHandshakeLate, "late"}}

// queuePerSlot is how many handshakes may wait for each slot. A slot takes a few seconds to work through them.
const queuePerSlot = 1024

// handshakeQueue limits how many handshakes use the processor at the same time. If too many handshakes shared it, each of
// them would end too late for its client. So other handshakes wait for a slot. Handshakes that have begun come before
// handshakes that have not.
//
// Clients take turns in rounds. A new client comes first in the round. Of each client, the newest handshake comes first.
// The reason for both is that a client that has waited for long may have given up.
type handshakeQueue struct {
	queue, perClient int

	mu   sync.Mutex
	free int // the number of free slots; 0 while a handshake waits
	// begun has the waiters whose handshakes had a slot before. all has the other waiters. The oldest waiter is first.
	begun, all list.List
	clients    map[netip.AddrPort]*clientQueue
	// now has the clients that had no turn yet in this round, and later has the clients that had one. left is how many
	// turns the round has left.
	now, later list.List
	left       int
}

// clientQueue has the waiters of a client that are in handshakeQueue.all. The oldest one is first.
type clientQueue struct {
	client  netip.AddrPort
	waiters list.List
	place   *list.Element // its element of handshakeQueue.now, or of handshakeQueue.later if had is true
	had     bool
}

// waiter is a handshake that waits for a slot. The queue's mu guards it.
type waiter struct {
	handshake *Handshake
	// ended receives nil when the handshake has a slot, or the reason why it is refused.
	ended chan error
	// inBegun is its element of handshakeQueue.begun. Nil: it is in handshakeQueue.all, and the fields below are set.
	inBegun         *list.Element
	of              *clientQueue
	inAll, inClient *list.Element
	tally           *tally
}

func newHandshakeQueue(slots int) *handshakeQueue {
	return &handshakeQueue{free: slots, queue: slots * queuePerSlot, perClient: slots * queuePerSlot / 4, clients: map[netip.AddrPort]*clientQueue{}}
}

// longestRound is how many turns a round has at most. Otherwise a flood from many addresses would make rounds so long
// that an address with several handshakes, such as that of an office, finishes only one of them.
const longestRound = 64

// Handshake is a TLS handshake that has begun. A nil Handshake has no limits.
type Handshake struct {
	queue *handshakeQueue
	held  bool // whether it has a slot; guarded by the queue's mu
}

// BeginHandshake waits for a slot for a TLS handshake of the connection, until the given time at most. Call it after the
// client's first message has arrived, so that silent clients take no place. The Handshake holds its slot until Pause.
func (e *Entry) BeginHandshake(ctx context.Context, until time.Time) (*Handshake, error) {
	if e == nil {
		return nil, nil //nolint:nilnil // there is no limit
	}
	return e.table.handshakes.begin(ctx, e.faulty, e.tally, until)
}

// BeginHandshake is Entry.BeginHandshake for a connection from remote that has no entry yet. NewCollector counts it under
// the listener's name.
func (t *Table) BeginHandshake(ctx context.Context, listener string, remote net.Addr, until time.Time) (*Handshake, error) {
	if t == nil {
		return nil, nil //nolint:nilnil // there is no limit
	}
	return t.handshakes.begin(ctx, t.faultKey(remote), t.tallyOf(listener), until)
}

// HandshakesWait reports whether handshakes wait for their turn.
func (t *Table) HandshakesWait() bool {
	if t == nil {
		return false
	}
	t.handshakes.mu.Lock()
	defer t.handshakes.mu.Unlock()
	return t.handshakes.free == 0 && t.handshakes.all.Len() > 0
}

func (g *handshakeQueue) begin(ctx context.Context, client netip.AddrPort, of *tally, until time.Time) (*Handshake, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, until, ErrHandshakeLate)
	defer cancel()
	h := &Handshake{queue: g}
	g.mu.Lock()
	w := h.takeFree()
	if w != nil {
		w.tally = of
		g.addWaiter(client, w)
	}
	g.mu.Unlock()
	return h, g.wait(ctx, w)
}

// takeFree takes a free slot, or returns a waiter for one. The caller holds mu.
func (h *Handshake) takeFree() *waiter {
	if h.queue.free == 0 {
		return &waiter{handshake: h, ended: make(chan error, 1)}
	}
	h.queue.free--
	h.held = true
	return nil
}

// wait returns nil once the waiter has a slot. A nil waiter has one.
func (g *handshakeQueue) wait(ctx context.Context, w *waiter) error {
	if w == nil {
		return nil
	}
	select {
	case err := <-w.ended:
		return err
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(w.ended) == 0 { // otherwise the waiter got a result just before ctx ended
		g.endWait(w, context.Cause(ctx))
	}
	return <-w.ended
}

// addWaiter adds a waiter. If too many wait, it refuses the oldest one. The caller holds mu.
func (g *handshakeQueue) addWaiter(client netip.AddrPort, w *waiter) {
	q := g.clients[client]
	switch {
	case q == nil:
		q = &clientQueue{client: client}
		g.clients[client] = q
		q.place = g.now.PushFront(q)
	case !q.had:
		g.now.MoveToFront(q.place)
	}
	w.of, w.inAll, w.inClient = q, g.all.PushBack(w), q.waiters.PushBack(w)
	w.tally.waiting.Add(1)
	if q.waiters.Len() > g.perClient {
		g.refuseWaiter(q.waiters.Front(), ErrClientQueueFull)
	}
	if g.all.Len() > g.queue {
		g.refuseWaiter(g.all.Front(), ErrQueueFull)
	}
}

func (g *handshakeQueue) refuseWaiter(e *list.Element, reason error) {
	g.endWait(e.Value.(*waiter), reason) //nolint:forcetypeassert // nothing else is stored
}

// endWait takes a waiter out of the lists. If err is nil, the waiter gets a slot, and otherwise it is refused with err. The
// caller holds mu.
func (g *handshakeQueue) endWait(w *waiter, err error) {
	w.handshake.held = err == nil
	w.ended <- err
	if w.inBegun != nil {
		g.begun.Remove(w.inBegun)
		return
	}
	w.tally.waiting.Add(-1)
	for i, r := range handshakeRefusals {
		if errors.Is(err, r.err) {
			w.tally.handshakes[i].Add(1)
		}
	}
	g.all.Remove(w.inAll)
	q := w.of
	q.waiters.Remove(w.inClient)
	if q.waiters.Len() > 0 {
		return
	}
	delete(g.clients, q.client)
	if q.had {
		g.later.Remove(q.place)
	} else {
		g.now.Remove(q.place)
	}
}

// passSlot gives a slot that has become free to the next waiter. The caller holds mu.
func (g *handshakeQueue) passSlot() {
	next := g.begun.Front()
	if next == nil {
		next = g.next()
	}
	if next == nil {
		g.free++
		return
	}
	g.endWait(next.Value.(*waiter), nil) //nolint:forcetypeassert // nothing else is stored
}

// next returns the waiter whose handshake begins next. It returns nil if no handshake waits to begin.
func (g *handshakeQueue) next() *list.Element {
	if g.left == 0 || g.now.Len() == 0 {
		for e := g.later.Back(); e != nil; e = g.later.Back() {
			q := g.later.Remove(e).(*clientQueue) //nolint:forcetypeassert // nothing else is stored
			q.place, q.had = g.now.PushFront(q), false
		}
		g.left = min(g.now.Len(), longestRound)
	}
	front := g.now.Front()
	if front == nil {
		return nil
	}
	g.left--
	q := g.now.Remove(front).(*clientQueue) //nolint:forcetypeassert // nothing else is stored
	q.place, q.had = g.later.PushBack(q), true
	return q.waiters.Back()
}

// Pause gives the slot to another handshake. Call it before the handshake waits for the client, and when the handshake
// has ended.
func (h *Handshake) Pause() {
	if h == nil {
		return
	}
	h.queue.mu.Lock()
	defer h.queue.mu.Unlock()
	if h.held {
		h.held = false
		h.queue.passSlot()
	}
}

// Resume waits for a slot again. It comes before all handshakes that have not begun.
func (h *Handshake) Resume(ctx context.Context) error {
	if h == nil {
		return nil
	}
	g := h.queue
	g.mu.Lock()
	var w *waiter
	if !h.held {
		if w = h.takeFree(); w != nil {
			w.inBegun = g.begun.PushBack(w)
		}
	}
	g.mu.Unlock()
	return g.wait(ctx, w)
}
