package strategy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// region simulates a region: what is assigned to it, and what it runs.
type region struct {
	l RegionPlan
	// alive and ready are numbers of replicas, the version's first. draining replicas exist and no longer serve.
	alive, ready, draining []int32
	route                  []int32
}

func newRegion(l RegionPlan, from ...int32) *region {
	r := &region{l: l, alive: append([]int32{0}, from...)}
	r.ready = slices.Clone(r.alive)
	r.draining = make([]int32, len(r.alive))
	r.route = make([]int32, len(r.alive))
	r.l.To.Known, r.l.LeavingKnown, r.l.Acknowledged = true, true, true
	for i, n := range from {
		r.l.From = append(r.l.From, Side{Assigned: n, Known: true})
		if i == len(from)-1 {
			r.l.From[i].Weight, r.route[i+1] = Full, Full
		}
	}
	r.see()
	return r
}

func (r *region) side(i int) *Side {
	if i == 0 {
		return &r.l.To
	}
	return &r.l.From[i-1]
}

// see makes the region report its state.
func (r *region) see() {
	for i := range r.alive {
		s := r.side(i)
		s.Ready, s.Serving = 0, min(r.ready[i], s.Assigned)
		if s.Known {
			s.Ready = s.Serving
		}
		s.Existing = max(s.Assigned, r.alive[i]+r.draining[i])
	}
}

// step takes one step, and checks it against the rules.
func (r *region) step(t require.TestingT) (moved bool) {
	s := Next(r.l)
	require.Equal(t, s, Next(r.l))
	for i := range r.alive {
		assigned, weight := s.To, s.ToWeight
		if i > 0 {
			assigned, weight = s.From[i-1], s.FromWeights[i-1]
		}
		side := r.side(i)
		if assigned != side.Assigned {
			moved = true
			side.Assigned, side.Known = assigned, false
		}
		if weight != side.Weight {
			moved = true
			side.Weight, r.l.Acknowledged = weight, false
		}
	}
	r.see()
	return moved
}

// obey applies the assignment of side i; replicas that are not ready go first.
func (r *region) obey(i int) {
	s := r.side(i)
	if over := r.alive[i] - s.Assigned; over > 0 {
		r.draining[i] += over
		r.ready[i] = min(r.ready[i], s.Assigned)
	}
	r.alive[i], s.Known = s.Assigned, true
	r.see()
}

func (r *region) ack() {
	for i := range r.route {
		r.route[i] = r.side(i).Weight
	}
	r.l.Acknowledged = true
}

func (r *region) settle() {
	for i := range r.alive {
		r.obey(i)
		r.ready[i], r.draining[i] = r.alive[i], 0
	}
	r.ack()
	r.see()
}

func (r *region) existing() (n int32) {
	for i := range r.alive {
		n += r.alive[i] + r.draining[i]
	}
	return n
}

// trace returns old/new after each step when every new replica becomes ready.
func trace(t *testing.T, l RegionPlan, old int32) string {
	r := newRegion(l, old)
	out := []string{fmt.Sprintf("%d/0", old)}
	for range 1000 {
		moved := r.step(t)
		r.settle()
		if at := fmt.Sprintf("%d/%d", r.alive[1], r.alive[0]); at != out[len(out)-1] {
			out = append(out, at)
		}
		if !moved {
			break
		}
	}
	require.True(t, r.l.Serves() && r.l.Alone())
	return strings.Join(out, " ")
}

func TestRegionPlan_ReferenceTraces(t *testing.T) {
	for _, c := range []struct {
		size, surge, unavailable, keep int32
		want                           string
	}{
		{3, 1, 0, 0, "3/0 3/1 2/1 2/2 1/2 1/3 0/3"},
		{3, 0, 1, 0, "3/0 2/0 2/1 1/1 1/2 0/2 0/3"},
		// The last old replica stays within the surge, as a way back.
		{3, 1, 0, 1, "3/0 3/1 2/1 2/2 1/2 1/3"},
		{3, 3, 0, 3, "3/0 3/3"},
		{1, 1, 0, 0, "1/0 1/1 0/1"},
		{1, 0, 1, 0, "1/0 0/0 0/1"},
	} {
		l := RegionPlan{Size: c.size, Need: c.size, Surge: c.surge, Unavailable: c.unavailable, Keep: c.keep}
		require.Equal(t, c.want, trace(t, l, c.size), "%+v", c)
	}
	require.Equal(t, "3/0 0/0 0/3", trace(t, RegionPlan{Size: 3, Need: 3, Recreate: true}, 3))
}

func TestFewerReplicas(t *testing.T) {
	for _, c := range []struct {
		size, surge, unavailable, oldFloor, oldCeiling int32
		want                                           string
	}{
		{2, 1, 0, 4, 5, "4/0 4/1 3/1 3/2"},
		{2, 0, 1, 3, 4, "4/0 3/0 3/1 2/1 2/2"},
		{1, 1, 0, 4, 5, "4/0 4/1"},
		// Once it has proven itself.
		{2, 1, 0, 0, 0, "4/0 2/0 2/1 1/1 1/2"},
	} {
		l := RegionPlan{
			Size: c.size, Need: c.size, Surge: c.surge, Unavailable: c.unavailable, Keep: 4,
			OldFloor: c.oldFloor, OldCeiling: c.oldCeiling,
		}
		require.Equal(t, c.want, trace(t, l, 4), "%+v", c)
	}

	l := RegionPlan{
		Size: 2, Need: 2, Unavailable: 1, OldFloor: 3, OldCeiling: 4, Acknowledged: true, LeavingKnown: true,
		To: Side{Assigned: 4, Known: true, Ready: 4, Serving: 4, Existing: 4, Outdated: 1, Weight: Full},
	}
	require.Equal(t, int32(4), Next(l).To, "a replica that it took over must still be replaced")
	l.To.Outdated = 0
	require.Equal(t, int32(2), Next(l).To)
}

// steps returns old/new@weight after each step, through stops. | marks a stop that is reached. In the end no more
// replicas are kept than the region plan says.
func steps(t *testing.T, l RegionPlan, old int32, stops ...Stop) string {
	r := newRegion(l, old)
	r.l.Keep = old
	out := []string{fmt.Sprintf("%d/0@0", old)}
	for i := range len(stops) + 1 {
		if i == len(stops) {
			r.l.Keep = l.Keep
		} else {
			r.l.Stop = &stops[i]
		}
		for moved := true; moved; {
			moved = r.step(t)
			r.settle()
			if at := fmt.Sprintf("%d/%d@%d", r.alive[1], r.alive[0], r.l.To.Weight); at != out[len(out)-1] {
				out = append(out, at)
			}
		}
		require.True(t, r.l.Stopped(), "%+v", r.l)
		if i < len(stops) {
			out = append(out, "|")
		}
	}
	require.True(t, r.l.Serves() && r.l.Alone())
	return strings.Join(out, " ")
}

func TestRegionPlan_StopTraces(t *testing.T) {
	weight := func(replicas, weight int32) Stop { return Stop{Replicas: replicas, Weight: weight} }
	for _, c := range []struct {
		name                           string
		size, surge, unavailable, keep int32
		stops                          []Stop
		want                           string
	}{
		{
			"by weight", 4, 1, 0, 0,
			[]Stop{weight(1, 10), weight(2, 50), weight(4, 100)},
			"4/0@0 4/1@0 4/1@10 | 4/1@25 3/1@25 3/2@25 3/2@50 | 2/2@50 2/3@50 2/3@75 1/3@75 1/4@75 1/4@100 | 0/4@100",
		},
		{
			"without surge", 4, 0, 1, 4,
			[]Stop{weight(1, 5), weight(4, 100)},
			"4/0@0 3/0@0 3/1@0 3/1@5 | 3/1@25 2/1@25 2/2@25 2/2@50 1/2@50 1/3@50 1/3@100 0/3@100 0/4@100 | 0/4@100",
		},
		{
			"by replicas", 4, 1, 0, 4,
			[]Stop{{Replicas: 1, Share: true}, {Replicas: 2, Share: true}, weight(4, 100)},
			"4/0@0 4/1@0 4/1@20 | 4/1@25 3/1@25 3/2@25 3/2@40 | 3/2@50 2/2@50 2/3@50 2/3@75 1/3@75 1/4@75 1/4@100 | 1/4@100",
		},
		{
			"blue-green", 3, 3, 0, 3,
			[]Stop{{Replicas: 3, Whole: true}, {Replicas: 3, Weight: 100, Whole: true}},
			"3/0@0 3/3@0 | 3/3@100 | 3/3@100",
		},
		{
			"blue-green, some at once", 3, 3, 0, 0,
			[]Stop{{Replicas: 3, Weight: 20, Whole: true}, {Replicas: 3, Weight: 100, Whole: true}},
			"3/0@0 3/3@0 3/3@20 | 3/3@100 | 0/3@100",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := RegionPlan{Size: c.size, Need: c.size, Surge: c.surge, Unavailable: c.unavailable, Keep: c.keep}
			require.Equal(t, c.want, steps(t, l, c.size, c.stops...))
		})
	}
}

func TestRegionPlan_TrafficMovesWithAllReplicasOrNone(t *testing.T) {
	l := RegionPlan{Size: 3, Need: 3, Surge: 3, Keep: 3, Stop: &Stop{Replicas: 3, Weight: Full, Whole: true}}
	r := newRegion(l, 3)
	r.step(t)
	r.obey(0)
	r.ready[0] = 2
	r.see()
	r.step(t)
	require.Zero(t, r.l.To.Weight, "one is missing")
	r.settle()
	r.step(t)
	r.settle()
	require.Equal(t, Full, r.l.To.Weight)
	r.ready[0] = 1
	r.see()
	require.False(t, r.step(t), "a lost replica sends no version back")
	r.ready[0] = 0
	r.see()
	r.step(t)
	require.Equal(t, Full, r.l.From[0].Weight, "none is left: the other has them all")
}

func TestRegionPlan_WayBackIsScaledWhileItWaits(t *testing.T) {
	r := newRegion(RegionPlan{Size: 2, Need: 2, Surge: 1, Keep: 2, Stop: &Stop{Replicas: 1, Weight: 10}}, 2)
	for r.step(t) {
		r.settle()
	}
	r.l.Size, r.l.Need, r.l.Surge, r.l.Keep = 8, 8, 2, 8
	for r.step(t) {
		r.settle()
	}
	require.Equal(t, []int32{1, 8}, r.alive)
	require.Equal(t, int32(10), r.l.To.Weight)
}

func TestBounds(t *testing.T) {
	for _, c := range []struct {
		surge, unavailable      string
		size, wantSurge, wantUn int32
	}{
		{"", "", 4, 1, 0},
		{"", "", 2, 1, 0},
		{"25%", "25%", 10, 3, 2},
		{"0", "25%", 2, 0, 1}, // 25% of 2 rounds down to 0, but with 0 nothing could move
		{"0", "9", 3, 0, 3},
		{"100%", "0", 3, 3, 0},
		{"1", "", 0, 0, 0},
		{"7", "", 3, 3, 0}, // never more than a second set
	} {
		s, u := Bounds(c.surge, c.unavailable, c.size)
		require.Equal(t, []int32{c.wantSurge, c.wantUn}, []int32{s, u}, "%+v", c)
	}
}

func TestRegionPlan_BrokenOldReplicaDelaysNoVersion(t *testing.T) {
	r := newRegion(RegionPlan{Size: 3, Need: 3, Surge: 1}, 3)
	r.ready[1] = 0
	r.see()
	for range 20 {
		r.step(t)
		r.obey(0)
		r.obey(1)
		r.ready[0], r.draining[1] = r.alive[0], 0
		r.ack()
		r.see()
	}
	require.True(t, r.l.Serves() && r.l.Alone(), "%+v", r.l)
}

func TestRegionPlan_AbandonedVersionGoesFirst(t *testing.T) {
	r := newRegion(RegionPlan{Size: 3, Need: 3, Surge: 1}, 2, 2)
	r.l.From[0].Weight, r.l.From[1].Weight = 50, 50
	r.step(t)
	require.Equal(t, int32(2), r.l.From[1].Assigned, "the live one stays")
	require.Equal(t, int32(33), r.l.From[0].Weight, "weights come first")
	r.ack()
	r.step(t)
	require.Equal(t, []int32{1, 2}, []int32{r.l.From[0].Assigned, r.l.From[1].Assigned})
}

// TestRegionPlan_HistoryKeepsFloorAndCeilingProperty: replicas become ready, fail and drain at random, the region
// answers late, and people scale and pause. Still no step breaks a rule. In the end the region heals, and the version
// has the region to itself.
func TestRegionPlan_HistoryKeepsFloorAndCeilingProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := RegionPlan{Size: rapid.Int32Range(0, 6).Draw(t, "size"), Recreate: rapid.IntRange(0, 5).Draw(t, "recreate") == 0}
		texts := rapid.SampledFrom([]string{"", "0", "1", "2", "25%", "50%", "100%"})
		surgeText, unavailableText := texts.Draw(t, "surge"), texts.Draw(t, "unavailable")
		l.Surge, l.Unavailable = Bounds(surgeText, unavailableText, l.Size)
		l.Need = l.Size
		if rapid.Bool().Draw(t, "min ready") && l.Size > 1 {
			l.Need = rapid.Int32Range(1, l.Size).Draw(t, "need")
		}
		oldSize := rapid.Int32Range(0, 7).Draw(t, "size of the live version")
		bound := func(l *RegionPlan) {
			if l.OldFloor, l.OldCeiling = 0, 0; oldSize > l.Size && l.Size > 0 && !l.Recreate {
				surge, unavailable := Bounds(surgeText, unavailableText, oldSize)
				l.OldFloor, l.OldCeiling = oldSize-unavailable, oldSize+surge
			}
		}
		bound(&l)
		l.Keep = rapid.Int32Range(0, 6).Draw(t, "keep")
		from := []int32{rapid.Int32Range(0, 7).Draw(t, "old")}
		if rapid.Bool().Draw(t, "abandoned") {
			from = append([]int32{rapid.Int32Range(0, 4).Draw(t, "abandoned replicas")}, from...)
		}
		r := newRegion(l, from...)
		drawVersions(t, r)
		if !l.Recreate && rapid.Bool().Draw(t, "stops") {
			r.l.Stop = drawStop(t, l.Size)
		}
		top := max(r.l.Ceiling(), r.existing())
		for range rapid.IntRange(0, 60).Draw(t, "length") {
			i := rapid.IntRange(0, len(r.alive)-1).Draw(t, "side")
			switch rapid.IntRange(0, 9).Draw(t, "event") {
			case 0, 1:
				r.obey(i)
			case 2, 3:
				if r.ready[i] < r.alive[i] {
					r.ready[i]++
				}
			case 4:
				if r.ready[i] > 0 {
					r.ready[i]--
				}
			case 5:
				r.draining[i] = 0
			case 6:
				r.ack()
			case 7:
				r.l.Hold = !r.l.Hold
			case 8:
				r.l.Size = rapid.Int32Range(0, 6).Draw(t, "scale")
				r.l.Need = r.l.Size
				r.l.Surge, r.l.Unavailable = Bounds(surgeText, unavailableText, r.l.Size)
				bound(&r.l)
			case 9:
				if r.l.Stop != nil {
					r.l.Stop = drawStop(t, r.l.Size)
				}
			}
			r.see()
			before := *r
			before.l.From = slices.Clone(r.l.From)
			r.step(t)
			judge(t, &before, r)
			top = max(r.l.Ceiling(), min(top, r.existing()))
		}
		r.l.Hold = false
		if r.l.Stop != nil && r.l.Size > 0 {
			for n := 0; r.step(t) || !r.l.Stopped(); n++ {
				require.Less(t, n, 100, "it does not come to its stop: %+v, %+v", r.l, r.l.Stop)
				r.settle()
			}
			r.l.Stop = &Stop{Replicas: r.l.Size, Weight: Full, Whole: r.l.Stop.Whole}
		}
		for n := 0; r.step(t) || !r.l.Serves() || !r.l.Alone(); n++ {
			require.Less(t, n, 100, "it stands still: %+v", r.l)
			r.settle()
		}
	})
}

func drawStop(t *rapid.T, size int32) *Stop {
	return &Stop{
		Replicas: rapid.Int32Range(min(1, size), size).Draw(t, "stop"), Weight: rapid.Int32Range(0, Full).Draw(t, "weight"),
		Share: rapid.Bool().Draw(t, "share"), Whole: rapid.Bool().Draw(t, "whole"),
	}
}

// judge checks one step against the rules, by what really runs.
func judge(t require.TestingT, before, after *region) {
	var could, was int32
	for i := range after.alive {
		// Anything between its assignment and what it runs may exist.
		could += max(after.side(i).Assigned, after.alive[i]+after.draining[i])
		was += max(before.side(i).Assigned, before.alive[i]+before.draining[i])
	}
	if could > was {
		require.LessOrEqual(t, could, after.l.Ceiling(), "it grew beyond the ceiling")
	}
	if after.l.Recreate {
		return
	}
	judgeWeights(t, before, after)
	// A version that shrinks loses the ready replicas last.
	var serves int32
	shrinks := false
	for i := range after.alive {
		serves += min(after.ready[i], after.side(i).Assigned)
		shrinks = shrinks || i > 0 && after.side(i).Assigned < before.side(i).Assigned && after.side(i).Assigned < before.ready[i]
	}
	if shrinks {
		require.GreaterOrEqual(t, serves, before.l.servingFloor(), "it shrank below the floor")
	}
	var sum int32
	for i := range after.alive {
		s := after.side(i)
		sum += s.Weight
		if i > 0 && s.Assigned == 0 && before.side(i).Assigned > 0 && before.ready[i] > 0 {
			require.Zero(t, before.route[i], "a serving version with traffic was stopped")
		}
	}
	require.LessOrEqual(t, sum, Full)
}

func TestWeights_AreSharesOfReadyReplicas(t *testing.T) {
	for _, c := range []struct{ parts, want string }{
		{"1 3", "25 75"}, {"1 1 1", "34 33 33"}, {"0 5", "0 100"}, {"1 1000", "1 99"}, {"2 0", "100 0"},
	} {
		var parts []int32
		for f := range strings.FieldsSeq(c.parts) {
			n, err := strconv.Atoi(f)
			require.NoError(t, err)
			parts = append(parts, int32(n))
		}
		got, ok := splitShares(parts, Full)
		require.True(t, ok)
		require.Equal(t, c.want, strings.Trim(fmt.Sprint(got), "[]"))
	}
	_, ok := splitShares([]int32{0, 0}, Full)
	require.False(t, ok)
}

func TestTransfer_MovesAllReplicasWithTheirTraffic(t *testing.T) {
	t.Parallel()
	regionPlan := func() RegionPlan {
		return RegionPlan{
			Size: 4, Need: 4, Unavailable: 1, Absent: true, LeavingKnown: true, To: Side{Known: true},
			From: []Side{{Assigned: 1, Known: true, Ready: 1, Serving: 1, Existing: 1, Weight: 25}, {Assigned: 3, Weight: 75, Transfers: true}},
		}
	}
	// It does not wait for an answer to the assignment before, nor for a route.
	require.Equal(t, Targets{To: 3, From: []int32{1, 0}, ToWeight: 75, FromWeights: []int32{25, 0}}, Next(regionPlan()))

	held := regionPlan()
	held.Hold = true
	require.Equal(t, []int32{1, 3}, Next(held).From, "while it is held nothing is transferred")
	require.Zero(t, Next(held).To)

	l := regionPlan()
	l.Absent, l.Acknowledged = false, true
	l.To = Side{Assigned: 4, Known: true, Ready: 4, Serving: 4, Existing: 4, Weight: Full}
	l.From = []Side{{Known: true}}
	require.True(t, l.Serves() && l.Alone())
	l.To.Ready, l.To.Outdated, l.Need = 3, 1, 3
	require.False(t, l.Serves(), "replicas that must still be replaced do not count as the version's")
}
