package agent

import (
	"cmp"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/alone"
	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/load"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/scrape"
	"github.com/windlass-run/windlass/apps/agent/internal/zero"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// newLoads returns the collector of the load of scaled apps. seen provides the instances that run.
// marks stores the replicas that the agent raises while it is cut off from the control plane.
func (a *Agent) newLoads(seen annotated, marks *zero.Zero) (*load.Collector, error) {
	raiser, err := alone.New(alone.Config{
		Assigned: func() []*agentv1.Item { return scaledItems(a.inbox) },
		// The session is made later, before the collector runs.
		Away:        func(now time.Time) time.Duration { return a.session.Away(now) },
		Observation: seen.Observation, Marks: marks,
		Changed: func(id string) {
			a.reconciler.Enqueue(inbox.Key{Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Name: id})
		},
		Log: a.cfg.Log, Registerer: a.cfg.Registerer,
	})
	if err != nil {
		return nil, err
	}
	cfg := load.Config{
		Deployments: func() []*agentv1.Deployment { return scaledOf(a.inbox) },
		Observation: seen.Observation, Demand: a.gateways.Demand, Times: a.gateways.Times,
		Scrape:   scrape.New(a.cfg.Rand).Scrape,
		Measured: raiser.Observe,
		Log:      a.cfg.Log, Registerer: a.cfg.Registerer, Rand: a.cfg.Rand,
	}
	if meter, ok := a.runtime.(runtime.Meter); ok {
		cfg.Usage = meter.Usage
	}
	if r, ok := a.runtime.(runtime.RequestLoader); ok {
		cfg.ModelNeed = r.ModelNeed
	}
	return load.New(cfg)
}

// scaledOf returns the deployments that should run and that belong to a scaled app, sorted by id.
func scaledOf(in *inbox.Inbox) []*agentv1.Deployment {
	items := scaledItems(in)
	out := make([]*agentv1.Deployment, len(items))
	for i, item := range items {
		out[i] = item.GetDeployment().Deployment
	}
	return out
}

// scaledItems returns the items of the deployments of scaledOf.
func scaledItems(in *inbox.Inbox) []*agentv1.Item {
	out := slices.DeleteFunc(in.Items(), func(item *agentv1.Item) bool {
		d := item.GetDeployment()
		return d.GetAction() != agentv1.DeploymentState_ACTION_APPLY || d.GetDeployment().GetScaling() == nil
	})
	slices.SortFunc(out, func(a, b *agentv1.Item) int { return cmp.Compare(a.Key, b.Key) })
	return out
}
