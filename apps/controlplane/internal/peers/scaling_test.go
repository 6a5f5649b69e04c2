package peers

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	peerv1 "github.com/windlass-run/windlass/proto/gen/windlass/peer/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestScaling_ComesFromTheProcessWithTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		decisions := &fakeScaler{}
		a := h.start("cp_a")
		b := h.start("cp_b", func(cfg *Config) {
			cfg.Agents, cfg.Scaler = failing{}, decisions
		})
		defer a.stop()
		defer b.stop()
		time.Sleep(time.Second)
		read := func(p *process) (*windlassv1.RegionScaling, error) { return p.Scaling(t.Context(), "reg_1", "app_1") }
		stream := func(id string) {
			require.NoError(t, h.db.Update(t.Context(), func(tx store.Tx) error { return tx.PutStream("reg_1", id) }))
		}
		_, err := read(a)
		require.ErrorIs(t, err, model.ErrAgentUnreachable, "no process has the stream")
		for _, holder := range []string{"cp_a", "cp_unknown"} {
			stream(holder)
			_, err = read(a)
			require.ErrorIs(t, err, model.ErrAgentUnreachable, holder)
		}
		stream("cp_b")
		for _, p := range []*process{a, b} {
			decisions.set("reg_1", nil)
			got, err := read(p)
			require.NoError(t, err)
			require.Nil(t, got, "the region does not report")
			decisions.set("reg_1", &windlassv1.RegionScaling{Wanted: 7})
			got, err = read(p)
			require.NoError(t, err)
			require.EqualValues(t, 7, got.GetWanted())
		}
		h.net.plug("cp_b:1", nil)
		_, err = read(a)
		require.ErrorIs(t, err, model.ErrAgentUnreachable)
	})
	t.Run("a process that has lost it does not answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := setup(t)
			a, b := h.start("cp_a"), h.start("cp_b")
			defer a.stop()
			defer b.stop()
			time.Sleep(time.Second)
			require.NoError(t, h.db.Update(t.Context(), func(tx store.Tx) error { return tx.PutStream("reg_1", "cp_b") }))
			_, err := a.Scaling(t.Context(), "reg_1", "app_1")
			require.ErrorIs(t, err, model.ErrAgentUnreachable)
		})
	})
	t.Run("an outage of the database is no answer", func(t *testing.T) {
		s := &Service{cfg: Config{ID: "cp_a", Store: lost{}, Agents: noAgents{}}}
		_, err := s.Scaling(t.Context(), "reg_1", "app_1")
		require.ErrorContains(t, err, "connection refused")
		require.NotErrorIs(t, err, model.ErrAgentUnreachable)
	})
}

func TestScalingNow_HasTheDecisionsOfAllProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		with := func(region string, wanted int32, at int64) func(*Config) {
			return func(cfg *Config) {
				f := &fakeScaler{}
				f.set(region, &windlassv1.RegionScaling{Wanted: wanted, At: at})
				cfg.Scaler = f
			}
		}
		a := h.start("cp_a", with("reg_1", 1, 10))
		b := h.start("cp_b", with("reg_2", 2, 20))
		c := h.start("cp_c", with("reg_1", 3, 30))
		defer func() { a.stop(); b.stop(); c.stop() }()
		time.Sleep(time.Second)
		wanted := func() map[string]int32 {
			out := map[string]int32{}
			for region, d := range a.ScalingNow(t.Context(), "app_1") {
				out[region] = d.GetWanted()
			}
			return out
		}
		require.Equal(t, map[string]int32{"reg_1": 3, "reg_2": 2}, wanted(), "the newest decision counts")
		h.net.plug("cp_c:1", nil)
		require.Equal(t, map[string]int32{"reg_1": 1, "reg_2": 2}, wanted())
	})
}

// streams are the regions whose stream a process has.
type streams struct {
	noAgents

	mu sync.Mutex
	of map[string]bool
}

func (s *streams) Connected(region string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[region]
}

func (s *streams) move(region string, to *streams) {
	s.mu.Lock()
	delete(s.of, region)
	s.mu.Unlock()
	to.mu.Lock()
	to.of[region] = true
	to.mu.Unlock()
}

func TestPassLoads_ReachTheProcessWithTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		a := h.start("cp_a")
		load := func(apps ...string) int {
			var loads []*agentv1.LoadReport
			for _, app := range apps {
				loads = append(loads, &agentv1.LoadReport{AppId: app})
			}
			dropped := a.PassLoads("reg_1", loads)
			time.Sleep(time.Second)
			return dropped
		}
		defer a.stop()
		require.Equal(t, 2, load("app_1", "app_2"), "there is no other process")
		at := []*streams{{of: map[string]bool{"reg_1": true}}, {of: map[string]bool{}}}
		taken := []*fakeScaler{{}, {}}
		with := func(i int) func(*Config) {
			return func(cfg *Config) { cfg.Agents, cfg.Scaler = at[i], taken[i] }
		}
		b, c := h.start("cp_b", with(0)), h.start("cp_c", with(1))
		defer func() { b.stop(); c.stop() }()
		time.Sleep(time.Second)
		require.Zero(t, load("app_2", "app_1"))
		require.Equal(t, []string{"reg_1 app_1", "reg_1 app_2"}, taken[0].took())
		require.Empty(t, taken[1].took())
		require.Equal(t, "cp_b", a.taker("reg_1"))

		// The stream moves: the first load finds that out, and the next one is sent to all again.
		at[0].move("reg_1", at[1])
		require.Zero(t, load("app_1"))
		require.Empty(t, a.taker("reg_1"))
		require.Zero(t, load("app_1"))
		require.Empty(t, taken[0].took())
		require.Equal(t, []string{"reg_1 app_1"}, taken[1].took())
		require.Equal(t, "cp_c", a.taker("reg_1"))

		// A process that does not answer holds nothing for long.
		h.net.plug("cp_c:1", nil)
		require.Zero(t, load("app_1"))
		require.Empty(t, a.taker("reg_1"))
	})
}

func TestPassLoads_CallsAreBounded(t *testing.T) {
	w := newWaitingLoads()
	large := func(app string, deployments int) *agentv1.LoadReport {
		return &agentv1.LoadReport{AppId: app, Deployments: make([]*agentv1.DeploymentLoad, deployments)}
	}
	const most = maxLoadItems
	require.Zero(t, w.add("reg_1", []*agentv1.LoadReport{large("app_1", most-501), large("app_2", 900), large("app_2", 500), large("app_3", 3)}))
	require.Zero(t, w.add("reg_2", []*agentv1.LoadReport{large("app_4", most+1)}))
	var calls []string
	for more := true; more; {
		var loads []*peerv1.RegionLoads
		loads, more = w.take()
		for _, r := range loads {
			for _, l := range r.Loads {
				calls = append(calls, fmt.Sprintf("%s %s %d", r.RegionId, l.AppId, len(l.Deployments)))
			}
		}
		calls = append(calls, "")
	}
	require.Equal(t, []string{"reg_1 app_1 1499", "", "reg_1 app_2 500", "reg_1 app_3 3", "", "reg_2 app_4 2001", ""}, calls)
	require.Zero(t, w.n)

	var many []*agentv1.LoadReport
	for i := range maxLoads + 7 {
		many = append(many, large(fmt.Sprint(i), 0))
	}
	require.Equal(t, 7, w.add("reg_1", many))
	loads, more := w.take()
	require.True(t, more)
	require.Len(t, loads[0].Loads, most, "loads without deployments count, too")
}

func TestPassLoads_OlderLoadsReplaceNoNewerOnes(t *testing.T) {
	w := newWaitingLoads()
	at := func(ms int64) []*agentv1.LoadReport { return []*agentv1.LoadReport{{AppId: "app_1", At: ms}} }
	for _, ms := range []int64{10, 30, 20} {
		require.Zero(t, w.add("reg_1", at(ms)))
	}
	loads, _ := w.take()
	require.EqualValues(t, 30, loads[0].Loads[0].At)
	require.Zero(t, w.add("reg_1", at(5)))
	loads, _ = w.take()
	require.EqualValues(t, 5, loads[0].Loads[0].At, "none waits")
}

// fullLoad is as large as a load may be that ingest accepts.
func fullLoad(app string, deployments int) *agentv1.LoadReport {
	l := &agentv1.LoadReport{AppId: app, At: 1, Queued: new(1.0)}
	counts := slices.Repeat([]uint64{1 << 40}, 64)
	for i := range deployments {
		l.Deployments = append(l.Deployments, &agentv1.DeploymentLoad{
			DeploymentId: fmt.Sprintf("%s_%0200d", app, i), Ready: 1 << 20, Starting: 1 << 20, InFlight: new(1.0), Rate: new(1.0),
			Levels: map[string]float64{"kvCache": 1, "cpu": 1, "memory": 1, "queue": 1}, FirstToken: counts, Latency: counts,
		})
	}
	return l
}

func TestCalls_FitTheLimitsOfTheReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		taken := &fakeScaler{}
		a := h.start("cp_a", rarely)
		b := h.start("cp_b", rarely, func(cfg *Config) {
			cfg.Agents, cfg.Scaler = &streams{of: map[string]bool{"reg_1": true}}, taken
		})
		defer a.stop()
		defer b.stop()
		time.Sleep(time.Second)
		for name, loads := range map[string]struct{ apps, deployments int }{"large loads": {100, 64}, "many loads": {12_000, 0}} {
			var report []*agentv1.LoadReport
			for i := range loads.apps {
				report = append(report, fullLoad(fmt.Sprintf("app_%d", i), loads.deployments))
			}
			require.Zero(t, a.PassLoads("reg_1", report), name)
			time.Sleep(time.Minute)
			require.Len(t, taken.took(), loads.apps, name)
			require.Equal(t, "cp_b", a.taker("reg_1"), name)
		}

		var n Nudge
		for i := range maxNames {
			n.Regions = append(n.Regions, fmt.Sprintf("reg_%036d", i))
			n.Apps = append(n.Apps, fmt.Sprintf("app_%036d", i))
		}
		a.Tell(n)
		synctest.Wait()
		require.Len(t, b.nudges(), 1)
		require.Len(t, b.nudges()[0].Regions, maxNames)
	})
}

func TestPassLoads_ARegionWithoutAStreamIsNotAskedForOnAndOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		a := h.start("cp_a", rarely)
		at := []*streams{{of: map[string]bool{}}, {of: map[string]bool{}}}
		taken := &fakeScaler{}
		b := h.start("cp_b", rarely, func(cfg *Config) { cfg.Agents, cfg.Scaler = at[0], taken })
		c := h.start("cp_c", rarely, func(cfg *Config) { cfg.Agents = at[1] })
		defer func() { a.stop(); b.stop(); c.stop() }()
		time.Sleep(time.Second)
		outcomes := func() string {
			text := ""
			for _, p := range []*process{a, b, c} {
				for _, outcome := range []string{"ok", "elsewhere", "error"} {
					text += fmt.Sprintf("%v ", testutil.ToFloat64(p.metrics.loads.WithLabelValues(outcome)))
				}
			}
			return text
		}
		load := func() int { return a.PassLoads("reg_1", []*agentv1.LoadReport{{AppId: "app_1"}}) }
		for i := range 100 {
			require.Equal(t, min(i, 1), load(), "load %d", i)
			time.Sleep(10 * time.Millisecond)
		}
		require.Equal(t, "0 2 0 0 0 0 0 0 0 ", outcomes(), "both were asked once, and asked no third process")
		at[0].mu.Lock()
		at[0].of["reg_1"] = true
		at[0].mu.Unlock()
		time.Sleep(searchAgain)
		require.Zero(t, load())
		synctest.Wait()
		require.Zero(t, load())
		synctest.Wait()
		require.Equal(t, []string{"reg_1 app_1", "reg_1 app_1"}, taken.took())
		require.Equal(t, "2 3 0 0 0 0 0 0 0 ", outcomes())
		h.net.plug("cp_b:1", nil)
		require.Zero(t, load())
		synctest.Wait()
		require.Equal(t, "2 3 1 0 0 0 0 0 0 ", outcomes())
	})
}
