package plan

import (
	"maps"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// checkPhases runs the phases one by one. No phase may write to the facts, or change a part of the facts
// that is not in its writes.
func checkPhases(t require.TestingT, in Input, now int64) {
	f := newFacts(in, now)
	f.wasStaged = f.isStaged() || f.mustCatchUp()
	before := valuesOf(f)
	for _, ph := range []phase{
		endRollout, endRetention, noteServed,
		advance, setWeights, advance, setWeights, catchUp, setWeights, endOrphans, closeAtZero, setWeights, logWeights, stopUnwanted,
		advance, catchUp, setWeights, endOrphans, closeAtZero, setWeights, stopUnwanted,
		logShares, finishDeletion, setStatus,
	} {
		if !ph.when(f) {
			continue // the next comparison shows whether this wrote
		}
		free := ph
		free.writes = writesAll
		whole, _, _ := free.run(f)
		require.Zero(t, whole.changedParts()&^ph.writes, "%q changes what it does not name", ph.does)
		c, _, _ := ph.run(f)
		requireUnchanged(t, before, f, ph.does)
		if c.changedParts() != writesHistoryOnly {
			f = f.apply(c)
			before = valuesOf(f)
		}
	}
	requireUnchanged(t, before, f, "the last phase")
}

// requireUnchanged checks that the facts still have the values. It compares without testify first, because histories
// call it several times for each plan.
func requireUnchanged(t require.TestingT, before factValues, f *facts, does string) {
	if after := valuesOf(f); !reflect.DeepEqual(before, after) {
		require.Equal(t, before, after, "%q, or a phase before it that had nothing to decide, writes to the facts", does)
	}
}

type factValues struct {
	app         model.App
	rollout     model.Rollout
	progress    *model.Progress
	deployments map[string]model.Deployment
	rows        []model.Topology
	routes      map[string]model.Route
	shares      map[rowKey]int32
	touched     map[string]bool
	requests    requests
}

func valuesOf(f *facts) factValues {
	v := factValues{
		app: *f.app, progress: copyProgress(f.progress), shares: maps.Clone(f.shares), touched: maps.Clone(f.touched), requests: f.requests,
		deployments: make(map[string]model.Deployment, len(f.deps)), routes: make(map[string]model.Route, len(f.routes)),
		rows: make([]model.Topology, len(f.rows)),
	}
	if f.rollout != nil {
		v.rollout = *f.rollout
	}
	for id, d := range f.deps {
		v.deployments[id] = *d
	}
	for i, t := range f.rows {
		v.rows[i] = *t
	}
	for region, r := range f.routes {
		v.routes[region] = *r
	}
	return v
}

func TestPhase(t *testing.T) {
	const (
		started  = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
		stopping = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING
	)
	in := Input{
		App: model.App{ID: "app", LiveDeploymentID: "v2"},
		Deployments: []model.Deployment{
			{ID: "v1", Version: 1, Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_DEPLOYING},
			{ID: "v2", Version: 2, Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_READY},
		},
		Topology: []model.Topology{
			{DeploymentID: "v2", RegionID: "us", Status: started, Replicas: 1, Weight: 100},
			{DeploymentID: "v1", RegionID: "us", Status: started, Replicas: 1, Generation: 4},
		},
		Regions: []model.Region{{ID: "us", Name: "us", Status: windlassv1.RegionStatus_REGION_STATUS_CONNECTED}},
	}

	t.Run("returns only what differs, and leaves the facts as they are", func(t *testing.T) {
		f := newFacts(in, 1000)
		c, history, again := stopUnwanted.run(f)
		require.Equal(t, writesRows|writesBudget, c.changedParts())
		require.Len(t, c.rows, 1)
		require.Equal(t, stopping, c.rows[0].Status)
		require.Equal(t, int64(5), c.rows[0].Generation)
		require.Equal(t, "RegionsStopping", history[0].What)
		require.False(t, again)
		require.Equal(t, started, f.rowIn("v1", "us").Status)
		require.Equal(t, stopping, f.apply(c).rowIn("v1", "us").Status)
	})
	t.Run("decides nothing the second time", func(t *testing.T) {
		f := newFacts(in, 1000)
		c, history, _ := endOrphans.run(f)
		require.Equal(t, writesDeployments, c.changedParts())
		require.Len(t, history, 1)
		f = f.apply(c)
		c, history, _ = endOrphans.run(f)
		require.Empty(t, c)
		require.Empty(t, history)
		require.Same(t, f, f.apply(c))
	})
	t.Run("does not run when there is nothing to decide", func(t *testing.T) {
		for _, ph := range []phase{endRollout, endRetention, advance, catchUp, logShares, finishDeletion} {
			require.False(t, ph.when(newFacts(in, 1000)), ph.does)
		}
	})
}

func TestMergeRows(t *testing.T) {
	row := func(deployment, region string, replicas int32) *model.Topology {
		return &model.Topology{DeploymentID: deployment, RegionID: region, Replicas: replicas}
	}
	rows := []*model.Topology{row("v1", "eu", 1), row("v1", "us", 1), row("v2", "us", 1)}
	changed := []*model.Topology{row("v1", "ap", 2), row("v1", "us", 2), row("v2", "eu", 2), row("v3", "eu", 2)}
	require.Equal(t, []*model.Topology{
		changed[0], rows[0], changed[1], changed[2], rows[2], changed[3],
	}, mergeRows(rows, changed))
}
