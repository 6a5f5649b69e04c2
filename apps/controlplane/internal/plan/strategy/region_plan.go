package strategy

import (
	"slices"
	"strconv"
	"strings"
)

// Next does the arithmetic of moving one region from some versions of an app to another. Its input is
// how many replicas each version has. Its output is how many replicas each version has next, and with
// what share of the traffic. Every strategy uses it.
//
// Three rules hold for every step, whatever the region does during it:
//
//	existing <= size + surge          what is being stopped counts as existing
//	serving  >= size - unavailable    or as many as there are, if there are fewer
//	weights first                     a version loses replicas only after the region has
//	                                  acknowledged that they get no more traffic
//
// If the new version wants fewer replicas than the live one has, the first two rules use the live
// version's size. Fewer replicas are enough when the new version has shown that it serves with them.
//
//	replicas 4 -> 2, surge 1    4/0 4/1 3/1 3/2    3 old replicas stay as a way back
//
// The first two rules count what certainly exists, not what was asked for. A side is unknown while the
// region has not yet reported on its last change. It may then have any number of replicas between the
// old and the new number. So nothing grows while a side is unknown, and an unknown side counts as 0 in
// the second rule.
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
	// Known reports whether the region's last report is about this assignment.
	Known bool
	// Ready is how many replicas certainly serve. Serving is how many seem to serve, which decides
	// weights.
	Ready, Serving int32
	// Existing is how many replicas there may be, including those that are being stopped.
	Existing int32
	// Weight is its present share of the traffic, in percent.
	Weight int32
	// Outdated is how many of the serving replicas still have the spec of another version, from which
	// this one took them over.
	Outdated int32
	// Live: the version is live.
	Live bool
	// Withdrawn: the version failed, or people took it back. While another version serves, it
	// gets no traffic.
	Withdrawn bool
	// Transfers: its workload goes to the other version, with all replicas and their traffic at once.
	// The region then replaces them one by one or in batches, unless they can stay as they are. It
	// starts none in addition.
	Transfers bool
}

// RegionPlan is a region that moves to one version, To, from other versions, From.
type RegionPlan struct {
	// Size is how many replicas are wanted. Need is how many ready replicas complete the move. It does
	// not lower how many replicas must serve during the move.
	Size, Need int32
	// Surge and Unavailable are how far a step may go beyond Size and below it.
	Surge, Unavailable int32
	// OldFloor is how many replicas must serve until the new version serves with all its replicas.
	// OldCeiling is how many replicas may exist, so that the live version's remaining replicas can stay
	// as a way back. Both follow from the live version's size. 0: only Size counts.
	OldFloor, OldCeiling int32
	// Recreate: the others stop before the version starts.
	Recreate bool
	// Hold: no side grows or shrinks, and while the live version serves, it loses no traffic. The
	// traffic of another version goes to the live one when the replicas of the other version are no
	// longer ready.
	Hold bool
	// Closed: nothing may grow. With Hold, the region gives up the replicas beyond MaxReplicas, so that it can
	// be scaled down.
	Closed      bool
	MaxReplicas int32
	// To is the version that moves in. Absent: the region has no assignment of it yet.
	To     Side
	Absent bool
	// From are the other versions, in the order in which they go.
	From []Side
	// Keep is how many replicas the last of From keeps, as a way back, where there is
	// room for them.
	Keep int32
	// Stop is where the version stays for now. nil: it goes all the way, and its share of the traffic is
	// its share of the ready replicas.
	Stop *Stop
	// Leaving is how many replicas there may be of versions that the region should stop completely.
	// LeavingKnown reports whether the region has reported on all these versions.
	Leaving      int32
	LeavingKnown bool
	// Acknowledged reports whether the region routes by the weights.
	Acknowledged bool
}

// Stop is a point at which the version and the last of From share a region, or the end of a move that
// has such points.
type Stop struct {
	// Replicas of the version.
	Replicas int32
	// Weight is the version's share of the traffic when enough of these replicas are ready. Before that,
	// it gets a part of Weight in proportion to its ready replicas. With Share, each side gets traffic
	// in proportion to its ready replicas, and Weight does not count.
	Weight int32
	Share  bool
	// Whole: the version's share does not grow until enough replicas are ready. The version then gets
	// all of Weight at once.
	Whole bool
}

// Targets are the replicas and weights that the sides get next.
type Targets struct {
	To          int32
	From        []int32
	ToWeight    int32
	FromWeights []int32
}

// servingFloor returns how many replicas must still serve after a side has lost ready ones.
func (l RegionPlan) servingFloor() int32 {
	n := max(0, l.Size-l.Unavailable)
	if l.goalReplicas() == l.Size && l.Serves() {
		return n
	}
	return max(n, l.OldFloor)
}

// Ceiling returns the maximum number of replicas that a step may lead to.
func (l RegionPlan) Ceiling() int32 {
	if l.Recreate {
		return l.Size
	}
	return max(l.Size+l.Surge, l.OldCeiling)
}

// goalReplicas returns how many replicas the version should have for now.
func (l RegionPlan) goalReplicas() int32 {
	if l.Stop != nil {
		return min(l.Stop.Replicas, l.Size)
	}
	return l.Size
}

// Enough returns how many ready replicas the version needs to serve alone, or to serve as its stop says.
// That is Need, at most the goal. While another version serves, it is at least the goal minus Unavailable.
// With fewer, the version would take traffic from more replicas than a step may remove.
func (l RegionPlan) Enough() int32 {
	n := l.Need
	for _, f := range l.From {
		if f.Serving > 0 {
			n = max(n, l.goalReplicas()-l.Unavailable)
		}
	}
	return min(n, l.goalReplicas())
}

// Serves reports whether the version has all its replicas, and enough of them ready.
func (l RegionPlan) Serves() bool {
	return !l.Absent && l.To.Known && l.To.Assigned >= l.goalReplicas() && l.To.Assigned <= l.Size && l.To.Ready >= l.Enough() && l.To.Outdated == 0
}

// Stopped reports whether the version serves as its stop says, and the region has acknowledged the
// weights.
func (l RegionPlan) Stopped() bool {
	s := Next(l)
	return l.Serves() && s.hasWeights(l)
}

// Alone reports whether all traffic goes to the version, as the region reports, and the others
// have no more replicas than they keep.
func (l RegionPlan) Alone() bool {
	if !l.Acknowledged || l.To.Weight != Full {
		return false
	}
	for i, f := range l.From {
		if !f.Known || f.Weight != 0 || f.Assigned > l.keptReplicas(i) {
			return false
		}
	}
	return true
}

func (l RegionPlan) keptReplicas(i int) int32 {
	if l.Recreate || i < len(l.From)-1 {
		return 0
	}
	return max(0, min(l.Keep, l.Ceiling()-l.goalReplicas()))
}

// isKnown reports whether the region has reported on the last change of each version.
func (l RegionPlan) isKnown() bool {
	known := l.To.Known && l.LeavingKnown
	for _, f := range l.From {
		known = known && f.Known
	}
	return known
}

// Existing returns how many replicas may exist now.
func (l RegionPlan) Existing() int32 {
	n := l.To.Existing + l.Leaving
	for _, f := range l.From {
		n += f.Existing
	}
	return n
}

// Next returns the step that the region may take now. It may be called again, whether the step was taken
// or not.
func Next(l RegionPlan) Targets {
	if i := l.transferringFrom(); i >= 0 {
		return l.takeOver(i)
	}
	s := Targets{From: l.shrunkReplicas()}
	headroom := l.headroomLeft()
	// The version that stays as the way back grows first, because at a stop it is scaled like any other
	// version.
	if last := len(l.From) - 1; l.Stop != nil && last >= 0 && l.abandonedReplicas() == 0 {
		more := min(max(0, l.keptReplicas(last)-l.From[last].Assigned), headroom)
		s.From[last] += more
		headroom -= more
	}
	s.To = l.grownReplicas(headroom)
	s.setWeights(l)
	if l.Hold || !s.hasWeights(l) {
		for i, f := range l.From {
			s.From[i] = f.Assigned
		}
	}
	if l.Hold {
		s.To = l.To.Assigned
	}
	s.fitBudget(l)
	return s
}

// transferringFrom returns the index in From of the version that transfers its replicas now, -1 for none.
func (l RegionPlan) transferringFrom() int {
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

// takeOver returns the step that gives the version the replicas of From[i]. The step starts and stops no
// replica, so it does not wait for anything.
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

// headroomLeft returns how many more replicas may be created.
func (l RegionPlan) headroomLeft() int32 {
	if !l.isKnown() {
		return 0
	}
	return max(0, l.Ceiling()-l.Existing())
}

// abandonedReplicas returns how many replicas are assigned to versions that are no way back, which are all of
// From except the last.
func (l RegionPlan) abandonedReplicas() (n int32) {
	for _, f := range l.From[:max(0, len(l.From)-1)] {
		n += f.Assigned
	}
	return n
}

// grownReplicas returns how many replicas the version may have. The parameter headroom is how many more replicas may
// be created. The version keeps the replicas that it has beyond a stop, because it needs them soon.
func (l RegionPlan) grownReplicas(headroom int32) int32 {
	switch {
	case l.To.Assigned > l.Size && l.To.Outdated > 0 && l.OldFloor > 0:
		return l.To.Assigned // it took over more replicas than it needs, and has yet to replace them
	case l.To.Assigned >= l.goalReplicas():
		return min(l.To.Assigned, l.Size)
	}
	if l.Recreate {
		for _, f := range l.From {
			if f.Assigned > 0 || f.Existing > 0 {
				return l.To.Assigned
			}
		}
	}
	return min(l.goalReplicas(), l.To.Assigned+headroom)
}

// shrunkReplicas returns the numbers of replicas to which the versions in From may shrink.
func (l RegionPlan) shrunkReplicas() []int32 {
	out := make([]int32, len(l.From))
	if l.Recreate {
		return out
	}
	serving := min(l.To.Ready, l.grownReplicas(0))
	for _, f := range l.From {
		serving += f.Ready
	}
	spare := max(0, serving-l.servingFloor())
	for i, f := range l.From {
		out[i] = f.Assigned
		if !f.Known {
			continue
		}
		keep, idle := l.keptReplicas(i), f.Assigned-f.Ready
		if l.abandonedReplicas() > 0 {
			// Replicas that do not serve are no way back, and they would delay the version that repairs
			// them.
			keep = min(keep, f.Ready)
		}
		drop := max(0, min(f.Assigned-keep, idle+spare))
		spare -= max(0, drop-idle)
		out[i] = f.Assigned - drop
	}
	return out
}

// setWeights divides the traffic in proportion to the replicas that serve now and that the step keeps.
func (s *Targets) setWeights(l RegionPlan) {
	s.ToWeight, s.FromWeights = l.To.Weight, make([]int32, len(l.From))
	for i, f := range l.From {
		s.FromWeights[i] = f.Weight
	}
	give := s.trafficParts(l)
	if l.Stop != nil && !l.Stop.Share && l.To.Serving > 0 {
		if rest, ok := splitShares(give[1:], Full-l.stopWeight()); ok {
			s.ToWeight, s.FromWeights = l.stopWeight(), rest
			s.holdWeights(l)
			return
		}
	}
	if shares, ok := splitShares(give, Full); ok {
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

// trafficParts returns the replicas of each side by which weigh divides the traffic. The first number is for
// To.
func (s *Targets) trafficParts(l RegionPlan) []int32 {
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
		// A version that is not withdrawn serves, so the withdrawn ones get no traffic.
		for j, f := range l.From {
			if f.Withdrawn {
				give[j+1] = 0
			}
		}
		break
	}
	return give
}

// holdWeights lets the live version keep its traffic while it serves and the region plan is held. No
// other version gets more traffic than before.
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

// stopWeight returns the version's weight at its stop, for the replicas that are ready now.
func (l RegionPlan) stopWeight() int32 {
	switch {
	case l.Serves() || l.goalReplicas() == 0:
		return l.Stop.Weight
	case l.Stop.Whole:
		return min(l.To.Weight, l.Stop.Weight)
	}
	ready := min(l.To.Serving, l.goalReplicas())
	return max(min(1, l.Stop.Weight), l.Stop.Weight*ready/l.goalReplicas())
}

// hasWeights reports whether the region routes by the step's weights already.
func (s *Targets) hasWeights(l RegionPlan) bool {
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

// splitShares splits the sum into whole numbers in proportion to the parts. If the sum is large enough, each
// part above 0 gets at least 1. ok is false if all parts are 0.
func splitShares(parts []int32, sum int32) (shares []int32, ok bool) {
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

// Bounds turns a policy's texts into numbers of replicas. It rounds surge up and unavailable down, and
// neither is more than size. If both were 0, nothing could ever move, so one replica may then be
// unavailable. A text is a count or a percentage, and empty means the default.
func Bounds(maxSurge, maxUnavailable string, size int32) (surge, unavailable int32) {
	surge = min(readAmount(maxSurge, DefaultSurge, size, true), size)
	unavailable = min(readAmount(maxUnavailable, DefaultUnavailable, size, false), size)
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

// Amount returns the number that the text names. The text is a count, or a percentage of the second
// parameter, which is rounded up. The API has checked the text. An empty text is 0.
func Amount(text string, of int32) int32 { return readAmount(text, "", of, true) }

// readAmount reads a text that the API has checked. A text that is no number counts as 0.
func readAmount(text, otherwise string, of int32, up bool) int32 {
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
