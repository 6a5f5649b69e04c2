// Package placement decides which servers hold which models. It is pure: the same servers and models give the
// same result, so that a plan shows what a region would do.
//
// # How a model finds its servers
//
// Filters skip servers that must not hold the model, and count the reasons. Place prefers servers that already hold
// the model. Servers of an app that holds it on another server come next, and then servers with more free memory. Equal
// servers are in the order of names and indices.
//
// Invariants:
//
//   - A server is never assigned more than its memory and its slots. Models count while
//     they load, are loaded or unload.
//   - First every model gets its minimum, then every model gets the rest. So a model gets
//     no replica above its minimum while another model, which fits into the same room, is
//     below its minimum.
//   - A replica stays where it is while its server may hold it. Replicas do not move to
//     make room or to spread better.
//   - A server that drains keeps a model until enough other servers serve it.
//   - Only servers with an Eviction unload models to make room. See eviction.go.
package placement

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Server is one replica of an app that serves models.
type Server struct {
	// App and Index identify the server.
	App   string
	Index int
	// Scope must be equal for a server and its models. Models of another scope do not know the server.
	Scope string
	// Capabilities are the capabilities that models may require.
	Capabilities []string
	// Memory is the memory for models, in bytes.
	Memory int64
	// Overcommit is how much more than Memory may be assigned, in percent of Memory.
	Overcommit int
	// Slots is the maximum number of models. 0 means any number.
	Slots int
	// Draining is whether the server takes no further models, because it is going to stop or is not ready.
	Draining bool
	// Holds are the models that use memory of the server, including models that load or unload.
	Holds []Held
	// Eviction says how the server unloads models to make room. Nil: it does not.
	Eviction *Eviction
}

// Key identifies a server.
type Key struct {
	App   string
	Index int
}

// Key returns the server's key.
func (s *Server) Key() Key { return Key{s.App, s.Index} }

// Held is a model on a server.
type Held struct {
	Model string
	// Name is the model's name on the server. A server holds only one model of each name.
	Name   string
	Memory int64
	// Serving is whether the model gets traffic.
	Serving bool
	// Leaving is whether the model is being unloaded. It uses its memory until it is gone.
	Leaving bool
	// Since is when the model began to serve here.
	Since time.Time
}

// Model is a version of a model.
type Model struct {
	ID, Name, Scope string
	// Requires are capabilities, all of which a server must have.
	Requires []string
	// App is the only app whose servers may hold the model. Empty means any.
	App string
	// Quarantined are the apps whose servers the model has killed.
	Quarantined []string
	// Failed are servers on which the model failed to load and is not tried again yet.
	Failed []Key
	Memory int64
	// Replicas is how many servers should hold the model. The model is available if at least MinReplicas hold it.
	Replicas, MinReplicas int
	// OnRequest is whether the model may be evicted, because requests for it wait until it is loaded again.
	OnRequest bool
	// Requested is since when requests wait for a model that is OnRequest. Zero: none waits. New means that no request
	// waits, and that the model has never been loaded: it is loaded once, after models for which requests wait.
	Requested time.Time
	New       bool
	// LastUsed is when the model last got a request. Rate is its number of requests per second. Busy is whether
	// requests are in flight. Place reads the three only for models that are OnRequest.
	LastUsed time.Time
	Rate     float64
	Busy     bool
}

// Decision is where a model should be.
type Decision struct {
	Model string
	// Servers are the servers that should hold the model. Load has the elements of Servers that do not hold it yet.
	Servers, Load []Key
	// Unload are servers that should not hold the model any more. Evict are servers that should unload it to make
	// room for another model.
	Unload, Evict []Key
	// Short is how many replicas have no server. Promised is how many of them wait for room that other models are
	// leaving.
	Short, Promised int
	// Refused says why other servers do not hold the model, if Short is not 0.
	Refused Refused
	// OnRequest is whether a request can load the replicas that have no server, because a server can make room.
	OnRequest bool
}

// Place decides where models should be at the time now. Decisions are in the order of the models' ids.
//
// A server holds a model at most once. If a server holds a model that is not in models, Place does not unload it,
// because models may be incomplete.
func Place(now time.Time, servers []Server, models []Model) []Decision {
	order := slices.Clone(models)
	slices.SortFunc(order, func(a, b Model) int { return cmp.Compare(a.ID, b.ID) })
	p := newPlacement(now, servers)
	for i := range order {
		p.plans = append(p.plans, &modelPlan{model: &order[i], decision: Decision{Model: order[i].ID}})
		p.planOf[order[i].ID] = p.plans[i]
	}
	for _, one := range p.plans {
		one.kept = p.keptServers(one.model)
		for _, r := range one.kept {
			r.rate += one.model.Rate / float64(len(one.kept))
		}
	}
	p.placeReplicas()
	decisions := make([]Decision, len(order))
	for i, one := range p.plans {
		p.completeDecision(one)
		decisions[i] = one.decision
	}
	return decisions
}

// modelPlan is the decision about a model while it is made.
type modelPlan struct {
	model    *Model
	decision Decision
	// kept are the servers that should hold the model.
	kept []*candidate
	// promised is how many replicas wait for room that another model is leaving.
	promised int
}

// placeReplicas gives servers to the replicas that have none. Each pass comes after all of the pass before it, so that
// minimums come before the rest. In each pass, models that were used last come first.
func (p *placement) placeReplicas() {
	minimum := func(m *Model) int { return min(m.MinReplicas, m.Replicas) }
	all := func(m *Model) int { return m.Replicas }
	for _, pass := range []struct {
		applies func(*Model) bool
		wanted  func(*Model) int
		// evicts is whether other models may be evicted for a replica.
		evicts bool
	}{
		{func(m *Model) bool { return !m.OnRequest }, minimum, true},
		{(*Model).isRequested, func(m *Model) int { return min(max(1, m.MinReplicas), m.Replicas) }, true},
		{func(m *Model) bool { return m.OnRequest }, minimum, false},
		{func(m *Model) bool { return !m.OnRequest }, all, true},
		{func(m *Model) bool { return m.OnRequest }, all, false},
	} {
		var order []*modelPlan
		for _, one := range p.plans {
			if pass.applies(one.model) {
				order = append(order, one)
			}
		}
		slices.SortStableFunc(order, func(a, b *modelPlan) int { return compareUrgency(a.model, b.model) })
		for _, one := range order {
			for len(one.kept)+one.promised < pass.wanted(one.model) {
				if !p.placeReplica(one, pass.evicts) {
					break
				}
			}
		}
	}
}

// placeReplica gives a server to one more replica of a model, or room that another model is leaving. It returns false
// if there is neither.
func (p *placement) placeReplica(one *modelPlan, evicts bool) bool {
	if next := p.next(one.model); next != nil {
		next.take(one.model)
		p.apps[appModel{next.server.App, one.model.ID}]++
		one.kept = append(one.kept, next)
		one.decision.Load = append(one.decision.Load, next.server.Key())
		return true
	}
	// A model whose load has failed makes no room until it is tried again. Otherwise it would empty a slot of each
	// server.
	if !evicts || len(one.model.Failed) > 0 {
		return false
	}
	r := p.nextLeaving(one.model)
	if r == nil {
		if r = p.evictFor(one.model); r == nil {
			return false
		}
	}
	r.promise(one.model)
	one.promised++
	return true
}

// candidate is a server with its free memory and slots.
type candidate struct {
	server *Server
	free   int64
	slots  int
	// comingFree and comingSlots also count the room that models are leaving, without the room that is promised to
	// other models.
	comingFree  int64
	comingSlots int
	// rate is the number of requests per second of the models on the server.
	rate float64
	// evictions is how many more models the server may evict now. evicted are those that this placement evicts.
	evictions int
	evicted   map[string]bool
	holds     map[string]Held
	// assigned are the models that this placement adds. names has the model of each name on the server.
	assigned map[string]bool
	names    map[string]string
}

type appModel struct{ app, model string }

type placement struct {
	now        time.Time
	candidates []*candidate
	plans      []*modelPlan
	planOf     map[string]*modelPlan
	// apps counts the servers of an app that hold a model.
	apps map[appModel]int
	// holders are the servers that hold a model.
	holders map[string][]*candidate
}

func newPlacement(now time.Time, servers []Server) *placement {
	p := &placement{now: now, planOf: map[string]*modelPlan{}, apps: map[appModel]int{}, holders: map[string][]*candidate{}}
	for i := range servers {
		s := &servers[i]
		r := &candidate{server: s, free: memoryLimit(s.Memory, s.Overcommit), slots: math.MaxInt, holds: map[string]Held{}, assigned: map[string]bool{}, names: map[string]string{}}
		if s.Slots > 0 {
			r.slots = s.Slots
		}
		r.comingFree, r.comingSlots = r.free, r.slots
		if s.Eviction != nil {
			r.evictions, r.evicted = s.Eviction.remaining(now), map[string]bool{}
		}
		for _, h := range s.Holds {
			r.holds[h.Model] = h
			r.names[h.Name] = h.Model
			r.free = saturatingSubtract(r.free, h.Memory)
			r.slots--
			if !h.Leaving {
				r.comingFree = saturatingSubtract(r.comingFree, h.Memory)
				r.comingSlots--
			}
		}
		p.candidates = append(p.candidates, r)
	}
	slices.SortFunc(p.candidates, func(a, b *candidate) int {
		return cmp.Or(cmp.Compare(a.server.App, b.server.App), cmp.Compare(a.server.Index, b.server.Index))
	})
	for _, r := range p.candidates {
		for model, h := range r.holds {
			p.holders[model] = append(p.holders[model], r)
			if !h.Leaving {
				p.apps[appModel{r.server.App, model}]++
			}
		}
	}
	return p
}

// keptServers returns the servers that hold a model and should keep it. completeDecision handles the other servers that hold it.
func (p *placement) keptServers(m *Model) []*candidate {
	var kept []*candidate
	for _, r := range p.holders[m.ID] {
		if !r.holds[m.ID].Leaving && !r.server.Draining && permitReason(r.server, m) == 0 {
			kept = append(kept, r)
		}
	}
	// Replicas that serve are removed last. Of two equal replicas, the one on the server with less free memory is
	// removed first.
	slices.SortStableFunc(kept, func(a, b *candidate) int {
		return cmp.Or(compareBool(a.holds[m.ID].Serving, b.holds[m.ID].Serving), cmp.Compare(b.free, a.free))
	})
	return kept[:min(len(kept), max(0, m.Replicas))]
}

// next returns the best server that can hold one more replica, or nil.
func (p *placement) next(m *Model) *candidate {
	var best *candidate
	for _, r := range p.candidates {
		if r.refusalReason(m) != 0 {
			continue
		}
		if best == nil || p.compare(r, best, m) < 0 {
			best = r
		}
	}
	return best
}

// compare orders servers that can hold a model, the best first. Equal servers keep their order, which is the order
// of names.
func (p *placement) compare(a, b *candidate, m *Model) int {
	has := func(r *candidate) bool { return p.apps[appModel{r.server.App, m.ID}] > 0 }
	return cmp.Or(compareBool(has(a), has(b)), cmp.Compare(b.free, a.free), cmp.Compare(a.rate, b.rate), cmp.Compare(b.slots, a.slots))
}

// compareBool orders true before false.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func (r *candidate) take(m *Model) {
	r.free = saturatingSubtract(r.free, m.Memory)
	r.slots--
	r.promise(m)
	r.assigned[m.ID] = true
	r.names[m.Name] = m.ID
}

// completeDecision fills in a decision from the servers that should hold the model.
func (p *placement) completeDecision(one *modelPlan) {
	d, m := &one.decision, one.model
	serving := 0
	should := map[*candidate]bool{}
	for _, r := range one.kept {
		should[r] = true
		d.Servers = append(d.Servers, r.server.Key())
		if r.holds[m.ID].Serving {
			serving++
		}
	}
	d.Short, d.Promised = max(0, m.Replicas-len(one.kept)), one.promised
	for _, r := range p.holders[m.ID] {
		held := r.holds[m.ID]
		if should[r] || held.Leaving {
			continue
		}
		if r.evicted[m.ID] {
			d.Evict = append(d.Evict, r.server.Key())
			continue
		}
		// A replica that serves is unloaded only after enough other replicas serve. If other servers have no room, it
		// stays.
		if held.Serving && m.Replicas > 0 && permitReason(r.server, m) == 0 && serving < m.Replicas {
			continue
		}
		d.Unload = append(d.Unload, r.server.Key())
	}
	if d.Short > 0 {
		d.Refused, d.OnRequest = p.explainRefusal(m), p.isLoadable(m)
	}
}

// memoryLimit returns how many bytes may be assigned to a server with this memory and overcommit. It does not overflow.
func memoryLimit(memory int64, overcommit int) int64 {
	memory, percent := max(0, memory), int64(max(0, overcommit))
	if percent == 0 {
		return memory
	}
	extra := add(saturatingMultiply(memory/100, percent), saturatingMultiply(memory%100, percent)/100)
	return add(memory, extra)
}

// add returns the sum of a number and one that is not negative, or the largest int64 if the sum overflows.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func saturatingMultiply(a, b int64) int64 {
	if b != 0 && a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}

// saturatingSubtract returns a-b, or the smallest int64 if that overflows. A b below 0 counts as 0.
func saturatingSubtract(a, b int64) int64 {
	b = max(0, b)
	if a < math.MinInt64+b {
		return math.MinInt64
	}
	return a - b
}
