package scaling

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// drawPolicy draws a policy of one to three metrics.
func drawPolicy(t *rapid.T) *Policy {
	p := &windlassv1.ScalingPolicy{}
	low := rapid.Int32Range(0, 4).Draw(t, "min")
	p.Min, p.Max = &low, rapid.Int32Range(max(low, 1), 40).Draw(t, "max")
	for _, kind := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"inFlight", "rate", "queue", "kv", "cpu"}), 1, 3, rapid.ID[string]).Draw(t, "metrics") {
		p.Metrics = append(p.Metrics, map[string]*windlassv1.ScalingMetric{
			"inFlight": {Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: "8"},
			"rate":     {Type: windlassv1.ScalingMetric_TYPE_REQUESTS_PER_SECOND, Target: "5"},
			"queue":    {Type: windlassv1.ScalingMetric_TYPE_QUEUE, Target: "4"},
			"kv":       {Type: windlassv1.ScalingMetric_TYPE_KV_CACHE, Target: "0.7"},
			"cpu":      {Type: windlassv1.ScalingMetric_TYPE_CPU, Target: "70", Up: "80", Down: "30"},
		}[kind])
	}
	if low == 0 {
		p.Zero = &windlassv1.ScaleToZero{WakeTo: rapid.Int32Range(0, min(p.Max, 4)).Draw(t, "wake to")}
	}
	out, fault := New(p, "")
	require.Nil(t, fault)
	return &out
}

// drawOptional draws a number, or nil for a missing value.
func drawOptional(t *rapid.T, high float64, label string) *float64 {
	if rapid.IntRange(0, 5).Draw(t, label+" missing") == 0 {
		return nil
	}
	return new(rapid.Float64Range(0, high).Draw(t, label))
}

func drawSample(t *rapid.T, r *simulation) Sample {
	ready := rapid.IntRange(0, r.st.Desired).Draw(t, "ready")
	s := Sample{
		Ready: ready, Starting: rapid.IntRange(0, r.st.Desired-ready).Draw(t, "starting"),
		InFlight: drawOptional(t, 300, "in flight"), Queued: drawOptional(t, 50, "queued"), Rate: drawOptional(t, 200, "rate"), Levels: map[string]float64{},
	}
	for _, name := range []string{"kvCache", "cpu", "queue"} {
		if v := drawOptional(t, map[string]float64{"kvCache": 1, "cpu": 100, "queue": 20}[name], name); v != nil {
			s.Levels[name] = *v
		}
	}
	return s
}

func TestDecide_AnyLoad(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := newSimulation(drawPolicy(t), 0)
		r.st.Desired = r.p.Initial
		for range rapid.IntRange(1, 60).Draw(t, "decisions") {
			r.now = r.now.Add(time.Duration(rapid.IntRange(1, 90).Draw(t, "pause")) * time.Second)
			r.st.Quota, r.st.Floor = nil, 0
			if rapid.Bool().Draw(t, "has quota") {
				r.st.Quota = new(int)
				*r.st.Quota = rapid.IntRange(0, 50).Draw(t, "quota")
			}
			was, s := r.st.Desired, drawSample(t, r)
			d := r.report(s)
			require.LessOrEqual(t, d.Wanted, r.p.Max)
			if was == 0 && d.Wanted > 0 && r.p.Zero != nil && r.st.Quota == nil && s.callsSince(d.Kept.ZeroSince) {
				require.GreaterOrEqual(t, d.Wanted, r.p.Zero.WakeTo)
			}
			if r.st.Quota == nil {
				require.GreaterOrEqual(t, d.Wanted, r.p.Min)
			}
			require.True(t, d.Next.After(r.now), "the next decision is later")
			require.LessOrEqual(t, d.Next.Sub(r.now), maxPause)
			missing := false
			for _, want := range d.Wants {
				missing = missing || want.Missing
			}
			if missing && (d.Wanted > 0 || s.Ready > 0) {
				require.GreaterOrEqual(t, d.Wanted, was, "no replica is removed while a metric is missing")
			}
			if r.st.Quota != nil && d.Wanted > was {
				require.LessOrEqual(t, d.Wanted, *r.st.Quota)
			}
			if d.Wanted < was && d.Wanted > 0 {
				require.Zero(t, s.Starting, "no replica is removed while others start")
				require.Equal(t, 1, was-d.Wanted, "one replica at a time")
			}
		}
	})
}

func TestDecide_ConstantLoadEnds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		// A metric with thresholds changes the number step by step until its level is between them. A level that
		// does not depend on the number of replicas may never get there.
		for i := range p.Metrics {
			p.Metrics[i].Up, p.Metrics[i].Down = 0, 0
		}
		r := newSimulation(p, p.Initial)
		load := Sample{InFlight: new(rapid.Float64Range(0, 300).Draw(t, "in flight")), Queued: new(0.0)}
		load.Rate = new(rapid.Float64Range(0, 200).Draw(t, "rate"))
		work := rapid.Float64Range(0.1, 20).Draw(t, "work")
		startup := time.Duration(rapid.IntRange(0, 600).Draw(t, "startup")) * time.Second
		began := map[int]time.Time{}
		turns, direction, changed := 0, 0, r.now
		for r.now.Sub(start) < 3*time.Hour {
			s := load
			for i := range r.st.Desired {
				if began[i].IsZero() {
					began[i] = r.now
				}
				if r.now.Sub(began[i]) >= startup {
					s.Ready++
				} else {
					s.Starting++
				}
			}
			for i := r.st.Desired; i < p.Max; i++ {
				delete(began, i)
			}
			if s.Ready > 0 {
				s.Levels = map[string]float64{"kvCache": work / float64(s.Ready), "cpu": 50 * work / float64(s.Ready), "queue": 0}
			}
			was := r.st.Desired
			if d := r.report(s); d.Wanted != was {
				up := 1
				if d.Wanted < was {
					up = -1
				}
				if direction != 0 && up != direction {
					turns++
				}
				direction, changed = up, r.now
			}
			r.now = r.now.Add(5 * time.Second)
		}
		require.LessOrEqual(t, turns, 1)
		require.Less(t, changed.Sub(start), 2*time.Hour, "the changes end")
	})
}
