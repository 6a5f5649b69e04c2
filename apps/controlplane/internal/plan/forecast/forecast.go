// Package forecast runs the planner ahead of time, in a world in which all goes well:
// every region answers and does at once what it is told, every replica comes up, every
// check passes, and people approve and promote as soon as everything else has settled. What the
// planner decides there are the steps that a rollout takes if nothing goes wrong. It is
// pure: time is virtual, and stands still but for what the policy has wait.
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

// Step is one of the rollout.
type Step struct {
	// At is when, in ms since the start, without the time that replicas take to become ready.
	// Loads is how many times, one after the other, they had to by then.
	At    int64
	Loads int
	Kind  windlassv1.PlanStep_Kind
	// Wave by name; RegionID of what one region does.
	Wave, RegionID string
	// Sides are the versions with replicas or traffic there once it is taken, of a move;
	// sorted by version.
	Sides []Side
	// Wait is how long it waits at least.
	Wait time.Duration
	// Step that the region is at, of Steps; 0 for none.
	Step, Steps int
	// Checks that have to pass, by name.
	Checks []string
	// Approval that it takes, nil for none.
	Approval *windlassv1.Approval
	// InPlace: by a move, one version takes over the replicas of another.
	InPlace bool
	// Keeps: it keeps them as they are, too.
	Keeps bool
}

// Side is a version in a region.
type Side struct {
	DeploymentID     string
	Version          int32
	Replicas, Weight int32
}

// Forecast is what would come of a rollout.
type Forecast struct {
	Steps []Step
	// Lasts is how long it waits in all, ms, and Loads how many times in a row replicas become
	// ready besides.
	Lasts int64
	Loads int
	// Complete: nothing is left to do after the last step. Else it was given up, as too
	// long to be shown.
	Complete bool
	// Progress at the end, nil without one, and the rollout's end; nil for one that there
	// is not.
	Progress *model.Progress
	Rollout  *model.Rollout
}

// maxLooks bounds how often a forecast calls the planner: most rollouts need some dozens of
// calls, and maxLooks calls take about a second.
const maxLooks = 5000

// Run forecasts what the planner makes of in from now on, unix ms. was are the app's rows
// before a call changed them: what that did comes first. Of what regions report nothing
// is read. in is not changed.
func Run(was []model.Topology, in plan.Input, now int64) Forecast {
	return forecast(was, in, now, maxLooks, "")
}

// beginLooks are ample for what comes before a deployment's first replicas: its image's
// digest, and what rollouts before it left half way.
const beginLooks = 100

// Begin is a forecast that ends when the deployment has begun: with the first step by which
// regions should run any of it.
func Begin(was []model.Topology, in plan.Input, now int64, deployment string) Forecast {
	return forecast(was, in, now, beginLooks, deployment)
}

// forecast runs the planner on a world in which all goes well. It ends after that number of looks, or when
// the deployment has replicas.
func forecast(was []model.Topology, in plan.Input, now int64, looks int, until string) Forecast {
	w := newWorld(in, now)
	w.moves(was, w.in.Topology, w.progress())
	w.runs = runsOf(was)
	w.obey()
	for range looks {
		if until != "" && slices.ContainsFunc(w.in.Topology, func(t model.Topology) bool {
			return t.DeploymentID == until && plan.Active(t) && t.Replicas > 0
		}) {
			return w.end()
		}
		out := plan.Next(w.in, w.now)
		w.note(out)
		w.apply(out)
		w.in.Resolved, w.in.Measurements = nil, nil
		switch {
		case out.Resolve != "":
			w.in.Resolved = &plan.Resolution{Image: out.Resolve, Digested: out.Resolve}
		case len(out.Measure) > 0:
			w.in.Measurements = w.measured(out.Measure)
		case out.Changed() || out.Next == w.now:
			w.obey()
		default:
			if w.approve() {
				break
			}
			if next := w.nextTime(); next != 0 {
				w.now = next
			} else if !w.promote() {
				w.out.Complete = true
				return w.end()
			}
		}
	}
	return w.end()
}

// world is an app in regions where all goes well.
type world struct {
	in         plan.Input
	start, now int64
	versions   map[string]int32
	out        Forecast
	// checks of the policy, by name, as they are told.
	checks []string
	// runs are the workloads that regions run, and loads counts how many times in a row
	// replicas had to become ready.
	runs  map[workload]run
	loads int
}

func newWorld(in plan.Input, now int64) *world {
	w := &world{in: in, start: now, now: now, versions: map[string]int32{}}
	w.in.Topology = slices.Clone(in.Topology)
	w.in.Deployments = slices.Clone(in.Deployments)
	w.in.Hosts, w.in.Jitter = []string{"forecast"}, 0.5
	for _, d := range in.Deployments {
		w.versions[d.ID] = d.Version
	}
	if in.RolloutState != nil {
		s := in.RolloutState.Clone()
		w.in.RolloutState = &s
		if s.Progress != nil {
			w.checks = names(s.Progress.Policy)
			passing(s.Progress.Policy)
		}
	}
	w.in.Regions = slices.Clone(in.Regions)
	for i := range w.in.Regions {
		w.in.Regions[i].Status = windlassv1.RegionStatus_REGION_STATUS_CONNECTED
	}
	w.in.Routes = nil
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
			w.in.Routes = append(w.in.Routes, model.Route{
				WorkspaceID: in.App.WorkspaceID, AppID: in.App.ID, RegionID: t.RegionID,
				Hosts: slices.Clone(w.in.Hosts), Generation: 1, UpdatedAt: now, Policy: policy, Keys: bytes.Clone(in.Keys),
			})
		}
	}
	return w
}

func (w *world) end() Forecast {
	w.out.Lasts, w.out.Loads = w.now-w.start, w.loads
	w.out.Rollout = w.in.Rollout
	if w.in.RolloutState != nil {
		w.out.Progress = w.in.RolloutState.Progress
	}
	return w.out
}

// progress of the rollout, nil for one that goes by no policy.
func (w *world) progress() *model.Progress {
	if w.in.RolloutState == nil {
		return nil
	}
	return w.in.RolloutState.Progress
}

// apply writes what the planner decided.
func (w *world) apply(out plan.Output) {
	if out.App != nil {
		w.in.App = *out.App
	}
	if out.Rollout != nil {
		r := *out.Rollout
		w.in.Rollout = &r
	}
	if out.RolloutState != nil {
		s := out.RolloutState.Clone()
		w.in.RolloutState = &s
	}
	for _, d := range out.Deployments {
		for i := range w.in.Deployments {
			if w.in.Deployments[i].ID == d.ID {
				w.in.Deployments[i] = d
			}
		}
	}
	w.in.Topology = merged(w.in.Topology, out.Topology)
	w.in.Pins = slices.DeleteFunc(slices.Clone(w.in.Pins), func(p model.Pin) bool { return slices.Contains(out.Unpinned, p.DeploymentID) })
	for _, p := range out.Pins {
		if i := slices.IndexFunc(w.in.Pins, func(was model.Pin) bool { return was.DeploymentID == p.DeploymentID }); i >= 0 {
			w.in.Pins[i] = p
		}
	}
	for _, r := range out.Routes {
		i := slices.IndexFunc(w.in.Routes, func(have model.Route) bool { return have.RegionID == r.RegionID })
		if i < 0 {
			w.in.Routes = append(w.in.Routes, r)
		} else {
			w.in.Routes[i] = r
		}
	}
}

// merged are the rows with others in place of theirs.
func merged(rows, changed []model.Topology) []model.Topology {
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

// nextTime is the next moment at which anything that only waits for time goes on; 0 for
// none. Measurements before the end of a wait are left out: they pass.
func (w *world) nextTime() (next int64) {
	take := func(at int64) {
		if at > w.now && (next == 0 || at < next) {
			next = at
		}
	}
	c := w.progress()
	if c == nil {
		return 0
	}
	if c.Active(w.in.App.RolloutID) && !c.Back && c.PausedAt == 0 {
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
				case until > w.now:
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

// approve opens the gates that the rollout waits at, and reports whether any were shut.
func (w *world) approve() (opened bool) {
	if r := w.in.Rollout; r != nil && plan.StartMissing(*r) != "" {
		return w.approveStart(*r)
	}
	c := w.progress()
	if c == nil || !c.Active(w.in.App.RolloutID) || c.Back {
		return false
	}
	for i := range maxApprovals + 1 { // should one of them be who deployed
		who := fmt.Sprintf("somebody %d", i+1)
		where, _, err := plan.Approve(c, model.Approval{
			ByID: who, By: who, Role: windlassv1.Role_ROLE_OWNER, At: w.now,
		}, w.regionName)
		opened = opened || err == nil && len(where) > 0
	}
	return opened
}

// maxApprovals that a gate asks for, by its schema.
const maxApprovals = 10

// promote has regions go on that wait for a person, and reports whether any did.
func (w *world) promote() bool {
	c := w.progress()
	if c == nil || !c.Active(w.in.App.RolloutID) || c.Back {
		return false
	}
	for _, wave := range c.Waves {
		for _, st := range wave.Regions {
			if _, person := plan.Waits(c, st); person && st.State == windlassv1.RegionProgress_STATE_ROLLING {
				_, err := plan.Promote(c, "somebody", false, w.now)
				return err == nil
			}
		}
	}
	return false
}

// note keeps what the planner decided, before it is applied.
func (w *world) note(out plan.Output) {
	before, after := w.progress(), w.progress()
	if out.RolloutState != nil {
		after = out.RolloutState.Progress
	}
	if after != nil {
		w.waves(before, after)
	}
	if out.App != nil && out.App.LiveDeploymentID != w.in.App.LiveDeploymentID {
		w.add(Step{Kind: windlassv1.PlanStep_KIND_LIVE, Sides: []Side{w.side(model.Topology{DeploymentID: out.App.LiveDeploymentID})}})
	}
	w.moves(w.in.Topology, merged(w.in.Topology, out.Topology), after)
	if after != nil {
		w.waits(before, after)
	}
}

func (w *world) add(s Step) {
	s.At, s.Loads = w.now-w.start, w.loads
	w.out.Steps = append(w.out.Steps, s)
}

// waves that begin.
func (w *world) waves(before, after *model.Progress) {
	for i, wave := range after.Waves {
		if wave.State != windlassv1.WaveProgress_STATE_WAITING &&
			(i >= len(before.Waves) || before.Waves[i].State == windlassv1.WaveProgress_STATE_WAITING) {
			w.add(Step{Kind: windlassv1.PlanStep_KIND_WAVE, Wave: wave.Name})
		}
	}
}

// waits that begin.
func (w *world) waits(before, after *model.Progress) {
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
				Step: st.Step + 1, Steps: plan.Steps(after.Policy), Checks: w.checks,
			}
			until, person := plan.Waits(after, st)
			if s.Approval = plan.StepGate(after, st); person || s.Approval != nil {
				s.Kind = windlassv1.PlanStep_KIND_GATE
			}
			if !person {
				s.Wait = time.Duration(until-st.StoppedAt) * time.Millisecond
			}
			w.add(s)
		}
		bake := plan.BakeTime(after, wave)
		if wave.BakingSince != 0 && wave.BakingSince != was.BakingSince && bake > 0 {
			w.add(Step{
				Kind: windlassv1.PlanStep_KIND_BAKE, Wave: wave.Name, Wait: time.Duration(bake) * time.Millisecond,
				Checks: absolute(after.Policy),
			})
		}
		if gate := plan.WaveGate(after, wave); gate != nil && wave.BakingSince != was.BakingSince {
			w.add(Step{Kind: windlassv1.PlanStep_KIND_GATE, Wave: wave.Name, Approval: gate})
		}
	}
	if id := after.Retained(); id != "" && before.Retained() != id {
		w.add(Step{
			Kind: windlassv1.PlanStep_KIND_RETAIN, Sides: []Side{w.side(model.Topology{DeploymentID: id})},
			Wait: time.Duration(after.RetainedUntil-w.now) * time.Millisecond,
		})
	}
}

// moves are the regions whose rows differ, by region. c is the progress as of after.
func (w *world) moves(before, after []model.Topology, c *model.Progress) {
	was, is := w.sides(before), w.sides(after)
	inPlace, keeps := map[string]bool{}, map[string]bool{}
	for _, t := range after {
		already := slices.ContainsFunc(before, func(o model.Topology) bool {
			return o.DeploymentID == t.DeploymentID && o.RegionID == t.RegionID && o.Transferred
		})
		if t.Transferred && !already {
			inPlace[t.RegionID] = true
			keeps[t.RegionID] = slices.ContainsFunc(after, func(o model.Topology) bool {
				return o.Assigned() && o.RegionID == t.RegionID && o.WorkloadKey() == t.WorkloadKey() && w.madeAlike(o.DeploymentID, t.DeploymentID)
			})
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
		return cmp.Or(cmp.Compare(w.regionName(a), w.regionName(b)), cmp.Compare(a, b))
	}) {
		if !slices.Equal(was[id], is[id]) {
			w.add(Step{Kind: windlassv1.PlanStep_KIND_MOVE, Wave: w.waveOf(c, id), RegionID: id, Sides: is[id], InPlace: inPlace[id], Keeps: keeps[id]})
		}
	}
}

func (w *world) madeAlike(a, b string) bool {
	of := func(id string) int {
		return slices.IndexFunc(w.in.Deployments, func(d model.Deployment) bool { return d.ID == id })
	}
	i, j := of(a), of(b)
	return i >= 0 && j >= 0 && w.in.Deployments[i].MadeAlike(&w.in.Deployments[j])
}

// sides of the rows by region: what has neither replicas nor traffic is left out.
func (w *world) sides(rows []model.Topology) map[string][]Side {
	out := map[string][]Side{}
	for _, t := range rows {
		if s := w.side(t); s.Replicas > 0 || s.Weight > 0 {
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

func (w *world) side(t model.Topology) Side {
	s := Side{DeploymentID: t.DeploymentID, Version: w.versions[t.DeploymentID], Weight: t.Weight}
	if plan.Active(t) {
		s.Replicas = t.Replicas
	}
	return s
}

func (w *world) regionName(id string) string {
	for _, r := range w.in.Regions {
		if r.ID == id {
			return r.ShownName()
		}
	}
	return model.DeletedRegion
}

func (w *world) waveOf(c *model.Progress, region string) string {
	if c == nil || !c.Active(w.in.App.RolloutID) {
		return ""
	}
	for _, wave := range c.Waves {
		if slices.ContainsFunc(wave.Regions, func(st model.RegionProgress) bool { return st.RegionID == region }) {
			return wave.Name
		}
	}
	return ""
}
