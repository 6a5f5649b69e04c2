package scaling

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// zeroPool is a pool that goes to zero after 15 min. It applies the decisions.
type zeroPool struct {
	*pool
	in Pool
	// starting are instances of roles that do not follow the load.
	starting int
	// streams is the number of requests that instances finish while they stop.
	streams float64
	// unheld means that gateways cannot hold requests, so that instances stay ready at zero.
	unheld  bool
	decided PoolDecision
}

func newZeroPool(t testing.TB, p *windlassv1.ScalingPolicy, counts ...int) *zeroPool {
	t.Helper()
	p.Zero = &windlassv1.ScaleToZero{After: durationpb.New(15 * time.Minute)}
	out := &zeroPool{pool: newPool(t, p, counts...)}
	out.in = Pool{Zero: PoolZero(p), Window: &Window{}}
	return out
}

func (p *zeroPool) counts() (out []int) {
	for _, r := range p.roles {
		out = append(out, r.State.Desired)
	}
	return out
}

// stop takes the pool to zero by hand.
func (p *zeroPool) stop() { p.in.AtZero, p.in.ZeroSince = true, time.Time{} }

// decide decides without a report.
func (p *zeroPool) decide() PoolDecision {
	if p.in.Roles = p.roles; !p.in.AtZero {
		p.in.ZeroSince = time.Time{}
	} else if p.in.ZeroSince.IsZero() {
		p.in.ZeroSince = p.now
	}
	p.decided = DecidePool(p.in, p.now)
	for i, d := range p.decided.Roles {
		p.roles[i].State.Desired, p.roles[i].State.Kept = p.decided.Counts[i], d.Kept
	}
	p.in.AtZero = p.decided.AtZero
	return p.decided
}

// report reports the samples of the roles every 5 s for d, and returns whether the pool is at zero then. At zero,
// requests in flight of the samples wait at gateways, unless these cannot hold them.
func (p *zeroPool) report(d time.Duration, samples ...Sample) (atZero bool) {
	for end := p.now.Add(d); p.now.Before(end); p.now = p.now.Add(5 * time.Second) {
		p.in.Window.Add(p.sample(1, Sample{InFlight: samples[0].InFlight, Rate: samples[0].Rate, Starting: p.starting}), Fresh)
		for i := range p.roles {
			p.roles[i].Window.Add(p.sample(p.roles[i].State.Desired, samples[i]), p.roles[i].Policy.Up.Window)
		}
		p.decide()
	}
	return p.in.AtZero
}

// sample returns s as the agent reports it now. ready is the number of ready instances, unless the pool is at zero.
func (p *zeroPool) sample(ready int, s Sample) Sample {
	if s.At = p.now; !p.in.AtZero || p.unheld {
		s.Ready = ready
	} else if s.InFlight != nil {
		s.InFlight, s.Queued = new(p.streams), s.InFlight
	}
	return s
}

func idlePool(v float64) Sample {
	return Sample{InFlight: new(0.0), Rate: new(0.0), Levels: map[string]float64{"kvCache": v}}
}

func TestDecidePool_Vectors(t *testing.T) {
	t.Parallel()
	idle, busy := []Sample{idlePool(0), idlePool(0.5)}, []Sample{rate(20), cache(0.5)}
	t.Run("idle for 14 min it stays, for 15 min all roles go to zero", func(t *testing.T) {
		t.Parallel()
		p := newZeroPool(t, poolPolicy(func(p *windlassv1.ScalingPolicy) { p.Roles[1].Initial = new(int32(4)) }), 4, 8)
		require.False(t, p.report(time.Minute, busy...))
		require.False(t, p.report(14*time.Minute, idle...))
		require.True(t, p.report(2*time.Minute, idle...))
		require.Equal(t, []int{2, 4}, p.counts(), "it starts with initial, in the ratio of the couple")
		for _, d := range p.decided.Roles {
			require.Zero(t, d.Desired)
			require.Zero(t, d.Wanted)
		}
		require.True(t, p.report(24*time.Hour, idlePool(0), idlePool(0)))
		require.Equal(t, []int{2, 4}, p.counts())
	})
	t.Run("a request brings all roles back in one decision", func(t *testing.T) {
		t.Parallel()
		p := newZeroPool(t, poolPolicy(), 4, 8)
		require.True(t, p.report(20*time.Minute, idle...))
		require.False(t, p.report(5*time.Second, rate(1), rate(1)))
		require.Equal(t, []int{1, 1}, []int{p.decided.Roles[0].Wanted, p.decided.Roles[1].Wanted})
		require.Equal(t, []int{0, 0}, []int{p.decided.Roles[0].Desired, p.decided.Roles[1].Desired})
		require.Equal(t, "there are requests", p.decided.Why)
	})
	t.Run("samples from before it came back are no reason to go to zero again", func(t *testing.T) {
		t.Parallel()
		p := newZeroPool(t, poolPolicy(), 4, 8)
		require.True(t, p.report(time.Hour, idle...))
		p.in.AtZero = false // the region reported that a request woke it, before it reported its load
		p.now = p.now.Add(time.Second)
		require.False(t, p.decide().AtZero)
		require.False(t, p.report(14*time.Minute, idle...))
		require.True(t, p.report(2*time.Minute, idle...))
	})
	t.Run("requests from before it was stopped by hand do not bring it back", func(t *testing.T) {
		t.Parallel()
		p := newZeroPool(t, poolPolicy(), 4, 8)
		require.False(t, p.report(time.Minute, busy...))
		p.stop()
		require.True(t, p.decide().AtZero)
		p.in.Window.Add(Sample{At: p.now, InFlight: new(0.0), Queued: new(1.0)}, Fresh) // a sample from before the stop
		require.True(t, p.decide().AtZero)
		p.now = p.now.Add(time.Second)
		require.False(t, p.report(5*time.Second, busy...), "gateways hold these requests")
	})
	t.Run("a stream that outlives a stop by hand does not bring it back", func(t *testing.T) {
		t.Parallel()
		p := newZeroPool(t, poolPolicy(), 4, 8)
		require.False(t, p.report(time.Minute, busy...))
		p.stop()
		p.unheld = true // the instances are ready until gateways hold requests
		require.True(t, p.report(30*time.Second, busy...))
		p.unheld, p.streams = false, 1
		require.True(t, p.report(time.Hour, idle...))
		require.False(t, p.report(5*time.Second, busy...), "a request that is held")
	})
	t.Run("requests at instances that stay, because gateways cannot hold requests, bring it back", func(t *testing.T) {
		t.Parallel()
		p := newZeroPool(t, poolPolicy(), 4, 8)
		require.True(t, p.report(20*time.Minute, idle...))
		p.unheld = true
		require.True(t, p.report(time.Hour, idle...))
		require.False(t, p.report(5*time.Second, busy...))
	})
	t.Run("an instance of another role that starts keeps the pool", func(t *testing.T) {
		t.Parallel()
		p := newZeroPool(t, poolPolicy(), 4, 8)
		p.starting = 1
		require.False(t, p.report(time.Hour, idle...))
		p.starting = 0
		require.False(t, p.report(14*time.Minute, idle...))
		require.True(t, p.report(2*time.Minute, idle...))
	})
	t.Run("a metric that is missing keeps the pool", func(t *testing.T) {
		t.Parallel()
		p := newZeroPool(t, poolPolicy(), 4, 8)
		require.False(t, p.report(time.Hour, idlePool(0), Sample{InFlight: new(0.0), Rate: new(0.0)}))
	})
	t.Run("an agent that reports no roles keeps the pool", func(t *testing.T) {
		t.Parallel()
		p := newZeroPool(t, poolPolicy(), 4, 8)
		for range 1000 {
			p.now = p.now.Add(5 * time.Second)
			p.in.Window.Add(Sample{At: p.now, Ready: 1, InFlight: new(0.0)}, Fresh)
			require.False(t, p.decide().AtZero)
		}
	})
	t.Run("without reports a pool stays as it is", func(t *testing.T) {
		t.Parallel()
		p := newZeroPool(t, poolPolicy(), 4, 8)
		require.True(t, p.report(20*time.Minute, idle...))
		p.now = p.now.Add(time.Hour)
		require.True(t, p.decide().AtZero)
		require.Equal(t, NoReport, p.decided.Roles[0].Limit)
	})
	t.Run("a rollout keeps the pool", func(t *testing.T) {
		t.Parallel()
		p := newZeroPool(t, poolPolicy(), 4, 8)
		p.roles[1].State.Floor = 8
		require.False(t, p.report(time.Hour, idle...))
	})
	t.Run("a hold of a role keeps the pool, and brings it back", func(t *testing.T) {
		t.Parallel()
		p := newZeroPool(t, poolPolicy(), 4, 8)
		require.True(t, p.report(20*time.Minute, idle...))
		p.roles[0].State.HoldUntil, p.roles[0].State.Desired = p.now.Add(time.Hour), 3
		require.False(t, p.report(59*time.Minute, idle...))
		require.Equal(t, 3, p.counts()[0])
		require.True(t, p.report(time.Minute+30*time.Second, idle...))
	})
	t.Run("a higher minimum of the schedule keeps the pool, and brings it back", func(t *testing.T) {
		t.Parallel()
		p := newZeroPool(t, poolPolicy(func(p *windlassv1.ScalingPolicy) {
			p.Roles[1].Schedule = []*windlassv1.ScalingSchedule{
				{Cron: "0 8 * * *", Min: new(int32(5)), For: durationpb.New(time.Hour)}, {Cron: "0 12 * * *", Min: new(int32(1)), For: durationpb.New(time.Hour)},
			}
		}), 4, 8)
		p.now = time.Date(2026, 1, 5, 7, 0, 0, 0, time.UTC)
		require.True(t, p.report(50*time.Minute, idle...))
		require.False(t, p.report(time.Hour, idle...))
		require.Equal(t, []int{3, 5}, p.counts())
		require.True(t, p.report(20*time.Minute, idle...))
		require.True(t, p.report(4*time.Hour, idle...), "a minimum that is not higher changes nothing")
	})
	t.Run("a closed region brings nothing back", func(t *testing.T) {
		t.Parallel()
		p := newZeroPool(t, poolPolicy(), 4, 8)
		require.True(t, p.report(20*time.Minute, idle...))
		p.roles[0].State.Closed = true
		require.True(t, p.report(time.Minute, busy...))
	})
	t.Run("a quota bounds the numbers with which it starts", func(t *testing.T) {
		t.Parallel()
		p := newZeroPool(t, poolPolicy(func(p *windlassv1.ScalingPolicy) { p.Roles[1].Initial = new(int32(6)) }), 1, 1)
		p.roles[1].State.Quota = new(4)
		require.True(t, p.report(20*time.Minute, idle...))
		require.Equal(t, []int{2, 4}, p.counts())
	})
	t.Run("a metric that ready instances of a role should have keeps the pool, also while another role has none", func(t *testing.T) {
		t.Parallel()
		p := newZeroPool(t, poolPolicy(), 4, 8)
		for range 1000 {
			p.now = p.now.Add(5 * time.Second)
			p.in.Window.Add(Sample{At: p.now, InFlight: new(0.0), Rate: new(0.0)}, Fresh)
			for i, ready := range []int{0, 8} {
				p.roles[i].Window.Add(Sample{At: p.now, Ready: ready, InFlight: new(0.0), Rate: new(0.0)}, p.roles[i].Policy.Up.Window)
			}
			require.False(t, p.decide().AtZero)
		}
	})
	t.Run("without zero, decisions are those of DecideRoles", func(t *testing.T) {
		t.Parallel()
		p := newZeroPool(t, poolPolicy(), 4, 8)
		p.in.Zero, p.in.Window = nil, nil
		for i := range 1000 {
			p.now = p.now.Add(5 * time.Second)
			for j := range p.roles {
				p.roles[j].Window.Add(Sample{
					At: p.now, Ready: p.roles[j].State.Desired, InFlight: new(0.0), Rate: new(float64(i % 300)), Levels: map[string]float64{"kvCache": 0.1},
				}, p.roles[j].Policy.Up.Window)
			}
			want := DecideRoles(p.roles, p.now)
			got := p.decide()
			require.Equal(t, PoolDecision{Roles: want, Counts: []int{want[0].Wanted, want[1].Wanted}}, got)
		}
		require.NotEqual(t, []int{4, 8}, p.counts())
	})
}

func TestDecidePool_IsAtZeroOnlyWithoutRequestsAndNeverInPart(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := newZeroPool(t, poolPolicy(), rapid.IntRange(1, 16).Draw(rt, "prefill"), rapid.IntRange(1, 16).Draw(rt, "decode"))
		quiet := time.Duration(0) // since the last request at a pool that is not at zero
		for range rapid.IntRange(1, 12).Draw(rt, "changes") {
			load := rapid.SampledFrom([]float64{0, 0, 1, 100}).Draw(rt, "load")
			p.streams, p.unheld = rapid.SampledFrom([]float64{0, 1, 20}).Draw(rt, "streams"), rapid.Bool().Draw(rt, "unheld")
			if rapid.Bool().Draw(rt, "stop") {
				p.stop()
				quiet = time.Hour
			}
			for range rapid.IntRange(1, 400).Draw(rt, "reports") {
				was, at := p.in.AtZero, p.now
				p.report(5*time.Second, rate(load), Sample{InFlight: new(load), Rate: new(load), Levels: map[string]float64{"kvCache": load / 100}})
				if quiet += 5 * time.Second; load > 0 && (!was || !p.in.AtZero) {
					quiet = 0
				}
				switch atZero := at.Sub(p.in.ZeroSince); {
				case p.in.AtZero && quiet < 15*time.Minute:
					rt.Fatalf("at zero %s after a request", quiet)
				case !p.in.AtZero && quiet > 16*time.Minute:
					rt.Fatalf("not at zero %s after the last request", quiet)
				case was && !p.in.AtZero && load == 0:
					rt.Fatal("it comes back without a request")
				case p.in.AtZero && load > 0 && atZero > 0 && (!p.unheld || atZero > stopsWithin):
					rt.Fatalf("%s at zero, and requests do not bring it back", atZero)
				}
				for i, d := range p.decided.Roles {
					if (d.Wanted == 0) != p.in.AtZero || p.decided.Counts[i] < 1 {
						rt.Fatalf("role %d has %d, and starts with %d; at zero: %v", i, d.Wanted, p.decided.Counts[i], p.in.AtZero)
					}
				}
			}
		}
	})
}
