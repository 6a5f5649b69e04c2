package strategy

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawVersions says which side is the live version, and which of the others are withdrawn.
func drawVersions(t *rapid.T, r *region) {
	live := rapid.SampledFrom([]int{0, len(r.alive) - 1}).Draw(t, "live")
	r.side(live).Live = true
	for i := 1; i < len(r.alive); i++ {
		r.side(i).Withdrawn = i != live && rapid.Bool().Draw(t, "withdrawn")
	}
}

// judgeWeights checks the weights of one step against the replicas that serve.
func judgeWeights(t require.TestingT, before, after *region) {
	for i := range after.alive {
		f := before.side(i)
		if f.Live && before.l.Hold && f.Serving > 0 {
			require.GreaterOrEqual(t, after.side(i).Weight, f.Weight, "the live version loses traffic while it is held")
		}
		if !f.Withdrawn {
			continue
		}
		for j := range after.alive {
			s, stays := before.side(j), int32(1)
			if j > 0 && !before.l.Hold {
				stays = before.l.shrunkReplicas()[j-1] // a version that should stop gets no traffic
			}
			if !s.Withdrawn && min(s.Serving, stays) > 0 {
				require.Zero(t, after.side(i).Weight, "a withdrawn version keeps traffic that another could serve")
			}
		}
	}
}

func TestMinReady(t *testing.T) {
	t.Run("does not lower what must serve", func(t *testing.T) {
		l := RegionPlan{Size: 4, Need: 1, Surge: 1}
		require.Equal(t, "4/0 4/1 3/1 3/2 2/2 2/3 1/3 1/4 0/4", trace(t, l, 4))
	})
	t.Run("does not take traffic from more replicas than one that is ready", func(t *testing.T) {
		r := newRegion(RegionPlan{Size: 3, Need: 1, Surge: 3, Keep: 3, Stop: &Stop{Replicas: 3, Weight: Full, Whole: true}}, 3)
		r.step(t)
		r.obey(0)
		r.ready[0] = 1
		r.see()
		r.step(t)
		require.False(t, r.l.Stopped())
		require.Zero(t, r.l.To.Weight)
		r.l.From[0].Serving, r.l.From[0].Ready = 0, 0
		require.True(t, r.l.Serves(), "nothing else serves: the one that is ready is enough")
	})
	t.Run("does not give a step its weight before its replicas are ready", func(t *testing.T) {
		r := newRegion(RegionPlan{Size: 4, Need: 1, Surge: 2, Keep: 4, Stop: &Stop{Replicas: 2, Weight: 50}}, 4)
		r.step(t)
		r.obey(0)
		r.ready[0] = 1
		r.see()
		r.step(t)
		require.Equal(t, int32(25), r.l.To.Weight)
	})
}

// TestMinReady_Converges: as many ready replicas as minReady and maxUnavailable both ask for
// are enough, although the others of the version never become ready.
func TestMinReady_Converges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := RegionPlan{Size: rapid.Int32Range(1, 8).Draw(t, "size")}
		texts := rapid.SampledFrom([]string{"", "0", "1", "2", "25%", "50%", "100%"})
		l.Surge, l.Unavailable = Bounds(texts.Draw(t, "surge"), texts.Draw(t, "unavailable"), l.Size)
		l.Need = rapid.Int32Range(1, l.Size).Draw(t, "need")
		most := max(l.Need, l.Size-l.Unavailable)
		r := newRegion(l, l.Size)
		for n := 0; r.step(t) || !r.l.Serves() || !r.l.Alone(); n++ {
			require.Less(t, n, 100, "it stands still: %+v", r.l)
			r.obey(0)
			r.obey(1)
			r.ready[0], r.draining[1] = min(r.alive[0], most), 0
			r.ready[1] = r.alive[1]
			r.ack()
			r.see()
		}
	})
}

func TestWithdrawn(t *testing.T) {
	back := func(good int32) RegionPlan {
		return RegionPlan{
			Size: 4, Need: 4, Surge: 1, LeavingKnown: true, Acknowledged: true,
			To:   Side{Assigned: 3, Known: true, Ready: good, Serving: good, Existing: 3, Weight: 50, Live: true},
			From: []Side{{Assigned: 2, Known: true, Ready: 2, Serving: 2, Existing: 2, Weight: 50, Withdrawn: true}},
		}
	}
	for good := int32(1); good <= 3; good++ {
		s := Next(back(good))
		require.Equal(t, Targets{To: 3, From: []int32{2}, ToWeight: 100, FromWeights: []int32{0}}, s, "%d of the good version are ready", good)
	}
	s := Next(back(0))
	require.Equal(t, []int32{100}, s.FromWeights, "it is all that serves")
}

func TestWeights_AreWholeWhereNothingServes(t *testing.T) {
	// A region at no replicas. One version leaves, and one that was taken back still has the traffic of
	// instances that it took over.
	s := Next(RegionPlan{
		LeavingKnown: true, To: Side{Existing: 1, Live: true},
		From: []Side{{Assigned: 1, Known: true, Ready: 1, Serving: 1, Existing: 1, Weight: 50}, {Assigned: 1, Existing: 1, Weight: 50, Withdrawn: true}},
	})
	require.Equal(t, []int32{50, 0, 50}, append([]int32{s.ToWeight}, s.FromWeights...))

	left := Side{Assigned: 1, Known: true, Existing: 1, Weight: 50}
	l := RegionPlan{Size: 1, Need: 1, Surge: 1, LeavingKnown: true, Acknowledged: true, To: Side{Assigned: 1, Known: true, Existing: 1, Weight: 50}, From: []Side{left}}
	s = Next(l)
	require.Equal(t, []int32{100, 0}, []int32{s.ToWeight, s.FromWeights[0]}, "the wanted version keeps its traffic and gets the rest")
	l.To.Weight, l.From[0].Weight = 0, 100
	s = Next(l)
	require.Equal(t, []int32{0, 0}, []int32{s.ToWeight, s.FromWeights[0]}, "no version keeps traffic")
}

func TestHold(t *testing.T) {
	side := func(assigned, ready, weight int32) Side {
		return Side{Assigned: assigned, Known: true, Ready: ready, Serving: ready, Existing: assigned, Weight: weight}
	}
	for _, c := range []struct {
		name     string
		to, live Side
		stop     *Stop
		want     []int32
	}{
		{"a version that becomes ready takes nothing", side(1, 1, 0), side(1, 1, 100), nil, []int32{0, 100}},
		{"nor at a step", side(1, 1, 0), side(1, 1, 100), &Stop{Replicas: 1, Weight: 10}, []int32{0, 100}},
		{"a version that serves takes over from one that does not", side(1, 1, 0), side(1, 0, 100), nil, []int32{100, 0}},
		{"and gives back beyond its step", side(1, 1, 100), side(1, 1, 0), &Stop{Replicas: 1, Weight: 10}, []int32{10, 90}},
		{"a version that stops being ready loses it", side(1, 0, 10), side(1, 1, 90), nil, []int32{0, 100}},
		{"a version that has moved keeps all", side(1, 1, 100), side(1, 1, 0), nil, []int32{100, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.live.Live = true
			l := RegionPlan{Size: 1, Need: 1, Surge: 1, Hold: true, LeavingKnown: true, Acknowledged: true, To: c.to, From: []Side{c.live}, Stop: c.stop, Keep: 1}
			s := Next(l)
			require.Equal(t, c.want, append([]int32{s.ToWeight}, s.FromWeights...))
			require.Equal(t, []int32{c.to.Assigned, c.live.Assigned}, []int32{s.To, s.From[0]})
		})
	}
}
