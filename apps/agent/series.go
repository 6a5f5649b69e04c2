package agent

import (
	"context"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/load"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/series"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// runSeries records the series of the region's apps until ctx ends.
func (a *Agent) runSeries(ctx context.Context) error { return a.series.Run(ctx, a.appStates) }

// appStates returns the present state of the region's apps, for their series. ok is false until the
// runtime was observed.
func (a *Agent) appStates(now time.Time) (apps map[string]series.State, gateways bool, ok bool) {
	observed, ok := a.seen.Observation()
	if !ok {
		return nil, false, false
	}
	instances := make(map[string][]runtime.Instance, len(observed.Deployments))
	for _, d := range observed.Deployments {
		instances[d.DeploymentID] = d.Instances
	}
	apps = map[string]series.State{}
	for _, item := range a.inbox.Items() {
		state := item.GetDeployment()
		d := state.GetDeployment()
		if state.GetAction() != agentv1.DeploymentState_ACTION_APPLY || d.GetAppId() == "" {
			continue
		}
		s, known := apps[d.AppId]
		if !known {
			if asked, counted := a.gateways.Demand(d.AppId, now); counted {
				s.Queued = &asked.Queued
			}
		}
		if d.GetSpec().GetLayout() != windlassv1.Layout_LAYOUT_POOLED {
			s.Replicas = true
			s.Wanted += int(d.Replicas)
			s.Ready += int(load.Count(instances[d.Id], load.Size(d)).Ready)
		}
		apps[d.AppId] = s
	}
	return apps, a.gateways.AreConnected(), true
}
