package pins

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// simulation is a version v1 in regions that report at once, and a layer of pins over it.
type simulation struct {
	now           int64
	rows, before  map[string]*model.Topology // by region
	observed      map[string]model.Observed
	generation    map[string]int64
	acknowledged  map[string]bool
	region        model.Region
	closed, full  bool
	limit         int64
	log           []string
	deferred      bool
	transfersHeld bool
}

const v1 = "dep_1"

func newSimulation() *simulation {
	return &simulation{
		now: 1000, rows: map[string]*model.Topology{}, before: map[string]*model.Topology{}, observed: map[string]model.Observed{},
		generation: map[string]int64{}, acknowledged: map[string]bool{},
		region: model.Region{Name: "us", Status: windlassv1.RegionStatus_REGION_STATUS_CONNECTED, SessionEpoch: 1},
	}
}

func (w *simulation) Now() int64 { return w.now }

func (w *simulation) Deployment(id string) *model.Deployment {
	if id != v1 {
		return nil
	}
	return &model.Deployment{ID: v1, Version: 1, Spec: &windlassv1.DeploymentSpec{}}
}

func (w *simulation) Version(string) string                    { return "v1" }
func (w *simulation) Row(_, region string) *model.Topology     { return w.rows[region] }
func (w *simulation) Observed(_, region string) model.Observed { return w.observed[region] }
func (w *simulation) Acknowledged(region string) bool          { return w.acknowledged[region] }
func (w *simulation) Closed(string) bool                       { return w.closed }
func (w *simulation) Released(*model.Topology) bool            { return !w.transfersHeld }
func (w *simulation) Changed(*model.Topology) int64            { return w.now }
func (w *simulation) Stale(rollup.Place) bool                  { return false }
func (w *simulation) Blocks(reason string) bool                { return reason == "Unschedulable" }
func (w *simulation) Writable(string) bool                     { return !w.full }
func (w *simulation) Defer()                                   { w.deferred = true }

func (w *simulation) Before(_, region string) model.Topology {
	if w.before[region] == nil {
		return model.Topology{}
	}
	return *w.before[region]
}

func (w *simulation) Place(t *model.Topology) rollup.Place {
	return rollup.Place{Row: *t, Observed: w.observed[t.RegionID], Region: w.region}
}

func (w *simulation) Route(region string) *model.Route {
	return &model.Route{RegionID: region, Generation: w.generation[region]}
}

func (w *simulation) StartLimit(*windlassv1.DeploymentSpec, rollup.Place) int64 { return w.limit }

func (w *simulation) Assign(d *model.Deployment, region string, replicas int32) {
	w.rows[region] = &model.Topology{DeploymentID: d.ID, RegionID: region, Replicas: replicas, Generation: 1, Status: rowStarting}
}

func (w *simulation) SetReplicas(t *model.Topology, n int32) {
	t.Replicas, t.Transferred = n, false
	t.Generation++
}

func (w *simulation) Reroute(region string) { w.generation[region]++ }

func (w *simulation) Confirm(t *model.Topology) {
	if w.Place(t).Gone() {
		t.Status = rowStopped
	}
}

func (w *simulation) Log(what, _ string, _ *model.Deployment, _ string) { w.log = append(w.log, what) }

// reports sets the region's report about the version's newest generation.
func (w *simulation) reports(region string, ready int32, change ...func(*model.Observed)) {
	o := model.Observed{
		Guard: model.Guard(w.now), AppliedEpoch: 1, AppliedGeneration: w.rows[region].Generation, CountsGeneration: w.rows[region].Generation,
		Phase: int32(agentv1.AppliedState_PHASE_APPLIED), Ready: ready, ReadyReplicas: ready,
	}
	for _, c := range change {
		c(&o)
	}
	w.observed[region] = o
}

// step looks at the pin once, as a separate decision.
func (w *simulation) step(p *model.Pin) *Layer {
	w.before = map[string]*model.Topology{}
	for region, t := range w.rows {
		was := *t
		w.before[region] = &was
	}
	w.now += 1000
	l := &Layer{Rows: w}
	l.Look(p)
	return l
}

func pinned(sizes map[string]int32) *model.Pin {
	p := &model.Pin{DeploymentID: v1, Version: 1}
	Set(p, 10, sizes, 1000)
	return p
}

func states(p *model.Pin) (all []string) {
	for _, r := range p.Regions {
		all = append(all, fmt.Sprintf("%s %s", r.RegionID, r.State))
	}
	return all
}

func TestPin(t *testing.T) {
	t.Run("starts, serves with its weight once it is ready, and leaves when it is removed", func(t *testing.T) {
		w, p := newSimulation(), pinned(map[string]int32{"us": 2})
		l := w.step(p)
		require.EqualValues(t, 2, w.rows["us"].Replicas)
		require.Zero(t, w.rows["us"].Weight)
		require.NotZero(t, l.Since, "the layer decides about the pin again")
		w.reports("us", 2)
		w.step(p)
		require.Equal(t, []string{"us STATE_SERVING"}, states(p))
		require.EqualValues(t, 10, w.rows["us"].Weight)
		require.EqualValues(t, 1, w.generation["us"])

		require.True(t, Remove(p, w.now))
		w.step(p)
		require.Zero(t, w.rows["us"].Weight)
		require.Equal(t, rowStarted, w.rows["us"].Status, "the version runs until the region has acknowledged a route without it")
		w.acknowledged["us"] = true
		w.step(p)
		require.Equal(t, rowStopping, w.rows["us"].Status)
		w.reports("us", 0, func(o *model.Observed) { o.Deleted = true })
		w.step(p)
		require.Empty(t, p.Regions)
		require.Equal(t, []string{"PinStarting", "PinServing", "PinLeaving", "RegionsStopping", "PinRegionRemoved"}, w.log)
	})
	t.Run("fails for a deadline, alone in its region, and tries again when it is set again", func(t *testing.T) {
		w, p := newSimulation(), pinned(map[string]int32{"eu": 1, "us": 1})
		w.limit = 60_000
		w.step(p)
		w.reports("eu", 1)
		w.reports("us", 0, func(o *model.Observed) { o.Pending, o.Reason = 1, "Unschedulable" })
		l := w.step(p)
		require.Equal(t, []string{"eu STATE_SERVING", "us STATE_STARTING"}, states(p))
		require.Equal(t, int64(62_000), l.Due)
		w.now = l.Due
		w.step(p)
		require.Equal(t, []string{"eu STATE_SERVING", "us STATE_FAILED"}, states(p))
		require.Equal(t, "Unschedulable", p.In("us").Reason)
		require.Equal(t, "v1, which is pinned, failed in US (Unschedulable)", Failed([]model.Pin{*p}, func(string) string { return "US" }))

		require.True(t, Set(p, 10, map[string]int32{"eu": 1, "us": 3}, w.now))
		w.acknowledged["us"] = true
		w.step(p)
		w.reports("us", 0, func(o *model.Observed) { o.Deleted = true })
		w.step(p)
		require.True(t, w.deferred, "a row stops and starts in two steps")
		w.step(p)
		require.Equal(t, []string{"eu STATE_SERVING", "us STATE_STARTING"}, states(p))
		require.EqualValues(t, 3, w.rows["us"].Replicas)
	})
	t.Run("fails for instances that fail, and loses its weight", func(t *testing.T) {
		w, p := newSimulation(), pinned(map[string]int32{"us": 1})
		w.step(p)
		w.reports("us", 1)
		w.step(p)
		w.now += 1000
		w.reports("us", 0, func(o *model.Observed) { o.Doomed, o.Fail = 1, 1 })
		w.step(p)
		require.Equal(t, []string{"us STATE_FAILED"}, states(p))
		require.Equal(t, rollup.ReasonInstancesFailed, p.In("us").Reason)
		require.Zero(t, w.rows["us"].Weight)
	})
	t.Run("fails without its deployment", func(t *testing.T) {
		w, p := newSimulation(), pinned(map[string]int32{"us": 1})
		p.DeploymentID = "dep_gone"
		w.step(p)
		require.Equal(t, rollup.ReasonDeploymentLost, p.In("us").Reason)
	})
	t.Run("starts nothing in a closed region or in a region that the decision must not change", func(t *testing.T) {
		w, p := newSimulation(), pinned(map[string]int32{"us": 1})
		w.closed = true
		w.step(p)
		require.Equal(t, rollup.ReasonRegionClosed, p.In("us").Reason)
		w.closed, w.full = false, true
		w.step(p)
		require.Empty(t, w.rows)
		require.Empty(t, p.In("us").Reason)
	})
	t.Run("gets no traffic in a closed region without replicas", func(t *testing.T) {
		for _, transferred := range []bool{false, true} {
			w, p := newSimulation(), pinned(map[string]int32{"us": 2})
			w.limit = 60_000
			w.rows["us"] = &model.Topology{DeploymentID: v1, RegionID: "us", Status: rowStarted, Transferred: transferred, Generation: 4}
			w.reports("us", 0, func(o *model.Observed) { o.Deleted = transferred })
			w.closed = true
			w.step(p)
			w.now += 600_000
			w.step(p)
			require.Zero(t, w.rows["us"].Weight)
			require.Equal(t, rollup.ReasonRegionClosed, p.In("us").Reason)
			w.closed = false
			l := w.step(p)
			require.Equal(t, []string{"us STATE_STARTING"}, states(p))
			require.Empty(t, p.In("us").Reason)
			require.EqualValues(t, 2, w.rows["us"].Replicas)
			require.Equal(t, w.now+60_000, l.Due)
		}
	})
	t.Run("waits while its region is unreachable and then has its full time limit", func(t *testing.T) {
		w, p := newSimulation(), pinned(map[string]int32{"us": 1})
		w.limit = 60_000
		w.step(p)
		w.region.Status = windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE
		w.now += 600_000
		w.step(p)
		require.Equal(t, []string{"us STATE_STARTING"}, states(p))
		w.region.Status = windlassv1.RegionStatus_REGION_STATUS_CONNECTED
		l := w.step(p)
		require.Equal(t, w.now+60_000, l.Due)
	})
	t.Run("waits for a workload that a rollout transferred", func(t *testing.T) {
		w, p := newSimulation(), pinned(map[string]int32{"us": 2})
		w.rows["us"] = &model.Topology{DeploymentID: v1, RegionID: "us", Status: rowStarted, Transferred: true, Generation: 4}
		w.transfersHeld = true
		w.step(p)
		require.Zero(t, w.rows["us"].Replicas)
		w.transfersHeld = false
		w.step(p)
		require.EqualValues(t, 2, w.rows["us"].Replicas)
	})
}

func TestEdit(t *testing.T) {
	p := pinned(map[string]int32{"eu": 1, "us": 2})
	require.False(t, Set(p, 10, map[string]int32{"eu": 1, "us": 2}, 2000), "nothing changes")
	require.True(t, Set(p, 20, map[string]int32{"us": 2, "ap": 1}, 2000))
	require.Equal(t, []string{"ap STATE_STARTING", "eu STATE_LEAVING", "us STATE_STARTING"}, states(p))
	require.True(t, RemoveIn(p, "us", 3000))
	require.False(t, RemoveIn(p, "us", 3000))
	require.False(t, p.Removing)
	require.True(t, RemoveIn(p, "ap", 3000))
	require.True(t, p.Removing, "the pin stays in no region")
	require.False(t, Remove(p, 3000))

	row := model.Topology{DeploymentID: v1, RegionID: "us", Status: rowStarted}
	require.Equal(t, p, Of([]model.Pin{*p}, row))
	require.False(t, HasHosts([]model.Pin{*p}, &row), "the pin leaves the region")
	require.Nil(t, Of([]model.Pin{*p}, model.Topology{DeploymentID: v1, RegionID: "sa"}))
	p.In("us").Below = 7
	require.EqualValues(t, 7, ChangedBelow([]model.Pin{*p}, "us"))
	require.Zero(t, Due(model.PinRegion{Since: 5}, 0))
}
