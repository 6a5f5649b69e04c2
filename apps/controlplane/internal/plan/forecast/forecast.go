// Package forecast runs the planner in a simulation in which nothing goes wrong. Every region
// applies a change at once, every replica becomes ready, and every check passes. People approve and
// promote as soon as everything else has settled. The planner's decisions there are the steps of the
// forecast.
//
// The package is pure. Its time is virtual, and advances only where the policy makes a rollout wait.
package forecast

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Step is one step of a forecast.
type Step struct {
	// At is when the step is taken, in ms since the start. It does not include the time in which
	// replicas become ready. Loads counts the periods before the step in which replicas became ready,
	// one period after another.
	At    int64
	Loads int
	Kind  windlassv1.PlanStep_Kind
	// Wave is a name. RegionID is empty for a step that is not of one region.
	Wave, RegionID string
	// Sides, for a move, are the versions that have replicas or traffic in the region after it,
	// sorted by version.
	Sides []Side
	// Wait is the shortest time that the step waits.
	Wait time.Duration
	// Step is the number of the strategy's step at which the region waits, or 0 for none. Steps is how
	// many steps the strategy has.
	Step, Steps int
	// Checks are the names of the checks that must pass.
	Checks []string
	// Approval is the approval that the step needs, nil for none.
	Approval *windlassv1.Approval
	// InPlace, for a move: one version takes over the replicas of another.
	InPlace bool
	// Moving, for a move in place of a pool: names of the roles whose instances are replaced.
	Moving []string
	// Keeps: a move in place keeps the instances as they are.
	Keeps bool
}

// Side is a version in a region.
type Side struct {
	DeploymentID     string
	Version          int32
	Replicas, Weight int32
}

// Forecast is how a rollout would go.
type Forecast struct {
	Steps []Step
	// Lasts is the total of all waits, in ms. Loads counts the periods in which replicas become ready,
	// one period after another. Lasts does not include these periods.
	Lasts int64
	Loads int
	// Complete is whether nothing is left to do after the last step. Otherwise the forecast ended early:
	// it reached its limit of calls, or Begin made it and the deployment has replicas.
	Complete bool
	// Progress and Rollout are as the forecast leaves them. nil: the app has none.
	Progress *model.Progress
	Rollout  *model.Rollout
}

// maxLooks bounds how often a forecast calls the planner. Most rollouts need a few dozen calls.
const maxLooks = 5000

// Run forecasts what the planner decides for the input in, from the time now (Unix ms). The parameter
// was has the app's rows before the previewed call. The forecast begins with what that call changed. Run
// ignores what regions report, and does not change its arguments.
func Run(was []model.Topology, in plan.Input, now int64) Forecast {
	return forecast(was, in, now, maxLooks, "")
}

// beginLooks is more calls than a deployment needs to get its first replicas. Before that, the planner
// resolves the digest of its image, and completes what earlier rollouts left unfinished.
const beginLooks = 100

// Begin returns a forecast that ends as soon as regions should run replicas of the deployment.
func Begin(was []model.Topology, in plan.Input, now int64, deployment string) Forecast {
	return forecast(was, in, now, beginLooks, deployment)
}

// forecast calls the planner at most looks times. It ends earlier when nothing is left to do, or when
// the deployment whose id is until has replicas.
func forecast(was []model.Topology, in plan.Input, now int64, looks int, until string) Forecast {
	sim := newSimulation(in, now)
	sim.addMoves(was, sim.in.Topology, sim.progressOf())
	sim.runs = runsOf(was)
	sim.applyEverywhere()
	for range looks {
		if until != "" && slices.ContainsFunc(sim.in.Topology, func(t model.Topology) bool {
			return t.DeploymentID == until && plan.Active(t) && t.Replicas > 0
		}) {
			return sim.endForecast()
		}
		out := plan.Next(sim.in, sim.now)
		sim.noteOutput(out)
		sim.apply(out)
		sim.in.Resolved, sim.in.Measurements = nil, nil
		switch {
		case out.Resolve != "":
			sim.in.Resolved = &plan.Resolution{Image: out.Resolve, Digested: out.Resolve}
		case len(out.Measure) > 0:
			sim.in.Measurements = sim.measureAll(out.Measure)
		case out.Changed() || out.Next == sim.now:
			sim.applyEverywhere()
		default:
			if sim.approveAll() {
				break
			}
			if next := sim.nextTime(); next != 0 {
				sim.now = next
			} else if !sim.promoteAll() {
				sim.out.Complete = true
				return sim.endForecast()
			}
		}
	}
	return sim.endForecast()
}

// simulation is an app in simulated regions where nothing goes wrong.
type simulation struct {
	in         plan.Input
	start, now int64
	versions   map[string]int32
	out        Forecast
	// checks are the names of the policy's checks.
	checks []string
	// runs are the workloads that regions run. loads counts the periods in which replicas became ready,
	// one period after another.
	runs  map[workload]run
	loads int
	// unmoved names the roles of pools that regions have yet to move at the start, by workload. A version that takes the
	// pool over moves them, too.
	unmoved map[workload][]string
}

func newSimulation(in plan.Input, now int64) *simulation {
	sim := &simulation{in: in, start: now, now: now, versions: map[string]int32{}}
	sim.in.Topology = slices.Clone(in.Topology)
	sim.unmoved = unmovedRoles(in)
	sim.in.Deployments = slices.Clone(in.Deployments)
	sim.in.Hosts, sim.in.Jitter = []string{"forecast"}, 0.5
	for _, d := range in.Deployments {
		sim.versions[d.ID] = d.Version
	}
	if in.RolloutState != nil {
		s := in.RolloutState.Clone()
		sim.in.RolloutState = &s
		if s.Progress != nil {
			sim.checks = checkNames(s.Progress.Policy)
			makePassing(s.Progress.Policy)
		}
	}
	sim.in.Regions = slices.Clone(in.Regions)
	for i := range sim.in.Regions {
		sim.in.Regions[i].Status = windlassv1.RegionStatus_REGION_STATUS_CONNECTED
	}
	sim.in.Routes = nil
	routed := map[string]bool{}
	var policy []byte
	for _, d := range in.Deployments {
		if d.ID == in.App.LiveDeploymentID {
			policy = model.EncodeRouting(d.Spec.GetRouting())
		}
	}
	for _, t := range in.Topology {
		if t.Weight > 0 && !routed[t.RegionID] {
			routed[t.RegionID] = true
			sim.in.Routes = append(sim.in.Routes, model.Route{
				WorkspaceID: in.App.WorkspaceID, AppID: in.App.ID, RegionID: t.RegionID,
				Hosts: slices.Clone(sim.in.Hosts), Generation: 1, UpdatedAt: now, Policy: policy, Keys: bytes.Clone(in.Keys),
			})
		}
	}
	return sim
}

func (sim *simulation) endForecast() Forecast {
	sim.out.Lasts, sim.out.Loads = sim.now-sim.start, sim.loads
	sim.out.Rollout = sim.in.Rollout
	if sim.in.RolloutState != nil {
		sim.out.Progress = sim.in.RolloutState.Progress
	}
	return sim.out
}

// progressOf returns the progress of the rollout, nil for a rollout without a policy.
func (sim *simulation) progressOf() *model.Progress {
	if sim.in.RolloutState == nil {
		return nil
	}
	return sim.in.RolloutState.Progress
}

// apply writes what the planner decided.
func (sim *simulation) apply(out plan.Output) {
	if out.App != nil {
		sim.in.App = *out.App
	}
	if out.Rollout != nil {
		r := *out.Rollout
		sim.in.Rollout = &r
	}
	if out.RolloutState != nil {
		s := out.RolloutState.Clone()
		sim.in.RolloutState = &s
	}
	for _, d := range out.Deployments {
		for i := range sim.in.Deployments {
			if sim.in.Deployments[i].ID == d.ID {
				sim.in.Deployments[i] = d
			}
		}
	}
	sim.in.Topology = mergeRows(sim.in.Topology, out.Topology)
	sim.in.Pins = slices.DeleteFunc(slices.Clone(sim.in.Pins), func(p model.Pin) bool { return slices.Contains(out.Unpinned, p.DeploymentID) })
	for _, p := range out.Pins {
		if i := slices.IndexFunc(sim.in.Pins, func(was model.Pin) bool { return was.DeploymentID == p.DeploymentID }); i >= 0 {
			sim.in.Pins[i] = p
		}
	}
	for _, r := range out.Routes {
		i := slices.IndexFunc(sim.in.Routes, func(have model.Route) bool { return have.RegionID == r.RegionID })
		if i < 0 {
			sim.in.Routes = append(sim.in.Routes, r)
		} else {
			sim.in.Routes[i] = r
		}
	}
}

// mergeRows returns rows with the changed rows. A changed row replaces the row with the same key, or is
// added.
func mergeRows(rows, changed []model.Topology) []model.Topology {
	rows = slices.Clone(rows)
	for _, t := range changed {
		i := slices.IndexFunc(rows, func(have model.Topology) bool {
			return have.DeploymentID == t.DeploymentID && have.RegionID == t.RegionID
		})
		if i < 0 {
			rows = append(rows, t)
		} else {
			rows[i] = t
		}
	}
	return rows
}

// nextTime returns the earliest time at which a wait ends, 0 if nothing waits for a time. It leaves out
// measurements during a wait, because they pass.
func (sim *simulation) nextTime() (next int64) {
	take := func(at int64) {
		if at > sim.now && (next == 0 || at < next) {
			next = at
		}
	}
	c := sim.progressOf()
	if c == nil {
		return 0
	}
	if c.Active(sim.in.App.RolloutID) && !c.Back && c.PausedAt == 0 {
		for i := range c.Waves {
			wave := &c.Waves[i]
			baked := wave.BakingSince + plan.BakeTime(c, *wave)
			for j := range wave.Regions {
				st := &wave.Regions[j]
				until, person := plan.Waits(c, *st)
				if wave.State == windlassv1.WaveProgress_STATE_BAKING {
					until = baked
				}
				switch {
				case person || until == 0:
				case until > sim.now:
					take(until)
				case plan.Measuring(wave, st):
					for _, check := range st.Checks {
						take(check.DueAt)
					}
				}
			}
		}
	}
	if c.Retained() != "" {
		take(c.RetainedUntil)
	}
	return next
}

// approveAll gives the approvals that the rollout waits for, and reports whether there were any.
func (sim *simulation) approveAll() (opened bool) {
	if r := sim.in.Rollout; r != nil && plan.StartMissing(*r) != "" {
		return sim.approveStart(*r)
	}
	c := sim.progressOf()
	if c == nil || !c.Active(sim.in.App.RolloutID) || c.Back {
		return false
	}
	for i := range maxApprovals + 1 { // one more, because an approval by the deployer may not count
		who := fmt.Sprintf("somebody %d", i+1)
		where, _, err := plan.Approve(c, model.Approval{
			ByID: who, By: who, Role: windlassv1.Role_ROLE_OWNER, At: sim.now,
		}, sim.regionName)
		opened = opened || err == nil && len(where) > 0
	}
	return opened
}

// maxApprovals is the largest number of approvals that a gate may need, by its schema.
const maxApprovals = 10

// promoteAll promotes regions that wait for a person, and reports whether there were any.
func (sim *simulation) promoteAll() bool {
	c := sim.progressOf()
	if c == nil || !c.Active(sim.in.App.RolloutID) || c.Back {
		return false
	}
	for _, wave := range c.Waves {
		for _, st := range wave.Regions {
			if _, person := plan.Waits(c, st); person && st.State == windlassv1.RegionProgress_STATE_ROLLING {
				_, err := plan.Promote(c, "somebody", false, sim.now)
				return err == nil
			}
		}
	}
	return false
}

// noteOutput adds the steps that follow from the planner's output, before the output is applied.
func (sim *simulation) noteOutput(out plan.Output) {
	before, after := sim.progressOf(), sim.progressOf()
	if out.RolloutState != nil {
		after = out.RolloutState.Progress
	}
	if after != nil {
		sim.addWaves(before, after)
	}
	if out.App != nil && out.App.LiveDeploymentID != sim.in.App.LiveDeploymentID {
		sim.add(Step{Kind: windlassv1.PlanStep_KIND_LIVE, Sides: []Side{sim.sideOf(model.Topology{DeploymentID: out.App.LiveDeploymentID})}})
	}
	sim.addMoves(sim.in.Topology, mergeRows(sim.in.Topology, out.Topology), after)
	if after != nil {
		sim.addWaits(before, after)
	}
}

func (sim *simulation) add(s Step) {
	s.At, s.Loads = sim.now-sim.start, sim.loads
	sim.out.Steps = append(sim.out.Steps, s)
}

// addWaves adds a step for each wave that begins.
func (sim *simulation) addWaves(before, after *model.Progress) {
	for i, wave := range after.Waves {
		if wave.State != windlassv1.WaveProgress_STATE_WAITING &&
			(i >= len(before.Waves) || before.Waves[i].State == windlassv1.WaveProgress_STATE_WAITING) {
			sim.add(Step{Kind: windlassv1.PlanStep_KIND_WAVE, Wave: wave.Name})
		}
	}
}

// addWaits adds a step for each wait that begins.
func (sim *simulation) addWaits(before, after *model.Progress) {
	for i, wave := range after.Waves {
		var was model.WaveProgress
		if i < len(before.Waves) {
			was = before.Waves[i]
		}
		for j, st := range wave.Regions {
			var stopped int64
			if j < len(was.Regions) {
				stopped = was.Regions[j].StoppedAt
			}
			if st.StoppedAt == 0 || st.StoppedAt == stopped {
				continue
			}
			s := Step{
				Kind: windlassv1.PlanStep_KIND_PAUSE, Wave: wave.Name, RegionID: st.RegionID,
				Step: st.Step + 1, Steps: plan.Steps(after.Policy), Checks: sim.checks,
			}
			until, person := plan.Waits(after, st)
			if s.Approval = plan.StepGate(after, st); person || s.Approval != nil {
				s.Kind = windlassv1.PlanStep_KIND_GATE
			}
			if !person {
				s.Wait = time.Duration(until-st.StoppedAt) * time.Millisecond
			}
			sim.add(s)
		}
		bake := plan.BakeTime(after, wave)
		if wave.BakingSince != 0 && wave.BakingSince != was.BakingSince && bake > 0 {
			sim.add(Step{
				Kind: windlassv1.PlanStep_KIND_BAKE, Wave: wave.Name, Wait: time.Duration(bake) * time.Millisecond,
				Checks: absoluteChecks(after.Policy),
			})
		}
		if gate := plan.WaveGate(after, wave); gate != nil && wave.BakingSince != was.BakingSince {
			sim.add(Step{Kind: windlassv1.PlanStep_KIND_GATE, Wave: wave.Name, Approval: gate})
		}
	}
	if id := after.Retained(); id != "" && before.Retained() != id {
		sim.add(Step{
			Kind: windlassv1.PlanStep_KIND_RETAIN, Sides: []Side{sim.sideOf(model.Topology{DeploymentID: id})},
			Wait: time.Duration(after.RetainedUntil-sim.now) * time.Millisecond,
		})
	}
}

// addMoves adds a step for each region whose rows differ, in the order of names. c is the progress after
// the change.
func (sim *simulation) addMoves(before, after []model.Topology, c *model.Progress) {
	was, is := sim.sidesOf(before), sim.sidesOf(after)
	inPlace, keeps, moving := map[string]bool{}, map[string]bool{}, map[string][]string{}
	for _, t := range after {
		already := slices.ContainsFunc(before, func(o model.Topology) bool {
			return o.DeploymentID == t.DeploymentID && o.RegionID == t.RegionID && o.Transferred
		})
		if t.Transferred && !already {
			inPlace[t.RegionID] = true
			for _, o := range after {
				if o.Assigned() && o.RegionID == t.RegionID && o.WorkloadKey() == t.WorkloadKey() {
					keeps[t.RegionID] = keeps[t.RegionID] || sim.madeAlike(o.DeploymentID, t.DeploymentID)
					moving[t.RegionID] = o.MovingRoles()
				}
			}
		}
	}
	regions := map[string]bool{}
	for id := range was {
		regions[id] = true
	}
	for id := range is {
		regions[id] = true
	}
	for _, id := range slices.SortedFunc(maps.Keys(regions), func(a, b string) int {
		return cmp.Or(cmp.Compare(sim.regionName(a), sim.regionName(b)), cmp.Compare(a, b))
	}) {
		if !slices.Equal(was[id], is[id]) {
			sim.add(Step{Kind: windlassv1.PlanStep_KIND_MOVE, Wave: sim.waveOf(c, id), RegionID: id, Sides: is[id], InPlace: inPlace[id], Moving: moving[id], Keeps: keeps[id]})
		}
	}
}

func (sim *simulation) madeAlike(a, b string) bool {
	of := func(id string) int {
		return slices.IndexFunc(sim.in.Deployments, func(d model.Deployment) bool { return d.ID == id })
	}
	i, j := of(a), of(b)
	return i >= 0 && j >= 0 && sim.in.Deployments[i].MadeAlike(&sim.in.Deployments[j])
}

// sidesOf returns the versions that have replicas or traffic, by region.
func (sim *simulation) sidesOf(rows []model.Topology) map[string][]Side {
	out := map[string][]Side{}
	for _, t := range rows {
		if s := sim.sideOf(t); s.Replicas > 0 || s.Weight > 0 {
			out[t.RegionID] = append(out[t.RegionID], s)
		}
	}
	for _, sides := range out {
		slices.SortFunc(sides, func(a, b Side) int {
			return cmp.Or(cmp.Compare(a.Version, b.Version), cmp.Compare(a.DeploymentID, b.DeploymentID))
		})
	}
	return out
}

func (sim *simulation) sideOf(t model.Topology) Side {
	s := Side{DeploymentID: t.DeploymentID, Version: sim.versions[t.DeploymentID], Weight: t.Weight}
	if plan.Active(t) {
		s.Replicas = t.Replicas
	}
	return s
}

func (sim *simulation) regionName(id string) string {
	for _, r := range sim.in.Regions {
		if r.ID == id {
			return r.ShownName()
		}
	}
	return model.DeletedRegion
}

func (sim *simulation) waveOf(c *model.Progress, region string) string {
	if c == nil || !c.Active(sim.in.App.RolloutID) {
		return ""
	}
	for _, wave := range c.Waves {
		if slices.ContainsFunc(wave.Regions, func(st model.RegionProgress) bool { return st.RegionID == region }) {
			return wave.Name
		}
	}
	return ""
}
