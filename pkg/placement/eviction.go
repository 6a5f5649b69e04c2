package placement

import (
	"cmp"
	"slices"
	"time"
)

// A server with an Eviction makes room for a model that has no server: it unloads models that are OnRequest. Requests
// for an evicted model wait until it is loaded again. Room is made for models that are not OnRequest, and for models
// for which requests wait, the longest waiting first. Other models get only free room, the last used first.
//
// A model is not evicted while it has requests in flight, while requests wait for it, or before it has served for
// Eviction.Keep. Eviction.PerMinute bounds the evictions of a server. So models that take turns on a server which is
// too small cause a bounded number of loads, and requests wait longer instead.

// Eviction is how a server unloads models to make room for other models.
type Eviction struct {
	// PerMinute is the maximum number of evictions in any minute.
	PerMinute int
	// Keep is how long a model serves before it may be evicted.
	Keep time.Duration
	// Past are the times of the server's evictions, at least those of the last minute.
	Past []time.Time
}

// remaining returns how many models may be evicted at the time now.
func (e *Eviction) remaining(now time.Time) int {
	n := e.PerMinute
	for _, at := range e.Past {
		if now.Sub(at) < time.Minute {
			n--
		}
	}
	return max(0, n)
}

// isRequested reports whether the model needs a server now.
func (m *Model) isRequested() bool { return m.OnRequest && (m.New || !m.Requested.IsZero()) }

// compareUrgency orders models by the need for a server: first those for which requests wait, the longest waiting
// first, then new ones, and then the rest, the last used first.
func compareUrgency(a, b *Model) int {
	waits := func(m *Model) bool { return m.OnRequest && !m.Requested.IsZero() }
	if waits(a) && waits(b) {
		return a.Requested.Compare(b.Requested)
	}
	return cmp.Or(compareBool(waits(a), waits(b)), compareBool(a.isRequested(), b.isRequested()), b.LastUsed.Compare(a.LastUsed))
}

// promise reserves room for a model.
func (r *candidate) promise(m *Model) {
	r.comingFree = saturatingSubtract(r.comingFree, m.Memory)
	r.comingSlots--
	r.rate += m.Rate
}

// nextLeaving returns the server with the fewest requests where other models leave enough room, or nil.
func (p *placement) nextLeaving(m *Model) *candidate {
	var best *candidate
	for _, r := range p.candidates {
		if r.lacksRoom(m) && r.comingSlots > 0 && r.comingFree >= max(0, m.Memory) && (best == nil || r.rate < best.rate) {
			best = r
		}
	}
	return best
}

// lacksRoom reports whether room is all that the server lacks for a replica of the model.
func (r *candidate) lacksRoom(m *Model) bool {
	reason := r.refusalReason(m)
	return reason == NoSlot || reason == NoMemory
}

// victims are models whose eviction makes enough room on a server.
type victims struct {
	server *candidate
	models []string
	// lastUsed is when one of them was last used.
	lastUsed time.Time
}

// evictFor evicts models to make room for another one, and returns the server. Nil: no server can make room now.
//
// Of the servers whose victims were unused for long enough, the one with the fewest requests evicts, so that models
// with many requests spread. Long enough is half the time of the server whose victims were unused for longest.
func (p *placement) evictFor(m *Model) *candidate {
	var options []victims
	longest := time.Duration(0)
	for _, r := range p.candidates {
		if v, ok := p.victimsOn(r, m); ok {
			options = append(options, v)
			longest = max(longest, p.now.Sub(v.lastUsed))
		}
	}
	options = slices.DeleteFunc(options, func(v victims) bool { return p.now.Sub(v.lastUsed) < longest/2 })
	if len(options) == 0 {
		return nil
	}
	best := slices.MinFunc(options, func(a, b victims) int {
		return cmp.Or(cmp.Compare(a.server.rate, b.server.rate), cmp.Compare(len(a.models), len(b.models)), a.lastUsed.Compare(b.lastUsed))
	})
	for _, id := range best.models {
		r, one := best.server, p.planOf[id]
		r.evicted[id] = true
		r.evictions--
		r.rate -= one.model.Rate
		r.comingFree = add(r.comingFree, max(0, r.holds[id].Memory))
		r.comingSlots++
		one.kept = slices.DeleteFunc(one.kept, func(c *candidate) bool { return c == r })
		p.apps[appModel{r.server.App, id}]--
	}
	return best.server
}

// victimsOn returns the least recently used models on a server whose eviction makes room for m. ok is false if the
// server cannot make room now.
func (p *placement) victimsOn(r *candidate, m *Model) (v victims, ok bool) {
	if r.evictions == 0 || !r.lacksRoom(m) {
		return v, false
	}
	var ids []string
	for id, h := range r.holds {
		one := p.planOf[id]
		if one == nil || !one.model.OnRequest || one.model.isRequested() || one.model.Busy || !h.Serving || h.Leaving || r.evicted[id] || p.now.Sub(h.Since) < r.server.Eviction.Keep {
			continue
		}
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int {
		return cmp.Or(p.planOf[a].model.LastUsed.Compare(p.planOf[b].model.LastUsed), cmp.Compare(a, b))
	})
	free, slots := r.comingFree, r.comingSlots
	v.server = r
	for _, id := range ids[:min(len(ids), r.evictions)] {
		v.models, v.lastUsed = append(v.models, id), p.planOf[id].model.LastUsed
		free, slots = add(free, max(0, r.holds[id].Memory)), slots+1
		if slots > 0 && free >= max(0, m.Memory) {
			return v, true
		}
	}
	return v, false
}

// isLoadable reports whether a request can load one more replica of the model: some server lacks only room, and has
// enough of it once all models that are OnRequest have left.
func (p *placement) isLoadable(m *Model) bool {
	if !m.OnRequest {
		return false
	}
	return slices.ContainsFunc(p.candidates, func(r *candidate) bool {
		leaves := r.evicted[m.ID] || r.holds[m.ID].Leaving
		if r.server.Eviction == nil || !r.lacksRoom(m) && (!leaves || r.refusalReason(m) != HasReplica) {
			return false
		}
		free, slots := memoryLimit(r.server.Memory, r.server.Overcommit), r.server.Slots
		for id, h := range r.holds {
			if one := p.planOf[id]; !h.Leaving && (one == nil || !one.model.OnRequest) {
				free, slots = saturatingSubtract(free, h.Memory), slots-1
			}
		}
		return free >= max(0, m.Memory) && (r.server.Slots == 0 || slots > 0)
	})
}
