package plan

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

var places = []string{"ap", "eu", "us"}

// drawEvent makes one random change to the app, as callers, agents and time may.
func drawEvent(t *rapid.T, w *simulation) {
	region := rapid.SampledFrom(places).Draw(t, "region")
	deployment := fmt.Sprintf("v%d", rapid.Int32Range(1, max(1, w.app.LatestVersion)).Draw(t, "deployment"))
	row, assigned := w.rows[rowKey{deployment, region}]
	connected := w.regs[region].Status == windlassv1.RegionStatus_REGION_STATUS_CONNECTED
	switch e := rapid.IntRange(0, 23).Draw(t, "event"); {
	case e == 0 && w.app.DeletingSince == 0 && w.app.LatestVersion < 8:
		drawDeploy(t, w)
	case e <= 2 && assigned && connected:
		w.apply(region, deployment, rapid.Int32Range(0, row.Replicas).Draw(t, "ready"))
	case e == 3 && assigned && connected:
		w.apply(region, deployment, 0)
		w.observe(region, deployment, func(o *model.Observed) { o.Doomed, o.Reason = 1, "CrashLoop" })
	case e == 4 && assigned && connected:
		w.apply(region, deployment, 0)
		w.observe(region, deployment, func(o *model.Observed) {
			o.Phase, o.Code = int32(agentv1.AppliedState_PHASE_REJECTED), "Unschedulable"
			o.Retryable = rapid.Bool().Draw(t, "retryable")
		})
	case e <= 9 && connected:
		w.obey(region)
	case e <= 11 && connected:
		w.ack(region)
	case e == 12:
		w.setRegion(region, func(r *model.Region) { r.Status = windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE })
	case e == 13:
		w.setRegion(region, func(r *model.Region) {
			r.Status, r.LastReportAt = windlassv1.RegionStatus_REGION_STATUS_CONNECTED, w.now
		})
	case e == 14:
		w.setRegion(region, func(r *model.Region) { r.SessionEpoch++ })
	case e == 15:
		w.now += rapid.Int64Range(0, deadline).Draw(t, "pause")
	case e == 16 && rapid.Bool().Draw(t, "cancel"):
		for i := range w.rol {
			if w.rol[i].ID == w.app.RolloutID {
				w.rol[i].CancelRequested, w.rol[i].CancelledBy = true, "ada"
			}
		}
	case e == 17 && rapid.IntRange(0, 5).Draw(t, "delete") == 0:
		w.app.DeletingSince, w.app.AbandonUnreachable = w.now, rapid.Bool().Draw(t, "abandon")
	case e == 18 && assigned && isRowActive(&row):
		// Scaling, or a rotated secret. The API refuses to let a closed region grow.
		most := int32(3)
		if w.closed[region] {
			most = row.Replicas
		}
		row.Replicas, row.Generation = rapid.Int32Range(0, most).Draw(t, "scale"), row.Generation+1
		w.rows[rowKey{deployment, region}] = row
	case e == 20:
		drawFreeze(t, w)
	case e <= 22 && e > 20:
		w.request(region)
	case e == 23:
		w.closed = map[string]bool{region: rapid.Bool().Draw(t, "closed")}
	case e == 19:
		image := "registry.test/echo:v1"
		w.res = &Resolution{Image: image, Message: "down"}
		if rapid.Bool().Draw(t, "resolves") {
			w.res = &Resolution{Image: image, Digested: image + "@sha256:00"}
		}
	}
	if w.app.DeletedAt == 0 && rapid.IntRange(0, 3).Draw(t, "step") != 0 {
		w.step()
	}
}

// drawFreeze sets, lifts or overrides freezes.
func drawFreeze(t *rapid.T, w *simulation) {
	w.freezes = nil
	for _, name := range rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 0, 2).Draw(t, "freezes") {
		w.freezes = append(w.freezes, model.Freeze{
			WorkspaceID: "ws", Name: name, Reason: "it is late", From: w.now + rapid.Int64Range(-1, 60_000).Draw(t, "from"),
			Until: rapid.SampledFrom([]int64{0, w.now + 30_000, w.now + deadline}).Draw(t, "until"),
		})
	}
	if rapid.IntRange(0, 3).Draw(t, "override") != 0 {
		return
	}
	for i := range w.rol {
		if w.rol[i].ID == w.app.RolloutID {
			w.rol[i].OverrideBy, w.rol[i].OverrideWhy = "olga", "an incident"
		}
	}
}

func drawDeploy(t *rapid.T, w *simulation) {
	regions := rapid.SliceOfNDistinct(rapid.SampledFrom(places), 1, 3, rapid.ID[string]).Draw(t, "regions")
	s := spec(rapid.Int32Range(0, 3).Draw(t, "replicas"), regions...)
	s.MinReady = rapid.Int32Range(0, 2).Draw(t, "min_ready")
	s.ProgressDeadline = durationpb.New(time.Duration(deadline) * time.Millisecond)
	if rapid.IntRange(0, 4).Draw(t, "image") == 0 {
		s.Image = "registry.test/echo:v1"
	}
	if rapid.Bool().Draw(t, "cold start") {
		s.Routing = &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{}}
	}
	if rapid.Bool().Draw(t, "several roles") {
		groups(s)
	}
	w.deploy(s)
}

// TestHistory_KeepsTheRulesProperty makes random histories, in which simulation.step checks each decision. A plan is
// deterministic and idempotent, keeps to the tables, and never lowers a generation. It never stops a row that may still
// get requests, or the live deployment before its successor serves in all regions. After all faults are mended, only the
// live deployment remains, or nothing.
// serves everywhere. Healed, the simulation ends with the live deployment alone, or with nothing.
func TestHistory_KeepsTheRulesProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newSimulation(t, places...)
		w.deploy(spec(2, "eu", "us"))
		w.step()
		if rapid.Bool().Draw(t, "begin with a live deployment") {
			w.settle()
		}
		for range rapid.IntRange(1, 60).Draw(t, "length") {
			drawEvent(t, w)
		}
		for _, r := range places {
			w.setRegion(r, func(r *model.Region) {
				r.Status, r.LastReportAt = windlassv1.RegionStatus_REGION_STATUS_CONNECTED, w.now
			})
			w.obey(r)
		}
		w.freezes = nil
		w.settle()
		requireNothingWakes(t, w)
		w.closed = nil
		w.settle()
		requireAtRest(t, w)
	})
}

// requireNothingWakes sends requests to the closed regions of a simulation at rest.
func requireNothingWakes(t *rapid.T, w *simulation) {
	for k, row := range w.rows {
		if w.closed[k.region] && Active(row) && row.AtZero(w.deps[w.index(k.deployment)].Spec) {
			w.request(k.region)
			require.Zero(t, w.obs[k].Instances(), "%s runs in %s, which is closed", k.deployment, k.region)
		}
	}
}

func requireAtRest(t *rapid.T, w *simulation) {
	require.Zero(t, w.next, "nothing is left to wait for")
	require.Empty(t, w.app.RolloutID)
	for _, r := range w.rol {
		require.NotEqual(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING, r.Status)
	}
	for _, d := range w.deps {
		require.Equal(t, d.ID != w.app.LiveDeploymentID, model.Terminal(model.DeploymentMoves, d.Status), d.ID)
	}
	for k, row := range w.rows {
		if k.deployment == w.app.LiveDeploymentID {
			require.Equal(t, windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED, row.Status)
			require.Equal(t, int32(100), row.Weight)
			continue
		}
		require.Equal(t, windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED, row.Status)
		require.Zero(t, w.obs[k].Instances(), "%s still runs in %s", k.deployment, k.region)
	}
	switch {
	case w.app.DeletingSince != 0:
		require.NotZero(t, w.app.DeletedAt)
	case w.app.LiveDeploymentID != "":
		require.Equal(t, windlassv1.AppStatus_APP_STATUS_READY, w.app.Status, w.app.Message)
	default:
		require.Contains(t, []windlassv1.AppStatus{
			windlassv1.AppStatus_APP_STATUS_IDLE, windlassv1.AppStatus_APP_STATUS_FAILED,
		}, w.app.Status)
	}
}

// TestDeadline_HoldsWhileRegionsAreSilentProperty requires that a silent region does not keep a caller
// waiting.
func TestDeadline_HoldsWhileRegionsAreSilentProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newSimulation(t, places...)
		drawDeploy(t, w)
		for range rapid.IntRange(1, 40).Draw(t, "length") {
			drawEvent(t, w)
		}
		if w.app.DeletedAt != 0 {
			return
		}
		w.freezes = nil
		w.step()
		if w.app.DeletedAt != 0 {
			return
		}
		for _, r := range places {
			w.setRegion(r, func(r *model.Region) { r.Status = windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE })
		}
		w.now += deadline
		w.step()
		require.Empty(t, w.app.RolloutID)
		for _, r := range w.rol {
			require.NotEqual(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING, r.Status)
		}
	})
}

// TestOutput_TouchesNoMoreRegionsThanATransactionLocks moves an app between disjoint sets of regions, and deletes it
// while it has both. Each must happen in several steps.
func TestOutput_TouchesNoMoreRegionsThanATransactionLocks(t *testing.T) {
	var first, second []string
	for i := range MaxRegions {
		first = append(first, fmt.Sprintf("a%02d", i))
		second = append(second, fmt.Sprintf("b%02d", i))
	}
	w := newSimulation(t, append(append([]string{}, first...), second...)...)
	touched := func(before map[rowKey]model.Topology, out Output) map[string]bool {
		m := map[string]bool{}
		for _, row := range out.Topology {
			if row.Generation > before[rowKey{row.DeploymentID, row.RegionID}].Generation {
				m[row.RegionID] = true
			}
		}
		for _, r := range out.Routes {
			m[r.RegionID] = true
		}
		return m
	}
	w.deploy(spec(1, first...))
	w.settle()
	w.deploy(spec(1, second...))
	w.step()
	w.app.DeletingSince = w.now
	steps := 0
	for w.app.DeletedAt == 0 {
		before := maps.Clone(w.rows)
		require.LessOrEqual(t, len(touched(before, w.step())), MaxRegions)
		for r := range w.regs {
			w.obey(r)
		}
		w.now += 1000
		steps++
		require.Less(t, steps, 20)
	}
}
