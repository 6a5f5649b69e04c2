package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/pins"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// pin sets a pin like the API, with the weight in percent, in the regions. With 0 replicas, the numbers stay as they
// are. It returns why the pin was refused.
func (w *simulation) pin(id string, weight, replicas int32, regions ...string) (refusal string) {
	regions = slices.DeleteFunc(slices.Clone(regions), func(r string) bool { return w.regs[r].ID == "" })
	i := slices.IndexFunc(w.pins, func(p model.Pin) bool { return p.DeploymentID == id })
	d := &w.deps[w.index(id)]
	var others []model.Topology
	for _, t := range w.rows {
		if pins.Of(w.pins, t) == nil {
			others = append(others, t)
		}
	}
	var progress *model.Progress
	if w.rolloutState != nil {
		progress = w.rolloutState.Progress
	}
	switch target := w.app.RolloutID == "rol-"+id; {
	case id == w.app.LiveDeploymentID, target:
		return "refused: it is live, or on its way\n"
	default:
		if r := MayPin(progress, w.app, *d, others); r != nil {
			return "refused: " + r.Message + "\n"
		}
	}
	if i < 0 {
		w.pins = append(w.pins, model.Pin{
			WorkspaceID: "ws", AppID: w.app.ID, DeploymentID: id, Version: d.Version, By: "ada", CreatedAt: w.now, UpdatedAt: w.now,
		})
		slices.SortFunc(w.pins, func(a, b model.Pin) int { return int(a.Version - b.Version) })
		i = slices.IndexFunc(w.pins, func(p model.Pin) bool { return p.DeploymentID == id })
	}
	if progress.Retained() == id {
		TakeRetained(progress, d, w.now)
	}
	sizes := map[string]int32{}
	for _, r := range regions {
		if sizes[r] = replicas; replicas == 0 {
			sizes[r] = max(1, w.rows[rowKey{id, r}].Replicas)
		}
	}
	pins.Set(&w.pins[i], weight, sizes, w.now)
	return ""
}

func (w *simulation) unpin(id string) {
	for i := range w.pins {
		if w.pins[i].DeploymentID == id {
			pins.Remove(&w.pins[i], w.now)
		}
	}
}

func (w *simulation) writePins(out Output) {
	for _, p := range out.Pins {
		i := slices.IndexFunc(w.pins, func(was model.Pin) bool { return was.DeploymentID == p.DeploymentID })
		w.pins[i] = p
	}
	w.pins = slices.DeleteFunc(w.pins, func(p model.Pin) bool { return slices.Contains(out.Unpinned, p.DeploymentID) })
}

func describePins(b *strings.Builder, out Output) {
	for _, p := range out.Pins {
		fmt.Fprintf(b, "  pin v%d %d %%:", p.Version, p.Weight)
		for _, r := range p.Regions {
			fmt.Fprintf(b, " %s=%s", r.RegionID, strings.ToLower(strings.TrimPrefix(r.State.String(), "STATE_")))
		}
		b.WriteString("\n")
	}
	for _, id := range out.Unpinned {
		fmt.Fprintf(b, "  no pin of %s\n", id)
	}
}

// requirePins compares a simulation at rest with its pins. Each pin is in its regions, and serves with its weight or has
// failed. Removed pins have no rows.
func (f *stagedSimulation) requirePins() {
	for _, p := range f.pins {
		require.False(f.t, p.Removing)
		for _, r := range p.Regions {
			key := rowKey{p.DeploymentID, r.RegionID}
			row := f.rows[key]
			switch r.State {
			case windlassv1.PinRegion_STATE_SERVING:
				require.Equal(f.t, p.Weight, row.Weight)
				require.Equal(f.t, r.Replicas, row.Replicas)
				require.Equal(f.t, r.Replicas, f.runs[key].ready)
				require.Contains(f.t, f.routes[r.RegionID], p.DeploymentID)
			case windlassv1.PinRegion_STATE_FAILED:
				require.Equal(f.t, windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED, row.Status)
				require.NotContains(f.t, f.routes[r.RegionID], p.DeploymentID)
				require.NotEmpty(f.t, r.Reason)
			default:
				require.Fail(f.t, "a pin is neither here nor there", "%s in %s: %s", p.DeploymentID, r.RegionID, r.State)
			}
		}
	}
}

// isPinned reports whether the row belongs to a pin. Pinned rows are counted separately.
func (w *simulation) isPinned(key rowKey) bool {
	return pins.Of(w.pins, model.Topology{DeploymentID: key.deployment, RegionID: key.region}) != nil
}

// happenPinned makes one random change to pins.
func (f *stagedSimulation) happenPinned() {
	t := f.t
	id := fmt.Sprintf("v%d", rapid.Int32Range(1, f.app.LatestVersion).Draw(t, "pinned"))
	if rapid.IntRange(0, 2).Draw(t, "unpin") == 0 {
		f.unpin(id)
		return
	}
	var others int32
	for _, p := range f.pins {
		if p.DeploymentID != id && !p.Removing {
			others += p.Weight
		}
	}
	if others >= 98 {
		return
	}
	regions := rapid.SliceOfNDistinct(rapid.SampledFrom(places), 1, 3, rapid.ID[string]).Draw(t, "pinned in")
	_ = f.pin(id, rapid.Int32Range(1, 98-others).Draw(t, "weight"), rapid.Int32Range(0, 3).Draw(t, "pinned replicas"), regions...)
}

// mendUntried makes versions work that may have gone live without replicas, and so without a test. Rollouts decide
// what happens to such versions, and pins do not.
func (f *stagedSimulation) mendUntried() {
	for _, d := range f.deps {
		if f.zeroed || d.Spec.GetReplicas() == 0 {
			f.bad[d.ID] = false
		}
	}
	if c := f.rolloutState.Progress; c.Active(f.app.RolloutID) && slices.Contains(slices.Collect(maps.Values(c.Sizes)), 0) {
		f.bad[strings.TrimPrefix(f.app.RolloutID, "rol-")] = false // it went live at the size of an earlier version
	}
}

// TestPins_HistoryKeepsTheRulesProperty requires that pinned versions keep their shares, whatever rollouts do, and lose
// them only if they fail or are unpinned. Rollouts end as they would without pins.
func TestPins_HistoryKeepsTheRulesProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := newStagedSimulationOf(t, drawPolicy(t), false) // the API refuses pins of pools
		f.deployStaged()
		f.mendUntried()
		if rapid.Bool().Draw(t, "begin with two versions") {
			f.heal()
		}
		for range rapid.IntRange(1, 100).Draw(t, "length") {
			if rapid.IntRange(0, 5).Draw(t, "pins") == 0 {
				f.happenPinned()
				f.step()
			}
			f.happen()
			f.mendUntried()
		}
		f.heal()
		f.requirePins()
		live := f.app.LiveDeploymentID
		for k, row := range f.rows {
			switch {
			case k.deployment == live:
				require.Equal(t, int32(100), row.Weight)
				require.Contains(t, f.routes[k.region], live)
			case pins.Of(f.pins, row) == nil:
				require.Equal(t, windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED, row.Status, k)
				require.Zero(t, f.runs[k].existing())
			}
		}
		for _, p := range slices.Clone(f.pins) {
			f.unpin(p.DeploymentID)
		}
		f.heal()
		require.Empty(t, f.pins)
		requireAtRestStaged(t, f)
	})
}

func TestLint_FindsAPlanThatChangesAPinnedRegion(t *testing.T) {
	w := newSimulation(t, "us")
	for range 2 {
		w.deploy(spec(4, "us"))
		w.settle()
	}
	require.Empty(t, w.pin("v1", 10, 2, "us"))
	w.settle()
	require.Equal(t, int32(10), w.rows[rowKey{"v1", "us"}].Weight)
	require.Empty(t, Lint(w.input(), w.change("v1", func(*model.Topology) {})))
	for text, edit := range map[string]func(*model.Topology){
		"us: v1 gets 20 % of the traffic, but is pinned at 10 %": func(t *model.Topology) { t.Weight = 20 },
		"us: v1 is pinned, but is told to stop":                  func(t *model.Topology) { t.Weight, t.Status = 0, windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING },
		"us: v1 is told to run 3 replicas, but is pinned with 2": func(t *model.Topology) { t.Replicas = 3 },
	} {
		require.Equal(t, []string{text}, Lint(w.input(), w.change("v1", edit)))
	}
	unrouted := w.change("v1", func(t *model.Topology) { t.Weight = 0 })
	unrouted.Routes = nil
	require.Equal(t, []string{"us: the weight of v1 changes, but the route does not"}, Lint(w.input(), unrouted))
}

func TestPin_DeadlineRunsWhileItsRegionIsInReach(t *testing.T) {
	w := newSimulation(t, "us")
	for range 2 {
		s := spec(1, "us")
		s.ProgressDeadline = durationpb.New(10 * time.Minute)
		w.deploy(s)
		w.settle()
	}
	state := func() windlassv1.PinRegion_State { return w.pins[0].Regions[0].State }
	reach := func(status windlassv1.RegionStatus) {
		w.setRegion("us", func(r *model.Region) { r.Status, r.LastReportAt = status, w.now })
		w.step()
	}
	require.Empty(t, w.pin("v1", 10, 1, "us"))
	w.step()
	w.now += 300_000
	reach(windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE)
	w.now += 3_600_000
	w.step()
	require.Equal(t, windlassv1.PinRegion_STATE_STARTING, state())
	reach(windlassv1.RegionStatus_REGION_STATUS_CONNECTED)
	w.now += 599_000
	w.noteReport("us")
	w.step()
	require.Equal(t, windlassv1.PinRegion_STATE_STARTING, state())
	require.LessOrEqual(t, w.next, w.now+1000)
	w.now += 1000
	w.step()
	require.Equal(t, windlassv1.PinRegion_STATE_FAILED, state())
	require.Equal(t, "DeadlineExceeded", w.pins[0].Regions[0].Reason)
}
