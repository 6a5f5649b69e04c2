package strategy

import (
	"slices"
	"strconv"
	"strings"
)

// Next is the arithmetic of moving one region from some versions of an app to another: how many
// replicas each version has goes in, and how many it has next, with what share of the traffic,
// comes out. Every strategy uses it.
//
// Three rules hold of every step, whatever the region does meanwhile:
//
//	existing <= size + surge          what is being stopped counts as existing
//	serving  >= size - unavailable    or as many as there are, if there are fewer
//	weights first                     a version shrinks by what the region no longer
//	                                  routes to it, as it has acknowledged
//
// While a version moves in that asks for fewer replicas than the live one has, the first two
// are about the live version's size: fewer replicas are enough once the new version has shown
// that it serves with them.
//
//	replicas 4 -> 2, surge 1    4/0 4/1 3/1 3/2    3 old replicas stay as a way back
//
// The first and the second are about what certainly is, not what was asked for: a side
// whose region has not yet answered the last change may have any number of replicas in
// between. So nothing grows while a side is unknown, and a side that is unknown counts
// for nothing in the second rule.
//
// Replicas that are not ready go first: they serve no requests, and a broken old replica must
// not delay the version that mends it. Runtimes do the same: when the count shrinks, they stop
// the replicas that are not ready.

// Full is the weight of a version that has a region to itself.
const Full int32 = 100

// Side is one version in the region.
type Side struct {
	// Assigned is how many replicas the region should run.
	Assigned int32
	// Known reports whether the region's word is of that.
	Known bool
	// Ready is how many certainly serve; Serving is how many seem to, for weights.
	Ready, Serving int32
	// Existing is how many there may be, those that are being stopped included.
	Existing int32
	// Weight that it has.
	Weight int32
	// Outdated is how many of what serves is not yet what the version is made of.
	Outdated int32
	// Live: the version is the one that is live.
	Live bool
	// Withdrawn: the version failed, or people took it back. While another version serves, it
	// gets no traffic.
	Withdrawn bool
	// Transfers: its workload goes to the other version, with all replicas and their traffic at once.
	// The region replaces them in their places, within their number.
	Transfers bool
}

// RegionPlan is a region that moves to one version from others.
type RegionPlan struct {
	// Size is how many replicas are wanted. Need is how many ready ones are enough for the
	// region to be done; it does not lower what must serve meanwhile.
	Size, Need int32
	// Surge and Unavailable are how far a step may go beyond Size and below it.
	Surge, Unavailable int32
	// OldFloor is how many replicas must serve, by the size of the live version, until the new
	// one serves with all of its own. OldCeiling is how many may exist by that size, so that
	// what else the live version has can stay as a way back. 0: only Size counts.
	OldFloor, OldCeiling int32
	// Recreate: the others stop before the version starts.
	Recreate bool
	// Hold: no side grows or shrinks, and while the live version serves, it loses no traffic.
	// The other versions lose theirs to it when their replicas stop being ready.
	Hold bool
	// Closed: nothing may grow. Held, it gives up what is beyond Most, so that it can be scaled down.
	Closed bool
	Most   int32
	// To is the version; Absent: the region has no assignment of it yet.
	To     Side
	Absent bool
	// From are the others, in the order in which they go.
	From []Side
	// Keep is how many replicas the last of From keeps, as a way back, where there is
	// room for them.
	Keep int32
	// Stop is where the version is to stay for now; nil: it goes all the way, with the
	// share of the traffic that its ready replicas are.
	Stop *Stop
	// Leaving is how many replicas there may be of versions that stop altogether;
	// LeavingKnown reports whether the region has answered that.
	Leaving      int32
	LeavingKnown bool
	// Acknowledged reports whether the region routes by the weights.
	Acknowledged bool
}

// Stop is a point at which the version and the last of From share a region, or the end
// of a way with such points.
type Stop struct {
	// Replicas of the version.
	Replicas int32
	// Weight of it, once enough of them are ready; before, as much of it as are. With
	// Share it is what is ready of each side.
	Weight int32
	Share  bool
	// Whole: no part of the weight for a part of the replicas.
	Whole bool
}

// Targets are the replicas and weights that the sides get next.
type Targets struct {
	To          int32
	From        []int32
	ToWeight    int32
	FromWeights []int32
}

// floor is how many replicas have to serve for a side to shrink by ready ones.
func (l RegionPlan) floor() int32 {
	n := max(0, l.Size-l.Unavailable)
	if l.goal() == l.Size && l.Serves() {
		return n
	}
	return max(n, l.OldFloor)
}

// Ceiling is how many replicas may exist.
func (l RegionPlan) Ceiling() int32 {
	if l.Recreate {
		return l.Size
	}
	return max(l.Size+l.Surge, l.OldCeiling)
}

// goal returns how many replicas the version should have for now.
func (l RegionPlan) goal() int32 {
	if l.Stop != nil {
		return min(l.Stop.Replicas, l.Size)
	}
	return l.Size
}

// Enough is how many ready replicas of the version let it serve alone, or as its stop says:
// Need, and while other versions serve, all but Unavailable. Fewer would take traffic from
// more replicas than a step may remove.
func (l RegionPlan) Enough() int32 {
	n := l.Need
	for _, f := range l.From {
		if f.Serving > 0 {
			n = max(n, l.goal()-l.Unavailable)
		}
	}
	return min(n, l.goal())
}

// Serves reports whether the version has all its replicas, and enough of them ready.
func (l RegionPlan) Serves() bool {
	return !l.Absent && l.To.Known && l.To.Assigned >= l.goal() && l.To.Assigned <= l.Size && l.To.Ready >= l.Enough() && l.To.Outdated == 0
}

// Stopped reports whether the version serves as its stop says, by the region's word.
func (l RegionPlan) Stopped() bool {
	s := Next(l)
	return l.Serves() && s.weighed(l)
}

// Alone reports whether all traffic goes to the version, as the region reports, and the others
// have no more replicas than they keep.
func (l RegionPlan) Alone() bool {
	if !l.Acknowledged || l.To.Weight != Full {
		return false
	}
	for i, f := range l.From {
		if !f.Known || f.Weight != 0 || f.Assigned > l.keep(i) {
			return false
		}
	}
	return true
}

func (l RegionPlan) keep(i int) int32 {
	if l.Recreate || i < len(l.From)-1 {
		return 0
	}
	return max(0, min(l.Keep, l.Ceiling()-l.goal()))
}

// known reports whether the region has answered everything.
func (l RegionPlan) known() bool {
	known := l.To.Known && l.LeavingKnown
	for _, f := range l.From {
		known = known && f.Known
	}
	return known
}

// Existing is how many replicas there may be.
func (l RegionPlan) Existing() int32 {
	n := l.To.Existing + l.Leaving
	for _, f := range l.From {
		n += f.Existing
	}
	return n
}

// Next is the step that the region may take now. Taken, or not, it may be asked again.
func Next(l RegionPlan) Targets {
	if i := l.handsOver(); i >= 0 {
		return l.takeOver(i)
	}
	s := Targets{From: l.shrunk()}
	room := l.room()
	// The way back first: a version that stays at a stop is scaled like any other.
	if last := len(l.From) - 1; l.Stop != nil && last >= 0 && l.abandoned() == 0 {
		more := min(max(0, l.keep(last)-l.From[last].Assigned), room)
		s.From[last] += more
		room -= more
	}
	s.To = l.grown(room)
	s.weigh(l)
	if l.Hold || !s.weighed(l) {
		for i, f := range l.From {
			s.From[i] = f.Assigned
		}
	}
	if l.Hold {
		s.To = l.To.Assigned
	}
	s.fit(l)
	return s
}

// handsOver is which of the others hands its replicas over now, -1 for none.
func (l RegionPlan) handsOver() int {
	if l.Hold || l.To.Assigned > 0 {
		return -1
	}
	for i, f := range l.From {
		if f.Transfers && f.Assigned > 0 {
			return i
		}
	}
	return -1
}

// takeOver is the step by which the version has the replicas of that one. Nothing starts
// and nothing stops by it, so that nothing is waited for.
func (l RegionPlan) takeOver(i int) Targets {
	s := Targets{To: l.From[i].Assigned, ToWeight: l.To.Weight + l.From[i].Weight}
	for j, f := range l.From {
		if j == i {
			f.Assigned, f.Weight = 0, 0
		}
		s.From, s.FromWeights = append(s.From, f.Assigned), append(s.FromWeights, f.Weight)
	}
	return s
}

// room is how many replicas more may exist.
func (l RegionPlan) room() int32 {
	if !l.known() {
		return 0
	}
	return max(0, l.Ceiling()-l.Existing())
}

// abandoned is how many replicas are assigned to the region of versions that are no way
// back.
func (l RegionPlan) abandoned() (n int32) {
	for _, f := range l.From[:max(0, len(l.From)-1)] {
		n += f.Assigned
	}
	return n
}

// grown returns how many replicas the version may have, with capacity for room more. It keeps
// what it has beyond a stop, because it needs them soon.
func (l RegionPlan) grown(room int32) int32 {
	switch {
	case l.To.Assigned > l.Size && l.To.Outdated > 0 && l.OldFloor > 0:
		return l.To.Assigned // it took over more replicas than it needs, and has yet to replace them
	case l.To.Assigned >= l.goal():
		return min(l.To.Assigned, l.Size)
	}
	if l.Recreate {
		for _, f := range l.From {
			if f.Assigned > 0 || f.Existing > 0 {
				return l.To.Assigned
			}
		}
	}
	return min(l.goal(), l.To.Assigned+room)
}

// shrunk is how many replicas each of the others may do with.
func (l RegionPlan) shrunk() []int32 {
	out := make([]int32, len(l.From))
	if l.Recreate {
		return out
	}
	serving := min(l.To.Ready, l.grown(0))
	for _, f := range l.From {
		serving += f.Ready
	}
	spare := max(0, serving-l.floor())
	for i, f := range l.From {
		out[i] = f.Assigned
		if !f.Known {
			continue
		}
		keep, idle := l.keep(i), f.Assigned-f.Ready
		if l.abandoned() > 0 {
			// What does not serve is no way back, and would hold up what mends it.
			keep = min(keep, f.Ready)
		}
		drop := max(0, min(f.Assigned-keep, idle+spare))
		spare -= max(0, drop-idle)
		out[i] = f.Assigned - drop
	}
	return out
}

// weigh shares the traffic out by what is ready, and will be after the step.
func (s *Targets) weigh(l RegionPlan) {
	s.ToWeight, s.FromWeights = l.To.Weight, make([]int32, len(l.From))
	for i, f := range l.From {
		s.FromWeights[i] = f.Weight
	}
	give := s.parts(l)
	if l.Stop != nil && !l.Stop.Share && l.To.Serving > 0 {
		if rest, ok := share(give[1:], Full-l.stopWeight()); ok {
			s.ToWeight, s.FromWeights = l.stopWeight(), rest
			s.holdWeights(l)
			return
		}
	}
	if shares, ok := share(give, Full); ok {
		s.ToWeight, s.FromWeights = shares[0], shares[1:]
		s.holdWeights(l)
		return
	}
	// Nothing will serve. The version that goes loses the traffic first, even if it does not
	// serve: it may begin to serve before the region applies this. Otherwise the version that
	// has the traffic keeps it.
	for i := range l.From {
		if s.From[i] == 0 && !l.Hold {
			s.FromWeights[i] = 0
		}
	}
	// The weights of a route are shares of all of its traffic. If a side keeps some, the version that is
	// wanted gets what the others lost, because no other version may get more.
	kept := s.ToWeight
	for _, w := range s.FromWeights {
		kept += w
	}
	if kept > 0 {
		s.ToWeight += Full - kept
	}
}

// parts are the replicas by which each side gets traffic, the version's first.
func (s *Targets) parts(l RegionPlan) []int32 {
	give := make([]int32, len(l.From)+1)
	give[0] = l.To.Serving
	for i, f := range l.From {
		switch {
		case l.Stop == nil && l.Serves():
		case l.Hold:
			give[i+1] = f.Serving
		default:
			give[i+1] = min(f.Serving, s.From[i])
		}
	}
	if l.Serves() && l.Size == 0 {
		give[0] = 1
	}
	for i, n := range give {
		if n == 0 || i > 0 && l.From[i-1].Withdrawn {
			continue
		}
		// Something else serves.
		for j, f := range l.From {
			if f.Withdrawn {
				give[j+1] = 0
			}
		}
		break
	}
	return give
}

// holdWeights has the live version, while it serves and the region plan is held, keep the traffic
// that it has: no other version gets more than before.
func (s *Targets) holdWeights(l RegionPlan) {
	sides, weights := []Side{l.To}, []*int32{&s.ToWeight}
	for i, f := range l.From {
		sides, weights = append(sides, f), append(weights, &s.FromWeights[i])
	}
	live := slices.IndexFunc(sides, func(f Side) bool { return f.Live && f.Serving > 0 })
	if !l.Hold || live < 0 {
		return
	}
	rest := Full
	for i, f := range sides {
		if i != live {
			*weights[i] = min(*weights[i], f.Weight)
			rest -= *weights[i]
		}
	}
	*weights[live] = rest
}

// stopWeight is the version's at its stop, with the replicas that are ready now.
func (l RegionPlan) stopWeight() int32 {
	switch {
	case l.Serves() || l.goal() == 0:
		return l.Stop.Weight
	case l.Stop.Whole:
		return min(l.To.Weight, l.Stop.Weight)
	}
	ready := min(l.To.Serving, l.goal())
	return max(min(1, l.Stop.Weight), l.Stop.Weight*ready/l.goal())
}

// weighed reports whether the region routes by the step's weights already.
func (s *Targets) weighed(l RegionPlan) bool {
	if !l.Acknowledged || s.ToWeight != l.To.Weight {
		return false
	}
	for i, f := range l.From {
		if s.FromWeights[i] != f.Weight {
			return false
		}
	}
	return true
}

// share splits the sum in proportion: whole numbers, none of them zero for what is not
// if the sum has enough for all.
func share(parts []int32, sum int32) (shares []int32, ok bool) {
	var total, largest int32
	for i, n := range parts {
		total += n
		if n > parts[largest] {
			largest = int32(i)
		}
	}
	if total == 0 {
		return nil, false
	}
	shares = make([]int32, len(parts))
	rest := sum
	for i, n := range parts {
		if n > 0 {
			shares[i] = int32(int64(sum) * int64(n) / int64(total))
		}
		if n > 0 && int(sum) >= len(parts) {
			shares[i] = max(1, shares[i])
		}
		rest -= shares[i]
	}
	shares[largest] += rest
	return shares, true
}

// Bounds turns what a policy says into replicas: surge rounded up, unavailable rounded
// down and no more than there are. Were both zero nothing could ever move: then one may
// be unavailable. Texts are counts or percentages, empty for the default.
func Bounds(maxSurge, maxUnavailable string, size int32) (surge, unavailable int32) {
	surge = min(amount(maxSurge, DefaultSurge, size, true), size)
	unavailable = min(amount(maxUnavailable, DefaultUnavailable, size, false), size)
	if surge == 0 && unavailable == 0 {
		unavailable = min(1, size)
	}
	return surge, unavailable
}

// Defaults of a policy: a small surge, and no replica fewer.
const (
	DefaultSurge       = "25%"
	DefaultUnavailable = "0"
)

// Amount is the count of those, or the share of them, rounded up, that a text names which the
// API has checked; 0 for none.
func Amount(text string, of int32) int32 { return amount(text, "", of, true) }

// amount reads a text that the API has checked; what is none counts as zero.
func amount(text, otherwise string, of int32, up bool) int32 {
	if text == "" {
		text = otherwise
	}
	percent, isPercent := strings.CutSuffix(text, "%")
	n, err := strconv.ParseInt(percent, 10, 32)
	if err != nil {
		return 0
	}
	if !isPercent {
		return int32(n)
	}
	n *= int64(of)
	if up {
		n += 99
	}
	return int32(min(n/100, int64(1<<30)))
}
