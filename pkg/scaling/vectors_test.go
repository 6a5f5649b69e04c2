package scaling

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/pkg/histogram"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

var start = time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)

func policy(t testing.TB, change func(*windlassv1.ScalingPolicy)) *Policy {
	t.Helper()
	p := &windlassv1.ScalingPolicy{Max: 32, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: "10"}}}
	if change != nil {
		change(p)
	}
	out, fault := New(p, "")
	require.Nil(t, fault)
	return &out
}

// simulation reports samples of one app in one region, and applies the decisions.
type simulation struct {
	p   *Policy
	w   Window
	st  State
	now time.Time
	// advise means that decisions are not applied.
	advise bool
	last   Decision
}

func newSimulation(p *Policy, desired int) *simulation {
	return &simulation{p: p, st: State{Desired: desired}, now: start}
}

// report reports s and decides.
func (r *simulation) report(s Sample) Decision {
	s.At = r.now
	r.w.Add(s, r.p.Up.Window)
	return r.decide()
}

func (r *simulation) decide() Decision {
	r.last = Decide(r.p, &r.w, r.st, r.now)
	if r.advise {
		r.st.Kept = r.last.Unwritten
		return r.last
	}
	r.st.Desired, r.st.Kept = r.last.Wanted, r.last.Kept
	return r.last
}

// reportFor reports the sample of s every 5 s for the time d. It returns the decided numbers, without repeats.
func (r *simulation) reportFor(d time.Duration, s func() Sample) (numbers []int) {
	for end := r.now.Add(d); r.now.Before(end); r.now = r.now.Add(5 * time.Second) {
		if n := r.report(s()).Wanted; len(numbers) == 0 || numbers[len(numbers)-1] != n {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// fillWindows reports s until the windows are full, and keeps the number of replicas.
func (r *simulation) fillWindows(s Sample) {
	d := r.st.Desired
	r.advise = true
	r.reportFor(6*time.Minute, func() Sample { return s })
	r.advise = false
	r.st.Desired = d
}

func inFlight(ready int, v float64) Sample {
	return Sample{Ready: ready, InFlight: new(v), Rate: new(v)}
}

func metrics(all ...*windlassv1.ScalingMetric) func(*windlassv1.ScalingPolicy) {
	return func(p *windlassv1.ScalingPolicy) { p.Metrics = all }
}

func TestDecide_Vectors(t *testing.T) {
	t.Parallel()
	t.Run("a level of twice the target doubles the replicas, and starting replicas count", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, metrics(&windlassv1.ScalingMetric{Type: windlassv1.ScalingMetric_TYPE_KV_CACHE, Target: "0.4"})), 2)
		require.Equal(t, 4, r.report(Sample{Ready: 2, Levels: map[string]float64{"kvCache": 0.8}}).Wanted)
		require.Equal(t, []int{4}, r.reportFor(10*time.Minute, func() Sample {
			return Sample{Ready: 2, Starting: 2, Levels: map[string]float64{"kvCache": 0.8}}
		}))
	})
	t.Run("a total within a tenth of the target changes nothing", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, nil), 10)
		r.fillWindows(inFlight(10, 100))
		require.Equal(t, []int{10}, r.reportFor(5*time.Minute, func() Sample { return inFlight(10, 105) }))
		r.reportFor(5*time.Minute, func() Sample { return inFlight(r.st.Desired, 111) })
		require.Equal(t, 12, r.st.Desired)
	})
	t.Run("a missing metric prevents scaling down, but not up", func(t *testing.T) {
		t.Parallel()
		p := policy(t, metrics(
			&windlassv1.ScalingMetric{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: "10"},
			&windlassv1.ScalingMetric{Type: windlassv1.ScalingMetric_TYPE_KV_CACHE, Target: "0.5"}))
		r := newSimulation(p, 8)
		require.Equal(t, []int{8}, r.reportFor(20*time.Minute, func() Sample { return inFlight(8, 60) }))
		require.Equal(t, MetricMissing, r.last.Limit)
		require.True(t, r.last.Wants[1].Notice(r.now))
		r = newSimulation(p, 4)
		r.reportFor(2*time.Minute, func() Sample { return inFlight(4, 60) })
		require.Equal(t, 6, r.st.Desired)
	})
	t.Run("the highest number within the window holds, then one replica a minute is removed", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, nil), 8)
		r.fillWindows(inFlight(8, 80))
		change := r.now
		require.Equal(t, []int{8}, r.reportFor(time.Minute, func() Sample { return inFlight(8, 30) }))
		require.Equal(t, []int{8}, r.reportFor(3*time.Minute+50*time.Second, func() Sample { return inFlight(8, 50) }))
		require.Equal(t, HighestInWindow, r.last.Limit)
		var at []time.Duration
		for r.now.Sub(change) < 12*time.Minute {
			was := r.st.Desired
			if r.report(inFlight(r.st.Desired, 50)).Wanted < was {
				at = append(at, r.now.Sub(change))
			}
			r.now = r.now.Add(5 * time.Second)
		}
		require.Equal(t, 5, r.st.Desired)
		require.Len(t, at, 3)
		require.GreaterOrEqual(t, at[0], 5*time.Minute)
		require.Equal(t, time.Minute, at[1]-at[0])
		require.Equal(t, time.Minute, at[2]-at[1])
	})
	t.Run("scaling up goes by steps", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, nil), 3)
		r.fillWindows(inFlight(3, 30))
		require.Equal(t, []int{6, 12, 20}, r.reportFor(10*time.Minute, func() Sample {
			return Sample{Ready: 3, Starting: r.st.Desired - 3, InFlight: new(200.0)}
		}))
	})
	t.Run("samples from before an app was woken are no reason to go to zero again", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, func(p *windlassv1.ScalingPolicy) { p.Min = new(int32(0)) }), 1)
		r.reportFor(time.Hour, func() Sample { return inFlight(r.st.Desired, 0) })
		require.Zero(t, r.st.Desired)
		r.st.Desired = 1 // the region reported that a request woke it, before it reported its load
		require.Equal(t, 1, r.decide().Wanted)
		r.reportFor(14*time.Minute, func() Sample { return inFlight(1, 0) })
		require.Equal(t, 1, r.st.Desired)
		r.reportFor(2*time.Minute, func() Sample { return inFlight(1, 0) })
		require.Zero(t, r.st.Desired)
	})
	t.Run("at zero no level is missing", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, func(p *windlassv1.ScalingPolicy) {
			p.Min, p.Metrics = new(int32(0)), []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_KV_CACHE, Target: "0.5"}}
		}), 0)
		r.reportFor(time.Hour, func() Sample { return Sample{InFlight: new(0.0)} })
		require.False(t, r.last.Wants[0].Notice(r.now))
	})
	t.Run("an app that was idle long enough goes to zero", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, func(p *windlassv1.ScalingPolicy) { p.Min = new(int32) }), 1)
		require.Equal(t, []int{1}, r.reportFor(14*time.Minute, func() Sample { return inFlight(1, 0) }))
		require.Equal(t, []int{1, 0}, r.reportFor(75*time.Second, func() Sample { return inFlight(r.st.Desired, 0) }))
		require.Equal(t, []int{0}, r.reportFor(24*time.Hour, func() Sample { return inFlight(0, 0) }))
		require.Equal(t, 1, r.report(Sample{InFlight: new(0.0), Queued: new(1.0)}).Wanted)
	})
	t.Run("requests that instances finish while they stop do not wake an app at zero", func(t *testing.T) {
		t.Parallel()
		for _, all := range [][]*windlassv1.ScalingMetric{
			{{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: "10"}}, {{Type: windlassv1.ScalingMetric_TYPE_REQUESTS_PER_SECOND, Target: "10"}},
		} {
			r := newSimulation(policy(t, func(p *windlassv1.ScalingPolicy) { p.Min, p.Metrics = new(int32(0)), all }), 0)
			r.st.HoldUntil = start.Add(time.Minute)
			require.Equal(t, []int{0}, r.reportFor(10*time.Minute, func() Sample { return Sample{InFlight: new(50.0), Queued: new(0.0), Rate: new(0.0)} }))
			require.Equal(t, 1, r.report(Sample{InFlight: new(50.0), Queued: new(1.0), Rate: new(0.0)}).Wanted, "a request that is held")
		}
	})
	t.Run("a crashing app goes to zero without the metrics of its instances, but not without those of its requests", func(t *testing.T) {
		t.Parallel()
		for kind, n := range map[windlassv1.ScalingMetric_Type]int{windlassv1.ScalingMetric_TYPE_KV_CACHE: 0, windlassv1.ScalingMetric_TYPE_REQUESTS_PER_SECOND: 1} {
			r := newSimulation(policy(t, func(p *windlassv1.ScalingPolicy) {
				p.Min, p.Metrics = new(int32(0)), []*windlassv1.ScalingMetric{{Type: kind, Target: "0.5"}}
			}), 1)
			r.reportFor(time.Hour, func() Sample { return Sample{InFlight: new(0.0)} })
			require.Equal(t, n, r.st.Desired, kind)
		}
	})
	t.Run("an app that a request woke gets wakeTo replicas, and keeps them for the window of down", func(t *testing.T) {
		t.Parallel()
		woken := func(wakeTo int32) *simulation {
			r := newSimulation(policy(t, func(p *windlassv1.ScalingPolicy) {
				p.Min, p.Zero = new(int32(0)), &windlassv1.ScaleToZero{WakeTo: wakeTo}
			}), 1)
			r.reportFor(time.Hour, func() Sample { return inFlight(r.st.Desired, 0) })
			require.Zero(t, r.st.Desired)
			r.st.Desired = 1 // the region started a replica by itself
			return r
		}
		few := func(r *simulation) func() Sample { return func() Sample { return inFlight(r.st.Desired, 1) } }
		r := woken(3)
		require.Equal(t, []int{3}, r.reportFor(5*time.Minute, few(r)))
		require.Equal(t, WakeTo, r.last.Limit)
		require.Equal(t, []int{2, 1}, r.reportFor(5*time.Minute, few(r)))
		r = woken(3)
		r.st.Quota = new(2)
		require.Equal(t, []int{2}, r.reportFor(time.Minute, few(r)))
		require.Equal(t, Quota, r.last.Limit)
		r = woken(1)
		require.Equal(t, []int{1}, r.reportFor(time.Minute, few(r)))

		r = newSimulation(policy(t, func(p *windlassv1.ScalingPolicy) { p.Min, p.Zero = new(int32(0)), &windlassv1.ScaleToZero{WakeTo: 3} }), 1)
		require.Equal(t, []int{1}, r.reportFor(10*time.Minute, few(r)), "nothing woke it")
		for r.report(inFlight(1, 0)).Wanted > 0 {
			r.now = r.now.Add(5 * time.Second)
		}
		r.st.Desired, r.now = 1, r.now.Add(time.Second)
		require.Equal(t, 3, r.decide().Wanted, "woken before the next decision")
	})
	t.Run("a quota below min stops no replica", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, func(p *windlassv1.ScalingPolicy) { p.Min = new(int32(2)) }), 2)
		quota := 1
		r.st.Quota = &quota
		require.Equal(t, []int{2}, r.reportFor(20*time.Minute, func() Sample { return inFlight(2, 0) }))
		require.Equal(t, QuotaBelowMinimum, r.last.Limit)
		require.Equal(t, []int{2}, r.reportFor(20*time.Minute, func() Sample { return inFlight(2, 100) }))
		require.Equal(t, QuotaBelowMinimum, r.last.Limit)
	})
}

func TestDecide_Cases(t *testing.T) {
	t.Parallel()
	t.Run("replicas that never become ready are not added again under constant load", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, nil), 2)
		r.fillWindows(inFlight(2, 20))
		numbers := r.reportFor(2*time.Hour, func() Sample { return Sample{Ready: 2, Starting: r.st.Desired - 2, InFlight: new(90.0)} })
		require.Equal(t, 9, numbers[len(numbers)-1])
		require.IsIncreasing(t, numbers)
	})
	t.Run("a replica that loads for 20 minutes is not idle", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, func(p *windlassv1.ScalingPolicy) { p.Min = new(int32) }), 1)
		require.Equal(t, []int{1}, r.reportFor(20*time.Minute, func() Sample { return Sample{Starting: 1, InFlight: new(0.0), Rate: new(0.0)} }))
	})
	t.Run("a replica that stays pending delays scaling down only for its startup budget", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, nil), 4)
		r.st.StartupBudget = 10 * time.Minute
		r.fillWindows(inFlight(4, 40))
		pending := func() Sample { return Sample{Ready: r.st.Desired - 1, Starting: 1, InFlight: new(10.0)} }
		require.Equal(t, []int{4}, r.reportFor(9*time.Minute+50*time.Second, pending))
		require.Equal(t, StartingLimit, r.last.Limit)
		require.Equal(t, []int{4, 3, 2, 1}, r.reportFor(10*time.Minute, pending))
	})
	t.Run("a replica that is neither ready nor starting delays nothing", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, nil), 4)
		r.fillWindows(inFlight(4, 40))
		r.reportFor(10*time.Minute, func() Sample { return Sample{Ready: r.st.Desired - 1, InFlight: new(10.0)} })
		require.Equal(t, 1, r.st.Desired)
	})
	t.Run("no replica is removed during a rollout", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, nil), 6)
		r.st.Floor = 6
		require.Equal(t, []int{6}, r.reportFor(time.Hour, func() Sample { return inFlight(6, 10) }))
		require.Equal(t, Rollout, r.last.Limit)
	})
	t.Run("a region that does not report keeps its replicas", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, nil), 7)
		r.fillWindows(inFlight(7, 70))
		r.now = r.now.Add(time.Hour)
		require.Equal(t, 7, r.decide().Wanted)
		require.Equal(t, NoReport, r.last.Limit)
		require.Equal(t, []int{7}, r.reportFor(4*time.Minute, func() Sample { return inFlight(7, 10) }), "the window fills again")
	})
	t.Run("a constant load is decided on as soon as the samples cover the window", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, func(p *windlassv1.ScalingPolicy) {
			p.Up = &windlassv1.ScalingPace{Window: durationpb.New(7 * time.Second)}
		}), 2)
		d := r.report(inFlight(2, 30))
		require.Equal(t, WindowFilling, d.Limit)
		require.Equal(t, start.Add(7*time.Second), d.Next)
		r.now = d.Next
		require.Equal(t, 3, r.decide().Wanted)
	})
	t.Run("a quota limits scaling up", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, nil), 2)
		r.st.Quota = new(3)
		require.Equal(t, 3, r.report(inFlight(2, 100)).Wanted)
		require.Equal(t, Quota, r.last.Limit)
		r.st.Quota = new(5)
		r.now = r.now.Add(10 * time.Second)
		require.Equal(t, 5, r.report(inFlight(3, 200)).Wanted)
		require.Equal(t, Quota, r.last.Limit)
	})
	t.Run("a hold keeps the number and says when it ends", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, nil), 2)
		r.st.HoldUntil = start.Add(time.Hour)
		require.Equal(t, []int{2}, r.reportFor(59*time.Minute, func() Sample { return inFlight(2, 100) }))
		require.Equal(t, HoldLimit, r.last.Limit)
		r.reportFor(10*time.Minute, func() Sample { return inFlight(r.st.Desired, 100) })
		require.Equal(t, 10, r.st.Desired)
	})
	t.Run("a time above its target adds replicas, and below half of it removes one", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, metrics(&windlassv1.ScalingMetric{Type: windlassv1.ScalingMetric_TYPE_FIRST_TOKEN, Target: "500ms"})), 2)
		slow := func(d time.Duration) Sample {
			var c histogram.Counts
			c[histogram.Bucket(d)] = 100
			return Sample{Ready: r.st.Desired, FirstToken: &c, InFlight: new(10.0), Rate: new(1.0)}
		}
		r.fillWindows(slow(400 * time.Millisecond))
		require.Equal(t, 4, r.report(slow(5*time.Second)).Wanted)
		require.Equal(t, []int{4}, r.reportFor(time.Hour, func() Sample { return slow(300 * time.Millisecond) }))
		r.reportFor(time.Hour, func() Sample { return slow(50 * time.Millisecond) })
		require.Equal(t, 1, r.st.Desired)
	})
	t.Run("ready replicas beyond the desired ones, as in a rollout, make no difference to a time", func(t *testing.T) {
		t.Parallel()
		var slow histogram.Counts
		slow[histogram.Bucket(time.Second)] = 100
		r := newSimulation(policy(t, metrics(&windlassv1.ScalingMetric{Type: windlassv1.ScalingMetric_TYPE_FIRST_TOKEN, Target: "500ms"})), 4)
		require.Equal(t, 8, r.report(Sample{Ready: 8, FirstToken: &slow, InFlight: new(10.0), Rate: new(1.0)}).Unlimited)
	})
	t.Run("ready replicas beyond the desired ones, as in a rollout, delay no panic", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, nil), 4)
		require.Equal(t, 8, r.report(inFlight(8, 100)).Wanted)
		require.True(t, r.last.Panic)
	})
	t.Run("thresholds add and remove one replica at a time", func(t *testing.T) {
		t.Parallel()
		r := newSimulation(policy(t, metrics(&windlassv1.ScalingMetric{Type: windlassv1.ScalingMetric_TYPE_CPU, Target: "70", Up: "80", Down: "30"})), 3)
		cpu := func(v float64) func() Sample {
			return func() Sample { return Sample{Ready: r.st.Desired, Levels: map[string]float64{"cpu": v}} }
		}
		require.Equal(t, []int{3}, r.reportFor(10*time.Minute, cpu(75)))
		require.Equal(t, []int{3}, r.reportFor(10*time.Minute, cpu(35)))
		require.Equal(t, []int{3, 4}, r.reportFor(time.Minute, cpu(100))[:2])
		r.reportFor(time.Hour, cpu(10))
		require.Equal(t, 1, r.st.Desired)
	})
}

func TestBounds_Schedule(t *testing.T) {
	t.Parallel()
	p := policy(t, func(p *windlassv1.ScalingPolicy) {
		p.Schedule = []*windlassv1.ScalingSchedule{
			{Cron: "0 8 * * 1-5", TimeZone: "Europe/Berlin", Min: new(int32(4))},
			{Cron: "0 20 * * *", TimeZone: "Europe/Berlin", Min: new(int32(1))},
		}
	})
	friday := time.Date(2026, 11, 27, 6, 59, 59, 0, time.UTC)
	require.Equal(t, 1, p.Bounds(friday).Min)
	require.Equal(t, friday.Add(time.Second), p.Bounds(friday).Next.UTC())
	require.Equal(t, 4, p.Bounds(friday.Add(time.Second)).Min)
	require.Equal(t, 1, p.Bounds(friday.Add(12*time.Hour+time.Second)).Min)
	require.Equal(t, 1, p.Bounds(friday.Add(24*time.Hour+time.Second)).Min, "Saturday")

	r := newSimulation(p, 1)
	r.now = friday.Add(time.Minute)
	require.Equal(t, 4, r.report(inFlight(1, 0)).Wanted)
	require.Equal(t, ScheduleLimit, r.last.Limit)
}

func TestBounds_ALeapDayIsInForceUntilTheNext(t *testing.T) {
	t.Parallel()
	p := policy(t, func(p *windlassv1.ScalingPolicy) {
		p.Schedule = []*windlassv1.ScalingSchedule{{Cron: "0 0 29 2 *", TimeZone: "UTC", Min: new(int32(4))}}
	})
	require.Equal(t, 4, p.Bounds(time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)).Min)
}

func TestDecide_AdoptsWhatTheRegionRaised(t *testing.T) {
	t.Parallel()
	down := func(p *windlassv1.ScalingPolicy) {
		p.Max, p.Down = 8, &windlassv1.ScalingPace{Window: durationpb.New(time.Minute), Step: "1", Every: durationpb.New(10 * time.Second)}
	}
	adopted := func(raised int, change func(*State)) Decision {
		r := newSimulation(policy(t, down), 2)
		r.st.Raised = raised
		if change != nil {
			change(&r.st)
		}
		return r.report(Sample{Ready: raised, InFlight: new(10.0)})
	}
	d := adopted(6, nil)
	require.Equal(t, 6, d.Wanted, "with the first sample, although the window is not filled")
	require.Equal(t, None, d.Limit)
	require.Equal(t, start, d.Kept.LastUp)

	for limit, c := range map[Limit]struct {
		raised, want int
		change       func(*State)
	}{
		Maximum:      {10, 8, nil},
		HoldLimit:    {6, 2, func(s *State) { s.HoldUntil = start.Add(time.Hour) }},
		Quota:        {6, 4, func(s *State) { s.Quota = new(4) }},
		Room:         {6, 3, func(s *State) { s.Room = new(3) }},
		RegionClosed: {6, 2, func(s *State) { s.Closed = true }},
	} {
		d := adopted(c.raised, c.change)
		require.Equal(t, c.want, d.Wanted, limit)
		require.Equal(t, limit, d.Limit)
	}
	require.Equal(t, 2, adopted(2, nil).Wanted, "the assigned number is no raise")

	// Before the cut, one replica was enough for longer than the window. It counts from the adoption.
	r := newSimulation(policy(t, down), 2)
	idle := func() Sample { return Sample{Ready: r.st.Desired, InFlight: new(11.0)} }
	r.reportFor(3*time.Minute, idle)
	require.Equal(t, 2, r.st.Desired)
	r.st.Raised = 6
	r.report(Sample{Ready: 6, InFlight: new(11.0)})
	require.Equal(t, 6, r.st.Desired)
	r.st.Raised = 0
	r.now = r.now.Add(5 * time.Second)
	require.Equal(t, []int{6}, r.reportFor(50*time.Second, idle), "the window of down counts from the adoption")
	require.Contains(t, r.reportFor(2*time.Minute, idle), 5)
}
