package peers

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
		require.Equal(t, "cp_b", a.takers.of("reg_1"))

		// The stream moves: the first load finds that out, and the next one is sent to all again.
		at[0].move("reg_1", at[1])
		require.Zero(t, load("app_1"))
		require.Empty(t, a.takers.of("reg_1"))
		require.Zero(t, load("app_1"))
		require.Empty(t, taken[0].took())
		require.Equal(t, []string{"reg_1 app_1"}, taken[1].took())
		require.Equal(t, "cp_c", a.takers.of("reg_1"))

		// A process that does not answer holds nothing for long.
		h.net.plug("cp_c:1", nil)
		require.Zero(t, load("app_1"))
		require.Empty(t, a.takers.of("reg_1"))
	})
}

func TestPassLoads_CallsAreBounded(t *testing.T) {
	w := waitingLoads{signal: make(chan struct{}, 1), by: map[string]map[string]*agentv1.LoadReport{}}
	large := func(app string, deployments int) *agentv1.LoadReport {
		return &agentv1.LoadReport{AppId: app, Deployments: make([]*agentv1.DeploymentLoad, deployments)}
	}
	require.Zero(t, w.add("reg_1", []*agentv1.LoadReport{large("app_1", 3000), large("app_2", 3000), large("app_2", 2000)}))
	require.Zero(t, w.add("reg_2", []*agentv1.LoadReport{large("app_3", maxLoadDeployments+1)}))
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
	require.Equal(t, []string{"reg_1 app_1 3000", "", "reg_1 app_2 2000", "", "reg_2 app_3 4001", ""}, calls)
	require.Zero(t, w.n)

	var many []*agentv1.LoadReport
	for i := range maxLoads + 7 {
		many = append(many, large(fmt.Sprint(i), 0))
	}
	require.Equal(t, 7, w.add("reg_1", many))
}
