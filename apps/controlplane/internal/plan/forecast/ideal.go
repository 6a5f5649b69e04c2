package forecast

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/pkg/pool"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// workload identifies a workload of the app in a region.
type workload struct{ key, region string }

// run is what a workload runs.
type run struct {
	deployment string
	replicas   int32
}

func runsOf(rows []model.Topology) map[workload]run {
	out := map[workload]run{}
	for _, t := range rows {
		if t.Assigned() && t.Replicas > 0 {
			out[workload{t.WorkloadKey(), t.RegionID}] = run{t.DeploymentID, t.Replicas}
		}
	}
	return out
}

// load adds to sim.loads the periods in which replicas become ready, one period after another, when
// regions apply the rows. New replicas of a region become ready together. Replicas that are replaced in
// place become ready in batches of the size of MaxUnavailable.
func (sim *simulation) load() {
	most, now := 0, runsOf(sim.in.Topology)
	for _, t := range sim.in.Topology {
		at := workload{t.WorkloadKey(), t.RegionID}
		was, is := sim.runs[at], now[at]
		switch {
		case is.deployment != t.DeploymentID:
		case was.deployment != "" && was.deployment != is.deployment && !sim.madeAlike(was.deployment, is.deployment):
			most = max(most, sim.batchCount(t, is.replicas))
		case is.replicas > was.replicas:
			most = max(most, 1)
		}
	}
	sim.loads += most
	sim.runs = now
}

// applyEverywhere makes every region apply all rows and routes, and report it.
func (sim *simulation) applyEverywhere() {
	sim.load()
	epochs := map[string]int64{}
	for i := range sim.in.Regions {
		sim.in.Regions[i].LastReportAt = sim.now
		epochs[sim.in.Regions[i].ID] = sim.in.Regions[i].SessionEpoch
	}
	sim.in.Observed = sim.in.Observed[:0:0]
	for _, t := range sim.in.Topology {
		o := model.Observed{
			WorkspaceID: t.WorkspaceID, AppID: t.AppID, DeploymentID: t.DeploymentID, RegionID: t.RegionID,
			AppliedEpoch: epochs[t.RegionID], AppliedGeneration: t.Generation, CountsGeneration: t.Generation,
			Phase: int32(agentv1.AppliedState_PHASE_APPLIED), UpdatedAt: sim.now,
		}
		if t.Assigned() {
			o.ReadyReplicas, o.Ready = t.Replicas, sim.instanceCount(t)
			o.RoleCounts = sim.roleCounts(t)
		} else {
			o.Deleted = true
		}
		sim.in.Observed = append(sim.in.Observed, o)
	}
	sim.in.RouteObserved = sim.in.RouteObserved[:0:0]
	for _, r := range sim.in.Routes {
		sim.in.RouteObserved = append(sim.in.RouteObserved, model.RouteObserved{
			AppID: r.AppID, RegionID: r.RegionID, Epoch: epochs[r.RegionID], Generation: r.Generation,
			Phase: int32(agentv1.AppliedState_PHASE_APPLIED), UpdatedAt: sim.now,
		})
	}
}

// unmovedRoles returns the roles of pools that regions have yet to move, by workload.
func unmovedRoles(in plan.Input) map[workload][]string {
	out := map[workload][]string{}
	observed := map[workload]model.Observed{} // by deployment, and not by workload
	for _, o := range in.Observed {
		observed[workload{o.DeploymentID, o.RegionID}] = o
	}
	for _, t := range in.Topology {
		for _, role := range t.MovingRoles() {
			if t.Assigned() && !t.HasMoved(role, observed[workload{t.DeploymentID, t.RegionID}]) {
				out[workload{t.WorkloadKey(), t.RegionID}] = append(out[workload{t.WorkloadKey(), t.RegionID}], role)
			}
		}
	}
	return out
}

// roleCounts returns the counts of the row's roles if its region has yet to move some of them. Otherwise it is empty.
func (sim *simulation) roleCounts(t model.Topology) string {
	d, unmoved := sim.deploymentOf(t.DeploymentID), sim.unmoved[workload{t.WorkloadKey(), t.RegionID}]
	if d == nil || len(unmoved) == 0 {
		return ""
	}
	counts := &agentv1.DeploymentRollup{Groups: t.Replicas}
	spec := t.In(d.Spec)
	for _, r := range spec.GetRoles() {
		n := model.InstancesOf(spec, r, t.Replicas)
		one := &agentv1.RoleRollup{Role: r.GetName(), Instances: n, Ready: n, Updated: n, Pool: max(r.GetInstances(), 1)}
		if slices.Contains(unmoved, r.GetName()) {
			one.Updated = 0
		}
		counts.Roles = append(counts.Roles, one)
	}
	return model.EncodeRoleCounts(counts)
}

// instanceCount returns how many instances the row's replicas have.
func (sim *simulation) instanceCount(t model.Topology) int32 {
	if d := sim.deploymentOf(t.DeploymentID); d != nil {
		return model.Instances(t.In(d.Spec), t.Replicas)
	}
	return t.Replicas
}

// deploymentOf returns the deployment with the id, or nil.
func (sim *simulation) deploymentOf(id string) *model.Deployment {
	for i := range sim.in.Deployments {
		if sim.in.Deployments[i].ID == id {
			return &sim.in.Deployments[i]
		}
	}
	return nil
}

// batchCount returns the number of batches in which the row's instances are replaced in their places.
func (sim *simulation) batchCount(t model.Topology, replicas int32) int {
	if d := sim.deploymentOf(t.DeploymentID); d != nil && model.IsPooled(d.Spec) {
		return pool.Foresee(pool.OrderOf(d.Spec.GetUpdate()), model.RolesInPlace(t.In(d.Spec), t.MovingRoles(), t.MaxUnavailable)).Steps
	}
	atOnce := max(1, t.MaxUnavailable)
	return int((replicas + atOnce - 1) / atOnce)
}

// makePassing changes the bounds of the policy's checks so that the figure 1 passes each of them. It does
// not change the times of the measurements.
func makePassing(policy *windlassv1.RolloutPolicy) {
	for _, c := range policy.GetAnalysis() {
		if c.GetWebhook() != nil {
			continue // it passes by its verdict
		}
		compares := analysis.Compares(c)
		if analysis.Absolute(c) {
			c.Max, c.Min = new(1.0), nil
		}
		if compares {
			c.VersusOld = &windlassv1.VersusOld{MaxRatio: new(1.0)}
		}
		c.MinSamples = 0
	}
}

func (sim *simulation) measureAll(asked []plan.Measure) (out []plan.Measurement) {
	for _, m := range asked {
		out = append(out, plan.Measurement{
			RegionID: m.RegionID, Check: m.Check, Since: m.Since, At: sim.now,
			Figures: analysis.Figures{New: new(1.0), Old: new(1.0), Answer: &analysis.Answer{Verdict: analysis.Passed}},
		})
	}
	return out
}

// checkNames returns the names of the policy's checks. All checks apply while both versions serve.
func checkNames(policy *windlassv1.RolloutPolicy) (out []string) {
	for _, c := range policy.GetAnalysis() {
		out = append(out, analysis.Name(c))
	}
	return out
}

// absoluteChecks returns the names of the checks that also apply while a wave bakes.
func absoluteChecks(policy *windlassv1.RolloutPolicy) (out []string) {
	for _, c := range policy.GetAnalysis() {
		if analysis.Absolute(c) {
			out = append(out, analysis.Name(c))
		}
	}
	return out
}
