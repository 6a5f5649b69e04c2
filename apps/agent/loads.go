package agent

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/load"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/scrape"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// newLoads returns the collector of the load of scaled apps. seen provides the instances that run.
func (a *Agent) newLoads(seen annotated) (*load.Collector, error) {
	cfg := load.Config{
		Deployments: func() []*agentv1.Deployment { return scaledOf(a.inbox) },
		Observation: seen.Observation, Demand: a.gateways.Demand, Times: a.gateways.Times,
		Scrape: scrape.New(a.cfg.Rand).Scrape,
		Log:    a.cfg.Log, Registerer: a.cfg.Registerer, Rand: a.cfg.Rand,
	}
	if meter, ok := a.runtime.(runtime.Meter); ok {
		cfg.Usage = meter.Usage
	}
	return load.New(cfg)
}

// scaledOf returns the deployments that should run and that belong to a scaled app, sorted by id.
func scaledOf(in *inbox.Inbox) []*agentv1.Deployment {
	var out []*agentv1.Deployment
	for _, item := range in.Items() {
		if d := item.GetDeployment(); d.GetAction() == agentv1.DeploymentState_ACTION_APPLY && d.GetDeployment().GetScaling() != nil {
			out = append(out, d.Deployment)
		}
	}
	slices.SortFunc(out, func(a, b *agentv1.Deployment) int { return cmp.Compare(a.Id, b.Id) })
	return out
}
