package scaling

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// poolPolicy returns the policy of a pool with a role prefill, which is coupled to its role decode.
func poolPolicy(edit ...func(p *windlassv1.ScalingPolicy)) *windlassv1.ScalingPolicy {
	p := &windlassv1.ScalingPolicy{Roles: []*windlassv1.RoleScaling{
		{
			Role: "prefill", Max: 16, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_REQUESTS_PER_SECOND, Target: "10"}},
			Couple: &windlassv1.ScalingCouple{Role: "decode", Ratio: []float64{0.5, 4}},
		},
		{Role: "decode", Max: 16, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_KV_CACHE, Target: "0.5"}}},
	}}
	for _, f := range edit {
		f(p)
	}
	return p
}

// pool reports samples of the roles of one pool, and applies the decisions.
type pool struct {
	roles []Role
	now   time.Time
	last  []Decision
}

func newPool(t testing.TB, p *windlassv1.ScalingPolicy, counts ...int) *pool {
	t.Helper()
	require.Nil(t, Check(p))
	policies, fault := NewRoles(p, "")
	require.Nil(t, fault)
	out := &pool{now: start}
	for i := range policies {
		out.roles = append(out.roles, Role{Name: policies[i].Role, Policy: &policies[i].Policy, Window: &Window{}, State: State{Desired: counts[i]}})
	}
	return out
}

// report reports the samples every 5 s for the time d. Wanted instances are ready at once.
func (p *pool) report(d time.Duration, samples ...Sample) []int {
	var counts []int
	for end := p.now.Add(d); p.now.Before(end); p.now = p.now.Add(5 * time.Second) {
		counts = nil
		for i := range p.roles {
			s := samples[i]
			s.At, s.Ready = p.now, p.roles[i].State.Desired
			p.roles[i].Window.Add(s, p.roles[i].Policy.Up.Window)
		}
		p.last = DecideRoles(p.roles, p.now)
		for i, one := range p.last {
			p.roles[i].State.Desired, p.roles[i].State.Kept = one.Wanted, one.Kept
			counts = append(counts, one.Wanted)
		}
	}
	return counts
}

func rate(v float64) Sample { return Sample{InFlight: new(v), Rate: new(v)} }

func cache(v float64) Sample {
	return Sample{InFlight: new(1.0), Rate: new(1.0), Levels: map[string]float64{"kvCache": v}}
}

func TestDecideRoles_Vectors(t *testing.T) {
	t.Parallel()
	t.Run("prefill wants 2 and decode 8: at least 0.5 prefill for each decode makes 4 and 8", func(t *testing.T) {
		t.Parallel()
		p := newPool(t, poolPolicy(), 2, 8)
		require.Equal(t, []int{4, 8}, p.report(5*time.Second, rate(20), cache(0.5)))
		require.Equal(t, Ratio, p.last[0].Limit)
		require.Equal(t, 2, p.last[0].Unlimited)
		require.Equal(t, None, p.last[1].Limit)
		require.Equal(t, []int{4, 8}, p.report(20*time.Minute, rate(20), cache(0.5)), "the ratio keeps the number, although the load wants less")
	})
	t.Run("above the highest ratio, the other role gets more", func(t *testing.T) {
		t.Parallel()
		p := newPool(t, poolPolicy(func(p *windlassv1.ScalingPolicy) { p.Roles[0].Couple.Ratio = []float64{0.5, 2} }), 8, 1)
		require.Equal(t, []int{8, 4}, p.report(5*time.Second, rate(80), cache(0.5)))
		require.Equal(t, Ratio, p.last[1].Limit)
	})
	t.Run("a role shrinks as far as the ratio to the other role allows", func(t *testing.T) {
		t.Parallel()
		p := newPool(t, poolPolicy(), 8, 8)
		require.Equal(t, []int{4, 8}, p.report(20*time.Minute, rate(10), cache(0.5)))
		require.Equal(t, []int{1, 1}, p.report(20*time.Minute, rate(10), cache(0)))
	})
	t.Run("a maximum wins over the ratio, and cuts nothing", func(t *testing.T) {
		t.Parallel()
		p := newPool(t, poolPolicy(func(p *windlassv1.ScalingPolicy) { p.Roles[0].Max = 3 }), 2, 8)
		require.Equal(t, []int{3, 8}, p.report(20*time.Minute, rate(20), cache(0.5)))
		require.Equal(t, Maximum, p.last[0].Limit)
	})
	t.Run("a quota wins over the ratio", func(t *testing.T) {
		t.Parallel()
		p := newPool(t, poolPolicy(), 2, 8)
		p.roles[0].State.Quota = new(3)
		require.Equal(t, []int{3, 8}, p.report(5*time.Second, rate(20), cache(0.5)))
		require.Equal(t, Quota, p.last[0].Limit)
		p.roles[0].State.Quota, p.roles[0].State.Closed = nil, true
		require.Equal(t, []int{3, 8}, p.report(5*time.Second, rate(20), cache(0.5)))
		require.Equal(t, RegionClosed, p.last[0].Limit)
	})
	t.Run("room wins over the ratio", func(t *testing.T) {
		t.Parallel()
		p := newPool(t, poolPolicy(), 2, 8)
		p.roles[0].State.Room, p.roles[1].State.Room = new(3), new(7)
		require.Equal(t, []int{3, 8}, p.report(5*time.Second, rate(20), cache(0.5)), "no instance is removed")
		require.Equal(t, Room, p.last[0].Limit)
		require.Equal(t, []int{3, 8}, p.report(5*time.Minute, rate(20), cache(0.9)))
		require.Equal(t, Room, p.last[1].Limit)
	})
	t.Run("a hold wins over the ratio", func(t *testing.T) {
		t.Parallel()
		p := newPool(t, poolPolicy(), 2, 8)
		p.roles[0].State.HoldUntil = p.now.Add(time.Minute)
		require.Equal(t, []int{2, 8}, p.report(time.Minute, rate(20), cache(0.5)))
		require.Equal(t, HoldLimit, p.last[0].Limit)
		require.Equal(t, []int{4, 8}, p.report(5*time.Second, rate(20), cache(0.5)))
	})
	t.Run("a role without metrics follows the other role, up and down", func(t *testing.T) {
		t.Parallel()
		p := newPool(t, poolPolicy(func(p *windlassv1.ScalingPolicy) { p.Roles[0].Metrics, p.Roles[0].Min = nil, new(int32(2)) }), 2, 4)
		require.Equal(t, []int{8, 16}, p.report(5*time.Minute, Sample{}, cache(1)))
		require.Equal(t, Ratio, p.last[0].Limit)
		require.Equal(t, []int{2, 1}, p.report(40*time.Minute, Sample{}, cache(0.01)))
		require.Equal(t, Minimum, p.last[0].Limit)
	})
	t.Run("without reports nothing changes", func(t *testing.T) {
		t.Parallel()
		p := newPool(t, poolPolicy(func(p *windlassv1.ScalingPolicy) { p.Roles[0].Metrics = nil }), 7, 8)
		for _, d := range DecideRoles(p.roles, p.now) {
			require.Equal(t, d.Wanted, d.Desired, "nothing changes")
			require.Equal(t, NoReport, d.Limit)
		}
	})
	t.Run("no role loses instances during a rollout", func(t *testing.T) {
		t.Parallel()
		p := newPool(t, poolPolicy(func(p *windlassv1.ScalingPolicy) { p.Roles[0].Metrics = nil }), 7, 8)
		p.roles[0].State.Floor, p.roles[1].State.Floor = 7, 8
		require.Equal(t, []int{7, 8}, p.report(20*time.Minute, Sample{}, cache(0.01)))
		require.Equal(t, Rollout, p.last[0].Limit)
	})
	t.Run("a chain of couples is followed to its end", func(t *testing.T) {
		t.Parallel()
		p := newPool(t, poolPolicy(func(p *windlassv1.ScalingPolicy) {
			p.Roles = append(p.Roles, &windlassv1.RoleScaling{Role: "router", Max: 9, Couple: &windlassv1.ScalingCouple{Role: "prefill", Ratio: []float64{0.5, 1}}})
		}), 2, 8, 1)
		require.Equal(t, []int{4, 8, 2}, p.report(5*time.Second, rate(20), cache(0.5), Sample{}))
	})
}

func TestDecideRoles_RatiosHoldUnlessALimitIsNamed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		low := rapid.Float64Range(0, 3).Draw(rt, "low")
		high := low + rapid.Float64Range(0.1, 3).Draw(rt, "above")
		p := newPool(t, poolPolicy(func(p *windlassv1.ScalingPolicy) {
			p.Roles[0].Couple.Ratio = []float64{low, high}
			p.Roles[0].Max, p.Roles[1].Max = rapid.Int32Range(1, 30).Draw(rt, "max"), rapid.Int32Range(1, 30).Draw(rt, "max")
		}), rapid.IntRange(1, 30).Draw(rt, "prefill"), rapid.IntRange(1, 30).Draw(rt, "decode"))
		for range rapid.IntRange(1, 6).Draw(rt, "changes") {
			d := time.Duration(rapid.IntRange(5, 900).Draw(rt, "seconds")) * time.Second
			counts := p.report(d, rate(rapid.Float64Range(0, 400).Draw(rt, "rate")), cache(rapid.Float64Range(0, 1).Draw(rt, "cache")))
			full := func(i int) bool { return counts[i] >= p.last[i].Bounds.Max }
			if r := float64(counts[0]) / float64(counts[1]); r < low-1e-6 && !full(0) || r > high+1e-6 && !full(1) {
				rt.Fatalf("%v has ratio %g, not %g to %g: %+v", counts, r, low, high, p.last)
			}
			for i, one := range p.last {
				if one.Wanted < 1 || one.Wanted > max(one.Bounds.Max, one.Desired) {
					rt.Fatalf("role %d: %d", i, one.Wanted)
				}
			}
		}
	})
}

func TestCheck_RolesHaveFieldAndFix(t *testing.T) {
	t.Parallel()
	role := func(i int, edit func(r *windlassv1.RoleScaling)) func(*windlassv1.ScalingPolicy) {
		return func(p *windlassv1.ScalingPolicy) { edit(p.Roles[i]) }
	}
	couple := func(i int, to string, ratio ...float64) func(*windlassv1.ScalingPolicy) {
		return role(i, func(r *windlassv1.RoleScaling) { r.Couple = &windlassv1.ScalingCouple{Role: to, Ratio: ratio} })
	}
	for name, c := range map[string]struct {
		edit  func(p *windlassv1.ScalingPolicy)
		field string
	}{
		"max of the app":           {func(p *windlassv1.ScalingPolicy) { p.Max = 3 }, "max"},
		"metrics of the app":       {func(p *windlassv1.ScalingPolicy) { p.Metrics = p.Roles[0].Metrics }, "metrics"},
		"wakeTo":                   {func(p *windlassv1.ScalingPolicy) { p.Zero = &windlassv1.ScaleToZero{WakeTo: 2} }, "zero.wakeTo"},
		"a role twice":             {role(1, func(r *windlassv1.RoleScaling) { r.Role = "prefill" }), "roles[1].role"},
		"min above max":            {role(1, func(r *windlassv1.RoleScaling) { r.Min = new(int32(17)) }), "roles[1].min"},
		"min 0":                    {role(1, func(r *windlassv1.RoleScaling) { r.Min = new(int32(0)) }), "roles[1].min"},
		"no max":                   {role(1, func(r *windlassv1.RoleScaling) { r.Max = 0 }), "roles[1].max"},
		"no metrics and no couple": {role(1, func(r *windlassv1.RoleScaling) { r.Metrics = nil }), "roles[1].metrics"},
		"target 0":                 {role(1, func(r *windlassv1.RoleScaling) { r.Metrics[0].Target = "0" }), "roles[1].metrics[0].target"},
		"a schedule to 0": {role(1, func(r *windlassv1.RoleScaling) {
			r.Schedule = []*windlassv1.ScalingSchedule{{Cron: "0 8 * * *", Min: new(int32(0))}}
		}), "roles[1].schedule[0].min"},
		"an override with initial": {role(1, func(r *windlassv1.RoleScaling) {
			r.Overrides = []*windlassv1.ScalingOverride{{Regions: []string{"eu"}, Initial: new(int32(2))}}
		}), "roles[1].overrides[0].initial"},
		"an override above its max": {role(1, func(r *windlassv1.RoleScaling) {
			r.Overrides = []*windlassv1.ScalingOverride{{Regions: []string{"eu"}, Min: new(int32(20))}}
		}), "roles[1].overrides[0].min"},
		"couple to a missing role": {couple(0, "router", 0.5, 4), "roles[0].couple.role"},
		"couple to itself":         {couple(0, "prefill", 0.5, 4), "roles[0].couple.role"},
		"couples in a circle":      {couple(1, "prefill", 0.5, 4), "roles[0].couple.role"},
		"ratio of one number":      {couple(0, "decode", 1), "roles[0].couple.ratio"},
		"ratio downwards":          {couple(0, "decode", 4, 0.5), "roles[0].couple.ratio"},
		"negative ratio":           {couple(0, "decode", -1, 1), "roles[0].couple.ratio"},
		"ratio 0 of a role that follows": {func(p *windlassv1.ScalingPolicy) {
			p.Roles[0].Metrics, p.Roles[0].Couple.Ratio = nil, []float64{0, 4}
		}, "roles[0].couple.ratio"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fault := Check(poolPolicy(c.edit))
			require.NotNil(t, fault)
			require.Equal(t, c.field, fault.Field)
			require.NotEmpty(t, fault.Fix)
		})
	}
	t.Run("a circle to which a third role leads is reported once", func(t *testing.T) {
		t.Parallel()
		p := poolPolicy(couple(1, "prefill", 0.5, 4))
		p.Roles = slices.Insert(p.Roles, 0, &windlassv1.RoleScaling{Role: "router", Max: 2, Couple: &windlassv1.ScalingCouple{Role: "decode", Ratio: []float64{1, 1}}})
		require.Equal(t, "roles[1].couple.role", Check(p).Field)
		require.Contains(t, Check(p).Message, "prefill -> decode -> prefill")
	})
}

func TestPolicy_MergesOverridesOfRoles(t *testing.T) {
	t.Parallel()
	p := poolPolicy(func(p *windlassv1.ScalingPolicy) {
		p.Roles[1].Overrides = []*windlassv1.ScalingOverride{{Regions: []string{"eu"}, RegionIds: []string{"reg_1"}, Max: new(int32(20)), Min: new(int32(3))}}
		p.Roles[1].Up = &windlassv1.ScalingPace{Every: durationpb.New(time.Second)}
	})
	policies, fault := NewRoles(p, "reg_1")
	require.Nil(t, fault)
	require.Equal(t, [2]int{3, 20}, [2]int{policies[1].Min, policies[1].Max})
	require.Equal(t, time.Second, policies[1].Up.Every)
	in := In(p, "eu")
	require.EqualValues(t, 20, in.GetRoles()[1].GetMax())
	require.Empty(t, in.GetRoles()[1].GetOverrides())
	require.Len(t, p.GetRoles()[1].GetOverrides(), 1, "the original policy does not change")
}

// After a rollback, the live version may lack a role to which another role is coupled.
func TestDecideRoles_NumberStaysWithoutThePartner(t *testing.T) {
	policies, fault := NewRoles(&windlassv1.ScalingPolicy{Roles: []*windlassv1.RoleScaling{
		{Role: "prefill", Max: 9, Couple: &windlassv1.ScalingCouple{Role: "dec", Ratio: []float64{0.5, 4}}},
		{Role: "dec", Max: 9, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_KV_CACHE, Target: "0.8"}}},
	}}, "")
	require.Nil(t, fault)
	now := time.UnixMilli(1_800_000_000_000)
	window := &Window{}
	window.Add(Sample{At: now, Ready: 8}, time.Minute)
	d := DecideRoles([]Role{{Name: "prefill", Policy: &policies[0].Policy, Window: window, State: State{Desired: 8}}}, now)
	require.Equal(t, 8, d[0].Wanted)
}
