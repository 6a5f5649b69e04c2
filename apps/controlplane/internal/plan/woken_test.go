package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestWoken(t *testing.T) {
	const now = 1_000_000
	spec := &windlassv1.DeploymentSpec{Image: "chat", Regions: []string{"us"}, Routing: &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{}}}
	atZero := func() Input {
		return Input{
			App:         model.App{ID: "app_1", LiveDeploymentID: "dep_1", LatestVersion: 1, Step: 1, Status: windlassv1.AppStatus_APP_STATUS_READY},
			Deployments: []model.Deployment{{ID: "dep_1", AppID: "app_1", Version: 1, Spec: spec, Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_READY, Stable: true}},
			Topology: []model.Topology{{
				AppID: "app_1", DeploymentID: "dep_1", RegionID: "reg_1", Weight: 100, Generation: 5, Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED,
			}},
			Observed: []model.Observed{{
				AppID: "app_1", DeploymentID: "dep_1", RegionID: "reg_1", AppliedEpoch: 1, AppliedGeneration: 5, Phase: int32(agentv1.AppliedState_PHASE_APPLIED), Code: "Woken",
			}},
			Regions:   []model.Region{{ID: "reg_1", Name: "us", SessionEpoch: 1, Status: windlassv1.RegionStatus_REGION_STATUS_CONNECTED}},
			RegionIDs: map[string]string{"us": "reg_1"},
		}
	}
	woken := func(out Output) (rows []model.Topology, entries int) {
		for _, h := range out.History {
			if h.What == "Woken" {
				entries++
			}
		}
		for _, r := range out.Topology {
			if r.Replicas > 0 {
				rows = append(rows, r)
			}
		}
		return rows, entries
	}
	t.Run("a region that a request woke gets a generation with replicas, once", func(t *testing.T) {
		in := atZero()
		rows, entries := woken(Next(in, now))
		require.Equal(t, 1, entries)
		require.Len(t, rows, 1)
		require.Equal(t, []int64{1, 6}, []int64{int64(rows[0].Replicas), rows[0].Generation})
		in.Topology = rows
		rows, entries = woken(Next(in, now))
		require.Empty(t, rows)
		require.Zero(t, entries)
	})
	t.Run("a pool that a request woke gets all its instances", func(t *testing.T) {
		in := atZero()
		in.Deployments[0].Spec = &windlassv1.DeploymentSpec{
			Image: "chat", Regions: []string{"us"}, Routing: spec.Routing, Layout: windlassv1.Layout_LAYOUT_POOLED,
			Roles: []*windlassv1.RoleSpec{{Name: "prefill"}, {Name: "decode", Entry: true}},
		}
		in.Topology[0].Roles = "decode=2,prefill=4"
		out := Next(in, now)
		rows, entries := woken(out)
		require.Equal(t, 1, entries)
		require.EqualValues(t, 100, rows[0].Replicas)
		require.Equal(t, "decode=2,prefill=4", rows[0].Roles)
		require.Equal(t, "a request came while it was at zero: a whole pool", out.History[0].Why)
	})
	t.Run("a report of an earlier generation, or of another epoch, counts for nothing", func(t *testing.T) {
		for _, change := range []func(*Input){
			func(in *Input) { in.Observed[0].AppliedGeneration = 4 },
			func(in *Input) { in.Observed[0].AppliedEpoch = 0 },
			func(in *Input) { in.Observed[0].Code = "" },
			func(in *Input) {
				in.Deployments[0].Spec = &windlassv1.DeploymentSpec{Image: "chat", Regions: []string{"us"}}
			},
			func(in *Input) { in.App.DeletingSince = 1 },
			func(in *Input) { in.Closed = map[string]bool{"reg_1": true} },
			func(in *Input) { in.Topology[0].Reason = "RegionClosed" },
		} {
			in := atZero()
			change(&in)
			rows, entries := woken(Next(in, now))
			require.Empty(t, rows)
			require.Zero(t, entries)
		}
	})
	t.Run("replicas that a request woke in a closed region stop, and the next request wakes nothing", func(t *testing.T) {
		in := atZero()
		in.Closed = map[string]bool{"reg_1": true}
		in.Hosts = []string{"chat.test"}
		in.Routes = []model.Route{{AppID: "app_1", RegionID: "reg_1", Hosts: in.Hosts, Generation: 3, Policy: model.EncodeRouting(spec.Routing)}}
		out := Next(in, now)
		require.Empty(t, Lint(in, out))
		require.Len(t, out.Topology, 1)
		row := out.Topology[0]
		require.Equal(t, []int64{0, 6, 100}, []int64{int64(row.Replicas), row.Generation, int64(row.Weight)})
		require.Zero(t, row.WakeTo(spec))
		require.Len(t, out.Routes, 1)
		require.Empty(t, out.Routes[0].Hosts)
		require.Empty(t, out.Routes[0].Policy)
		require.Equal(t, int64(4), out.Routes[0].Generation)

		in.Topology, in.Routes = out.Topology, out.Routes
		again := Next(in, now)
		require.Empty(t, again.Topology)
		require.Empty(t, again.Routes)

		in.Closed = nil
		out = Next(in, now)
		require.Len(t, out.Topology, 1)
		require.Equal(t, int64(7), out.Topology[0].Generation)
		require.Equal(t, int32(1), out.Topology[0].WakeTo(spec))
		require.Equal(t, in.Hosts, out.Routes[0].Hosts)
	})
	t.Run("Lint finds plans that let requests wake rows in a closed region", func(t *testing.T) {
		in := atZero()
		in.Closed = map[string]bool{"reg_1": true}
		in.Routes = []model.Route{{AppID: "app_1", RegionID: "reg_1", Hosts: []string{"chat.test"}, Generation: 3}}
		require.Equal(t, []string{
			"reg_1: is closed, and replicas that a request woke there are kept",
			"reg_1: is closed, and a request may wake dep_1",
			"reg_1: is closed, and gateways hold requests of an app at zero there",
		}, Lint(in, Output{History: []model.History{{What: "Woken", RegionID: "reg_1"}}}))
		in.Closed = nil
		require.Empty(t, Lint(in, Output{History: []model.History{{What: "Woken", RegionID: "reg_1"}}}))
	})
}
