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
	t.Run("what it says of an earlier generation, or of another epoch, counts for nothing", func(t *testing.T) {
		for _, change := range []func(*Input){
			func(in *Input) { in.Observed[0].AppliedGeneration = 4 },
			func(in *Input) { in.Observed[0].AppliedEpoch = 0 },
			func(in *Input) { in.Observed[0].Code = "" },
			func(in *Input) {
				in.Deployments[0].Spec = &windlassv1.DeploymentSpec{Image: "chat", Regions: []string{"us"}}
			},
			func(in *Input) { in.App.DeletingSince = 1 },
		} {
			in := atZero()
			change(&in)
			rows, entries := woken(Next(in, now))
			require.Empty(t, rows)
			require.Zero(t, entries)
		}
	})
}
