package strategy

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestClosed_KeepsWhatServes: a closed region that is scaled down gives up what does not serve.
func TestClosed_KeepsWhatServes(t *testing.T) {
	l := RegionPlan{
		Size: 1, Need: 1, Surge: 1, Hold: true, Closed: true, MaxReplicas: 2, LeavingKnown: true, Acknowledged: true,
		To:   Side{Assigned: 2, Existing: 2},
		From: []Side{{Assigned: 2, Known: true, Ready: 2, Serving: 2, Existing: 2, Weight: Full, Live: true}},
	}
	s := Next(l)
	require.Equal(t, []int32{2}, s.From, "v1 has all traffic")
	require.Zero(t, s.To, "v2 has none, and is not known to serve")

	l.MaxReplicas = 0
	s = Next(l)
	require.Equal(t, []int32{0}, s.From, "scaled to nothing, all leave")
}

func TestClosed_NeverGrowsAndKeepsTheFloor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		side := func(label string, weight int32) Side {
			assigned := rapid.Int32Range(0, 5).Draw(t, label)
			s := Side{Assigned: assigned, Existing: assigned, Known: rapid.Bool().Draw(t, label+" known"), Weight: weight}
			s.Serving = rapid.Int32Range(0, assigned).Draw(t, label+" serving")
			if s.Known {
				s.Ready = s.Serving
			}
			return s
		}
		weight := rapid.SampledFrom([]int32{0, 30, Full}).Draw(t, "weight")
		size := rapid.Int32Range(1, 4).Draw(t, "size")
		l := RegionPlan{
			Size: size, Need: size, Surge: rapid.Int32Range(0, 1).Draw(t, "surge"), Hold: true, Closed: true, LeavingKnown: true,
			Acknowledged: rapid.Bool().Draw(t, "acknowledged"), To: side("to", weight), From: []Side{side("from", Full-weight)},
		}
		l.MaxReplicas = size + l.Surge
		s := Next(l)
		require.LessOrEqual(t, s.To, l.To.Assigned)
		require.LessOrEqual(t, s.From[0], l.From[0].Assigned)
		was := l.To.Ready + l.From[0].Ready
		is := min(s.To, l.To.Ready) + min(s.From[0], l.From[0].Ready)
		require.GreaterOrEqual(t, is, min(was, size), "%+v becomes %+v", l, s)
		for _, side := range []struct {
			left int32
			had  Side
		}{{s.To, l.To}, {s.From[0], l.From[0]}} {
			routed := side.had.Weight > 0 || !l.Acknowledged
			require.False(t, side.left == 0 && side.had.Serving > 0 && routed, "%+v becomes %+v", l, s)
		}
	})
}
