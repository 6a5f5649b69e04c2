package batch

import (
	"cmp"
	"slices"
	"time"
)

// lane is a queue of requests with its own commits.
type lane[L cmp.Ordered, Req, Res any] struct {
	name    L
	waiting []*member[Req, Res]
	weight  int
	// running is the number of the lane's workers. starting reports whether one of them has not taken its
	// batch yet.
	running  int
	starting bool
	// current is the running batch whose patience is not over. The next batch waits for it.
	current *runningBatch[Req, Res]
	// blocked reports whether no request can be taken, because each waiting request has a key that is being
	// committed.
	blocked bool
	// size is the size of the lane's batches if Config.Adapt has made it smaller than Limits.Size, else 0.
	size int
}

// runningBatch is a batch that is being committed.
type runningBatch[Req, Res any] struct {
	members []*member[Req, Res]
	begun   time.Time
	// full reports whether the batch has as many requests as the lane's size allows. maxSize is Limits.Size.
	full    bool
	maxSize int
	// patience is the timer that ends the patience. It is set when another request waits.
	patience *time.Timer
}

// keyState has the number of waiting requests of a key. busy reports whether a request of the key is being
// committed.
type keyState struct {
	waiting int
	busy    bool
}

func (g *Group[L, Req, Res]) setKey(name string, k keyState) {
	if k == (keyState{}) {
		delete(g.keys, name)
	} else {
		g.keys[name] = k
	}
}

// enqueueMember adds a member to its lane, unless a limit or Config.Admit refuses it.
func (g *Group[L, Req, Res]) enqueueMember(m *member[Req, Res]) (*lane[L, Req, Res], error) {
	var name L
	if g.cfg.Lane != nil {
		name = g.cfg.Lane(m.request)
	}
	if g.cfg.Key != nil {
		m.key = g.cfg.Key(m.request)
	}
	if g.cfg.Weight != nil {
		m.weight = g.cfg.Weight(m.request)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return nil, ErrClosed
	case g.cfg.MaxWaiting > 0 && g.waiting >= g.cfg.MaxWaiting:
		return nil, ErrFull
	case g.cfg.Admit != nil:
		if err := g.cfg.Admit(m.request, (*view[L, Req, Res])(g)); err != nil {
			return nil, err
		}
	}
	l := g.addLane(name)
	m.since, m.queued = time.Now(), true
	l.waiting = append(l.waiting, m)
	l.weight += m.weight
	g.waiting++
	k := g.keys[m.key]
	if m.key != "" {
		k.waiting++
		g.setKey(m.key, k)
	}
	l.blocked = l.blocked && k.busy
	g.startIfNeeded(l)
	return l, nil
}

// addLane returns the lane with the name, and adds it if it is missing.
func (g *Group[L, Req, Res]) addLane(name L) *lane[L, Req, Res] {
	i, ok := g.findLane(name)
	if !ok {
		g.lanes = slices.Insert(g.lanes, i, &lane[L, Req, Res]{name: name})
	}
	return g.lanes[i]
}

func (g *Group[L, Req, Res]) findLane(name L) (int, bool) {
	return slices.BinarySearchFunc(g.lanes, name, func(l *lane[L, Req, Res], name L) int { return cmp.Compare(l.name, name) })
}

// keptLanes is how many lanes are kept even if they are idle, so that they are not created for each request.
const keptLanes = 16

// dropIfIdle drops the lane if it is idle, has no adapted size, and there are more than keptLanes.
func (g *Group[L, Req, Res]) dropIfIdle(l *lane[L, Req, Res]) {
	if len(g.lanes) <= keptLanes || len(l.waiting) > 0 || l.running > 0 || l.size > 0 {
		return
	}
	if i, ok := g.findLane(l.name); ok && g.lanes[i] == l {
		g.lanes = slices.Delete(g.lanes, i, i+1)
	}
}

// removeWaiting removes the member from its lane. It reports false if the member does not wait any more.
func (g *Group[L, Req, Res]) removeWaiting(l *lane[L, Req, Res], m *member[Req, Res]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !m.queued {
		return false
	}
	i := slices.Index(l.waiting, m)
	l.waiting = slices.Delete(l.waiting, i, i+1)
	g.countDequeued(l, m)
	g.dropIfIdle(l)
	return true
}

// countDequeued updates the counts after a member was removed from the waiting members.
func (g *Group[L, Req, Res]) countDequeued(l *lane[L, Req, Res], m *member[Req, Res]) {
	m.queued = false
	l.weight -= m.weight
	g.waiting--
	if m.key != "" {
		k := g.keys[m.key]
		k.waiting--
		g.setKey(m.key, k)
	}
}

// startIfNeeded starts a worker for the lane if reserveWorker permits one.
func (g *Group[L, Req, Res]) startIfNeeded(l *lane[L, Req, Res]) {
	if g.reserveWorker(l) {
		g.startWorker(l)
	}
}

// startWorker starts a worker that reserveWorker has counted.
func (g *Group[L, Req, Res]) startWorker(l *lane[L, Req, Res]) {
	g.work.Add(1)
	go g.runWorker(l)
}

// reserveWorker reports whether the lane needs another worker and may start one. If so, it counts the worker
// as running.
func (g *Group[L, Req, Res]) reserveWorker(l *lane[L, Req, Res]) bool {
	if len(l.waiting) == 0 || l.blocked || l.starting || g.closed {
		return false
	}
	limits := g.cfg.Limits(l.name)
	if b := l.current; b != nil {
		if b.patience == nil {
			b.patience = time.AfterFunc(limits.Patience-time.Since(b.begun), func() { g.endPatience(l, b) })
		}
		return false
	}
	if limits.Commits > 0 && l.running >= limits.Commits || g.cfg.MaxCommits > 0 && g.running >= g.cfg.MaxCommits {
		return false
	}
	l.starting = true
	l.running++
	g.running++
	return true
}

// endPatience is called when the patience of batch b is over. The lane's next batch no longer waits for b.
func (g *Group[L, Req, Res]) endPatience(l *lane[L, Req, Res], b *runningBatch[Req, Res]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.current == b {
		l.current = nil
		g.startIfNeeded(l)
	}
}

// takeBatch removes the next batch from a lane, in order of arrival, and returns it. It returns nil if no request
// can be taken.
func (g *Group[L, Req, Res]) takeBatch(l *lane[L, Req, Res]) *runningBatch[Req, Res] {
	g.mu.Lock()
	defer g.mu.Unlock()
	l.starting = false
	limits := g.cfg.Limits(l.name)
	b := &runningBatch[Req, Res]{begun: time.Now(), maxSize: limits.Size}
	size := limits.Size
	if l.size > 0 {
		size = min(l.size, size)
	}
	rest, weight := l.waiting[:0], 0
	for i, m := range l.waiting {
		if len(b.members) >= size || limits.Weight > 0 && weight >= limits.Weight {
			rest = append(rest, l.waiting[i:]...)
			break
		}
		k := g.keys[m.key]
		if k.busy {
			rest = append(rest, m)
			continue
		}
		g.countDequeued(l, m)
		if err := m.ctx.Err(); err != nil {
			m.finishWith(err)
			continue
		}
		if m.key != "" {
			g.keys[m.key] = keyState{waiting: k.waiting - 1, busy: true}
		}
		b.members = append(b.members, m)
		weight += m.weight
	}
	clear(l.waiting[len(rest):])
	l.waiting = rest
	if len(b.members) == 0 {
		l.blocked = true
		return nil
	}
	b.full = len(b.members) == size
	if limits.Patience > 0 {
		l.current = b
	}
	g.startIfNeeded(l)
	return b
}

// endBatch is called when a worker's batch has ended. b is nil if the worker found no request. It returns the
// lane with which the worker continues, or nil, and starts workers for other lanes that waited.
func (g *Group[L, Req, Res]) endBatch(l *lane[L, Req, Res], b *runningBatch[Req, Res], whole bool) (next *lane[L, Req, Res]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l.running--
	g.running--
	if b != nil {
		g.unblockWaiting(l, b, whole)
	}
	if g.cfg.Key == nil && g.cfg.MaxCommits == 0 {
		// No other lane waits for this one.
		if g.reserveWorker(l) {
			return l
		}
		g.dropIfIdle(l)
		return nil
	}
	for _, other := range g.lanes {
		switch {
		case next == nil && g.reserveWorker(other):
			next = other
		default:
			g.startIfNeeded(other)
		}
	}
	g.dropIfIdle(l)
	return next
}

// unblockWaiting unblocks requests that waited for batch b, and adapts the size of the lane's batches.
func (g *Group[L, Req, Res]) unblockWaiting(l *lane[L, Req, Res], b *runningBatch[Req, Res], whole bool) {
	if l.current == b {
		l.current = nil
	}
	if b.patience != nil {
		b.patience.Stop()
	}
	for _, m := range b.members {
		if m.key != "" {
			g.setKey(m.key, keyState{waiting: g.keys[m.key].waiting})
		}
	}
	for _, other := range g.lanes {
		other.blocked = false
	}
	if !g.cfg.Adapt {
		return
	}
	switch {
	case !whole:
		l.size = max(len(b.members)/2, 1)
	case b.full && l.size > 0:
		l.size++
	}
	if l.size >= b.maxSize {
		l.size = 0
	}
}

// Queue describes the waiting requests of a lane.
type Queue struct {
	Requests, Weight int
	// Since is when the oldest waiting request came, or zero if none waits.
	Since time.Time
}

// Waiting describes the waiting requests of a group. It is valid only until the function that received it
// returns.
type Waiting[L cmp.Ordered] interface {
	// Lane describes the waiting requests of a lane.
	Lane(L) Queue
	// Key returns the number of waiting requests of a key.
	Key(string) int
}

// Look calls fn with a description of the waiting requests. fn must not block or call the group.
func (g *Group[L, Req, Res]) Look(fn func(Waiting[L])) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fn((*view[L, Req, Res])(g))
}

// view implements Waiting for a Group whose mutex is held.
type view[L cmp.Ordered, Req, Res any] Group[L, Req, Res]

func (v *view[L, Req, Res]) Lane(name L) Queue {
	i, ok := (*Group[L, Req, Res])(v).findLane(name)
	if !ok {
		return Queue{}
	}
	l := v.lanes[i]
	q := Queue{Requests: len(l.waiting), Weight: l.weight}
	if q.Requests > 0 {
		q.Since = l.waiting[0].since
	}
	return q
}

func (v *view[L, Req, Res]) Key(name string) int { return v.keys[name].waiting }
