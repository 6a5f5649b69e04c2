package topology

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	started  = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
	stopping = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING
	stopped  = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED
)

// fakeTx keeps rows, routes and changes in memory.
type fakeTx struct {
	rows    map[rowKey]model.Topology
	routes  map[string]model.Route
	changes map[string]int64
	order   []string
}

func newFakeTx() *fakeTx {
	return &fakeTx{rows: map[rowKey]model.Topology{}, routes: map[string]model.Route{}, changes: map[string]int64{}}
}

func (tx *fakeTx) PutTopology(rows []model.Topology) error {
	for _, r := range rows {
		tx.rows[rowKey{r.DeploymentID, r.RegionID}] = r
	}
	return nil
}

func (tx *fakeTx) PutRoutes(routes []model.Route) error {
	for _, r := range routes {
		tx.routes[r.RegionID] = r
	}
	return nil
}

func (tx *fakeTx) Change(region string, kind model.ChangeKind, key string, generation int64) {
	tx.changes[region+"/"+key] = generation
	tx.order = append(tx.order, region+"/"+key)
}

func (tx *fakeTx) state() State {
	var s State
	for _, r := range tx.rows {
		s.Rows = append(s.Rows, r)
	}
	for _, r := range tx.routes {
		s.Routes = append(s.Routes, r)
	}
	return s
}

func row(deployment, region string, generation int64) model.Topology {
	return model.Topology{AppID: "app", DeploymentID: deployment, RegionID: region, Replicas: 2, Generation: generation, Status: started}
}

func TestWrite_AddsChangesExactlyForGenerationsThatGrew(t *testing.T) {
	db := newFakeTx()
	have := State{Rows: []model.Topology{row("v1", "us", 1), row("v1", "eu", 1)}}
	require.NoError(t, Write(db, State{}, have))
	require.Equal(t, map[string]int64{"us/v1": 1, "eu/v1": 1}, db.changes)

	clear(db.changes)
	want := db.state()
	for i := range want.Rows {
		want.Rows[i].Weight = 100 // agents do not see the weight
		if want.Rows[i].RegionID == "us" {
			want.Rows[i].Generation++
		}
	}
	want.Routes = []model.Route{{AppID: "app", RegionID: "us", Generation: 1, Hosts: []string{"a"}}}
	require.NoError(t, Write(db, have, want))
	require.Equal(t, map[string]int64{"us/v1": 2, "us/app": 1}, db.changes)
	require.Equal(t, int32(100), db.rows[rowKey{"v1", "eu"}].Weight)

	clear(db.changes)
	require.NoError(t, Write(db, db.state(), db.state()))
	require.Empty(t, db.changes, "without a difference there is no change")
}

func TestWrite_RefusesALowerGeneration(t *testing.T) {
	db := newFakeTx()
	require.ErrorContains(t, Write(db, State{Rows: []model.Topology{row("v1", "us", 4)}},
		State{Rows: []model.Topology{row("v1", "us", 3)}}), "topology of v1 in us: generation 3 after 4")
	require.Error(t, Write(db, State{}, State{Rows: []model.Topology{row("v1", "us", 0)}}))
	require.Error(t, Write(db, State{Routes: []model.Route{{RegionID: "us", Generation: 2}}},
		State{Routes: []model.Route{{RegionID: "us", Generation: 1}}}))
	require.Empty(t, db.rows)
	require.Empty(t, db.changes)
}

func TestWrite_AllowsOneOwnerOfAWorkloadInARegion(t *testing.T) {
	was, elsewhere := row("v1", "us", 1), row("v1", "eu", 1)
	successor := row("v2", "us", 1)
	successor.Workload, successor.WorkloadVersion = "v1", 1
	have := State{Rows: []model.Topology{was, elsewhere}}

	db := newFakeTx()
	require.ErrorContains(t, Write(db, have, State{Rows: []model.Topology{successor}}),
		"topology of v1 in us: v2 wants the same workload v1")
	require.Empty(t, db.rows)
	require.Empty(t, db.changes)

	given := was
	given.Status, given.Generation = stopping, 2
	require.NoError(t, Write(db, have, State{Rows: []model.Topology{successor, given}}))
	require.Equal(t, map[string]int64{"us/v1": 2, "us/v2": 1}, db.changes)
	require.Equal(t, []string{"us/v2", "us/v1"}, db.order, "the change of the row that takes over comes first")

	back, gone := was, successor
	back.Generation, gone.Generation, gone.Status = 3, 2, stopping
	require.Error(t, Write(db, db.state(), State{Rows: []model.Topology{back}}), "v2 still has the workload")
	require.NoError(t, Write(db, db.state(), State{Rows: []model.Topology{back, gone}}))
	require.Equal(t, map[string]int64{"us/v1": 3, "us/v2": 2}, db.changes)
}

func TestScale_ChangesOnlyRunningRowsThatDiffer(t *testing.T) {
	gone := row("v1", "ap", 3)
	gone.Status = stopping
	rows := []model.Topology{row("v1", "us", 1), row("v1", "eu", 1), gone, row("v2", "us", 1)}

	in := func(region string, n int32) func(string) (int32, bool) {
		return func(id string) (int32, bool) { return n, region == "" || region == id }
	}
	all := Scale(rows, "v1", in("", 5), "tp", 9)
	require.Len(t, all, 2)
	for _, r := range all {
		require.Equal(t, int32(5), r.Replicas)
		require.Equal(t, int64(2), r.Generation)
		require.Equal(t, "tp", r.Traceparent)
		require.Equal(t, int64(9), r.UpdatedAt)
	}
	one := Scale(rows, "v1", in("eu", 0), "", 9)
	require.Len(t, one, 1)
	require.Equal(t, "eu", one[0].RegionID)
	require.Empty(t, Scale(rows, "v1", in("", 2), "", 9), "all rows have 2 replicas already")
}

func TestBumpSecrets_ChangesOnlyRowsThatUseTheSecret(t *testing.T) {
	gone := row("uses", "ap", 1)
	gone.Status = stopped
	rows := []model.Topology{row("uses", "us", 1), gone, row("other", "us", 1), row("none", "us", 1)}
	ref := func(name string) *windlassv1.DeploymentSpec {
		return &windlassv1.DeploymentSpec{Secrets: []*windlassv1.SecretReference{{EnvName: "TOKEN", Secret: name}}}
	}
	bumped := BumpSecrets(rows, map[string]*windlassv1.DeploymentSpec{"uses": ref("token"), "other": ref("else")}, "token", "", 9)
	require.Len(t, bumped, 1)
	require.Equal(t, "uses", bumped[0].DeploymentID)
	require.Equal(t, int64(2), bumped[0].Generation)
}

// For any sequence of writes, the stored rows are the wanted ones, and each generation that grew
// has one change.
func TestWrite_StoresWhatIsWanted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		db, want := newFakeTx(), newFakeTx()
		var have State
		for range rapid.IntRange(1, 10).Draw(t, "writes") {
			have = db.state()
			clear(db.changes)
			grew := map[string]int64{}
			for range rapid.IntRange(0, 6).Draw(t, "rows") {
				d := rapid.SampledFrom([]string{"v1", "v2"}).Draw(t, "deployment")
				r := rapid.SampledFrom([]string{"us", "eu"}).Draw(t, "region")
				next := want.rows[rowKey{d, r}]
				next.DeploymentID, next.RegionID = d, r
				next.Weight = rapid.Int32Range(0, 100).Draw(t, "weight")
				if next.Generation == 0 || rapid.Bool().Draw(t, "seen by agents") {
					next.Generation++
					grew[r+"/"+d] = next.Generation
				}
				want.rows[rowKey{d, r}] = next
			}
			require.NoError(t, Write(db, have, want.state()))
			require.Equal(t, want.rows, db.rows)
			require.Equal(t, grew, db.changes)
		}
	})
}
