package upstream

import (
	"sync"
	"time"
)

const (
	// missPause is how long requests do not look elsewhere for a model that no server had.
	missPause = time.Second
	// missSlots is how many different models are remembered at most. A further model replaces one of them.
	missSlots = 64
)

// misses remembers which models no server had. So servers get no further requests for such a model for a while, and
// requests for other models still look elsewhere.
type misses struct {
	mu sync.Mutex
	// last has the models by their keys, modulo missSlots. Nil: no model was missed yet.
	last []miss
}

type miss struct {
	key uint64
	at  time.Time
}

// NoteMissed records that no server had the model of a request. key identifies what such requests ask for.
func (r *Route) NoteMissed(key uint64) {
	r.misses.mu.Lock()
	defer r.misses.mu.Unlock()
	if r.misses.last == nil {
		r.misses.last = make([]miss, missSlots)
	}
	r.misses.last[key%missSlots] = miss{key, r.cfg.Now()}
}

// LooksElsewhere reports whether a request may look for its model on further servers. It may not soon after another
// request with the same key has looked in vain.
func (r *Route) LooksElsewhere(key uint64) bool {
	r.misses.mu.Lock()
	defer r.misses.mu.Unlock()
	if r.misses.last == nil {
		return true
	}
	m := r.misses.last[key%missSlots]
	return m.key != key || m.at.IsZero() || r.cfg.Now().Sub(m.at) >= missPause
}
