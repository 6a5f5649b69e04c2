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
	// running counts the lane's workers. starting is whether one has not taken its batch yet.
	running  int
	starting bool
	// current is the running batch whose patience has not ended. The next batch waits for it.
	current *round[Req, Res]
	// blocked is whether the key of each waiting request is being committed.
	blocked bool
	// size is the size of its batches if Config.Adapt has made it smaller than Limits.Size, else 0.
	size int
}

// round is a batch that is being committed.
type round[Req, Res any] struct {
	members []*member[Req, Res]
	begun   time.Time
	// full is whether it has as many requests as a batch of the lane may have. most is Limits.Size.
	full bool
	most int
	// late is the timer that ends the patience. It is set when another request waits.
	late *time.Timer
}

// key counts the waiting requests of a key. busy is whether another one is being committed.
type key struct {
	waiting int
	busy    bool
}

func (g *Group[L, Req, Res]) setKey(name string, k key) {
	if k == (key{}) {
		delete(g.keys, name)
	} else {
		g.keys[name] = k
	}
}

// enqueue puts a member into its lane.
func (g *Group[L, Req, Res]) enqueue(m *member[Req, Res]) (*lane[L, Req, Res], error) {
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
	l := g.lane(name)
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
	g.start(l)
	return l, nil
}

// lane returns the lane with the name, and adds it if it is missing.
func (g *Group[L, Req, Res]) lane(name L) *lane[L, Req, Res] {
	i, ok := g.find(name)
	if !ok {
		g.lanes = slices.Insert(g.lanes, i, &lane[L, Req, Res]{name: name})
	}
	return g.lanes[i]
}

func (g *Group[L, Req, Res]) find(name L) (int, bool) {
	return slices.BinarySearchFunc(g.lanes, name, func(l *lane[L, Req, Res], name L) int { return cmp.Compare(l.name, name) })
}

// keptLanes is how many lanes are kept even if they are idle, so that they are not created for each request.
const keptLanes = 16

// forget drops an idle lane without an adapted size, if there are more than keptLanes.
func (g *Group[L, Req, Res]) forget(l *lane[L, Req, Res]) {
	if len(g.lanes) <= keptLanes || len(l.waiting) > 0 || l.running > 0 || l.size > 0 {
		return
	}
	if i, ok := g.find(l.name); ok && g.lanes[i] == l {
		g.lanes = slices.Delete(g.lanes, i, i+1)
	}
}

// leave removes a waiting member, and reports whether it did.
func (g *Group[L, Req, Res]) leave(l *lane[L, Req, Res], m *member[Req, Res]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !m.queued {
		return false
	}
	i := slices.Index(l.waiting, m)
	l.waiting = slices.Delete(l.waiting, i, i+1)
	g.dequeued(l, m)
	g.forget(l)
	return true
}

// dequeued updates the counts for a member that no longer waits.
func (g *Group[L, Req, Res]) dequeued(l *lane[L, Req, Res], m *member[Req, Res]) {
	m.queued = false
	l.weight -= m.weight
	g.waiting--
	if m.key != "" {
		k := g.keys[m.key]
		k.waiting--
		g.setKey(m.key, k)
	}
}

// start begins a worker for the lane if one is due.
func (g *Group[L, Req, Res]) start(l *lane[L, Req, Res]) {
	if g.reserve(l) {
		g.begin(l)
	}
}

func (g *Group[L, Req, Res]) begin(l *lane[L, Req, Res]) {
	g.work.Add(1)
	go g.worker(l)
}

// reserve reports whether a worker of the lane is due, and counts it.
func (g *Group[L, Req, Res]) reserve(l *lane[L, Req, Res]) bool {
	if len(l.waiting) == 0 || l.blocked || l.starting || g.closed {
		return false
	}
	limits := g.cfg.Limits(l.name)
	if b := l.current; b != nil {
		if b.late == nil {
			b.late = time.AfterFunc(limits.Patience-time.Since(b.begun), func() { g.overdue(l, b) })
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

// overdue makes the lane continue without waiting for batch b.
func (g *Group[L, Req, Res]) overdue(l *lane[L, Req, Res], b *round[Req, Res]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.current == b {
		l.current = nil
		g.start(l)
	}
}

// take returns the next batch of a lane, in order of arrival, or nil.
func (g *Group[L, Req, Res]) take(l *lane[L, Req, Res]) *round[Req, Res] {
	g.mu.Lock()
	defer g.mu.Unlock()
	l.starting = false
	limits := g.cfg.Limits(l.name)
	b := &round[Req, Res]{begun: time.Now(), most: limits.Size}
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
		g.dequeued(l, m)
		if err := m.ctx.Err(); err != nil {
			m.finish(err)
			continue
		}
		if m.key != "" {
			g.keys[m.key] = key{waiting: k.waiting - 1, busy: true}
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
	g.start(l)
	return b
}

// release ends a worker's batch, which may be nil, and returns the lane with which the worker continues.
func (g *Group[L, Req, Res]) release(l *lane[L, Req, Res], b *round[Req, Res], together bool) (next *lane[L, Req, Res]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l.running--
	g.running--
	if b != nil {
		g.ended(l, b, together)
	}
	if g.cfg.Key == nil && g.cfg.MaxCommits == 0 {
		// No other lane waits for this one.
		if g.reserve(l) {
			return l
		}
		g.forget(l)
		return nil
	}
	for _, other := range g.lanes {
		switch {
		case next == nil && g.reserve(other):
			next = other
		default:
			g.start(other)
		}
	}
	g.forget(l)
	return next
}

// ended unblocks requests that waited for the batch, and adapts the lane's size.
func (g *Group[L, Req, Res]) ended(l *lane[L, Req, Res], b *round[Req, Res], together bool) {
	if l.current == b {
		l.current = nil
	}
	if b.late != nil {
		b.late.Stop()
	}
	for _, m := range b.members {
		if m.key != "" {
			g.setKey(m.key, key{waiting: g.keys[m.key].waiting})
		}
	}
	for _, other := range g.lanes {
		other.blocked = false
	}
	if !g.cfg.Adapt {
		return
	}
	switch {
	case !together:
		l.size = max(len(b.members)/2, 1)
	case b.full && l.size > 0:
		l.size++
	}
	if l.size >= b.most {
		l.size = 0
	}
}

// Queue is what waits in a lane.
type Queue struct {
	Requests, Weight int
	// Since is when the oldest request came. It is zero if none waits.
	Since time.Time
}

// Waiting is what waits in a group at a moment.
type Waiting[L cmp.Ordered] interface {
	// Lane returns what waits in a lane.
	Lane(L) Queue
	// Key returns how many requests of a key wait.
	Key(string) int
}

// Look calls fn with what waits. fn must not block, nor call the group.
func (g *Group[L, Req, Res]) Look(fn func(Waiting[L])) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fn((*view[L, Req, Res])(g))
}

// view is a Group whose mutex is held.
type view[L cmp.Ordered, Req, Res any] Group[L, Req, Res]

func (v *view[L, Req, Res]) Lane(name L) Queue {
	i, ok := (*Group[L, Req, Res])(v).find(name)
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
