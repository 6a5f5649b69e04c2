package forecast

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// obey has every region do all that it is told, and say so.
func (w *world) obey() {
	epochs := map[string]int64{}
	for i := range w.in.Regions {
		w.in.Regions[i].LastReportAt = w.now
		epochs[w.in.Regions[i].ID] = w.in.Regions[i].SessionEpoch
	}
	w.in.Observed = w.in.Observed[:0:0]
	for _, t := range w.in.Topology {
		o := model.Observed{
			WorkspaceID: t.WorkspaceID, AppID: t.AppID, DeploymentID: t.DeploymentID, RegionID: t.RegionID,
			AppliedEpoch: epochs[t.RegionID], AppliedGeneration: t.Generation, CountsGeneration: t.Generation,
			Phase: int32(agentv1.AppliedState_PHASE_APPLIED), UpdatedAt: w.now,
		}
		if t.Told() {
			o.ReadyReplicas, o.Ready = t.Replicas, t.Replicas*w.each(t.DeploymentID)
		} else {
			o.Deleted = true
		}
		w.in.Observed = append(w.in.Observed, o)
	}
	w.in.RouteObserved = w.in.RouteObserved[:0:0]
	for _, r := range w.in.Routes {
		w.in.RouteObserved = append(w.in.RouteObserved, model.RouteObserved{
			AppID: r.AppID, RegionID: r.RegionID, Epoch: epochs[r.RegionID], Generation: r.Generation,
			Phase: int32(agentv1.AppliedState_PHASE_APPLIED), UpdatedAt: w.now,
		})
	}
}

// each is how many instances make a replica.
func (w *world) each(deployment string) int32 {
	for _, d := range w.in.Deployments {
		if d.ID != deployment || len(d.Spec.GetRoles()) == 0 {
			continue
		}
		var n int32
		for _, r := range d.Spec.GetRoles() {
			n += max(r.GetInstances(), 1)
		}
		return n
	}
	return 1
}

// passing leaves of the policy's checks when they are measured, and bounds them so that
// the figure 1 passes, whatever it is of.
func passing(policy *windlassv1.RolloutPolicy) {
	for _, c := range policy.GetAnalysis() {
		if c.GetWebhook() != nil {
			continue // it passes by its word
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

func (w *world) measured(asked []plan.Measure) (out []plan.Measurement) {
	for _, m := range asked {
		out = append(out, plan.Measurement{
			RegionID: m.RegionID, Check: m.Check, Since: m.Since, At: w.now,
			Figures: analysis.Figures{New: new(1.0), Old: new(1.0), Said: &analysis.Said{Verdict: analysis.Passed}},
		})
	}
	return out
}

// names of the policy's checks, which hold a region that serves beside the old version.
func names(policy *windlassv1.RolloutPolicy) (out []string) {
	for _, c := range policy.GetAnalysis() {
		out = append(out, analysis.Name(c))
	}
	return out
}

// absolute are the names of those that hold a wave while it bakes, too.
func absolute(policy *windlassv1.RolloutPolicy) (out []string) {
	for _, c := range policy.GetAnalysis() {
		if analysis.Absolute(c) {
			out = append(out, analysis.Name(c))
		}
	}
	return out
}
