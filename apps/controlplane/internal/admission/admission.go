// Package admission decides whether a workspace's call may pass: what the workspace
// would have afterwards against its limits, and how fast it starts work against a
// bucket. It decides on what it is given, and does no I/O.
//
// # Quotas
//
// They are exact. The call writes what it wants, then locks its workspace's row, adds up
// the workspace, and is undone as a whole when that is too much: so of two calls for
// the last GPU one passes, and calls of different workspaces never wait for each other.
//
// Each app counts by its claim, one row that a call which changes the app writes together with
// the app. Rollouts end elsewhere, and write no claims: they need not. A claim names its live
// deployment and its rollout, so that the sum shows which claims are outdated. The call that
// adds up writes those anew, five hundred in five queries. Apps older than claims get one in
// the same way. Only calls that make something larger pay for the sum.
//
// An app that is being updated counts with the larger of its two versions. While old
// and new overlap there is more, but not for long, and no more of them at once than
// rollouts may be in flight; counting the overlap would make a workspace whose quota
// is full unable to update, which is when it most has to.
//
// # The rate of starts
//
// A bucket in SQL, one row a workspace, on the database's clock: it holds for all
// processes of the control plane together, and costs no round trip that the quotas do
// not pay already. It is charged in the transaction of the call: what fails costs
// nothing, a repetition finds its record first, and a transaction that the database
// runs twice is charged once.
//
// But by then a call has cost a transaction, and a flood is made of calls that are
// refused. So a Gate in each process has a copy of the bucket, charged before any work
// and moved along by what is learned from the row. It turns away in memory; it never
// lets in, that is for the row alone. A gate that knows of too little (another process
// let others in) costs a transaction; one that knows of too much (limits were raised
// elsewhere) asks the database again once a second.
package admission

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// InForce are the control plane's limits, but for those that the workspace has of its
// own.
func InForce(ours, own model.Limits) model.Limits {
	pick := func(ours, own int64) int64 {
		if own == model.Inherit {
			return ours
		}
		return own
	}
	return model.Limits{
		Apps: pick(ours.Apps, own.Apps), Deployments: pick(ours.Deployments, own.Deployments),
		Instances: pick(ours.Instances, own.Instances), GPUs: pick(ours.GPUs, own.GPUs), Rollouts: pick(ours.Rollouts, own.Rollouts),
		StartsPerMinute: pick(ours.StartsPerMinute, own.StartsPerMinute), StartsBurst: pick(ours.StartsBurst, own.StartsBurst),
	}
}

// Refusal says which limit a call would go beyond.
type Refusal struct {
	// Limit is its name in the API, What it counts in words.
	Limit, What string
	Max         int64
	// Used before the call, Asked what the call adds.
	Used, Asked int64
}

// Check tells the first limit that the workspace would be beyond because of an app
// that grows from before to after, beside all others; nil if there is none. What does
// not grow is not asked about: limits that were lowered take nothing away, and let
// people scale down.
func Check(l model.Limits, others, before, after model.Usage) *Refusal {
	for _, c := range []struct {
		name, what                 string
		max, others, before, after int64
	}{
		{"apps", "apps", l.Apps, others.Apps, before.Apps, after.Apps},
		{"deployments", "apps with a deployment", l.Deployments, others.Deployments, before.Deployments, after.Deployments},
		{"instances", "instances", l.Instances, others.Instances, before.Instances, after.Instances},
		{"gpus", "GPUs", l.GPUs, others.GPUs, before.GPUs, after.GPUs},
		{"rollouts", "rollouts in flight", l.Rollouts, others.Rollouts, before.Rollouts, after.Rollouts},
	} {
		if c.max > 0 && c.after > c.before && c.others+c.after > c.max {
			return &Refusal{Limit: c.name, What: c.what, Max: c.max, Used: c.others + c.before, Asked: c.after - c.before}
		}
	}
	return nil
}

// ceilingFor is how long a ceiling is gone by, in us. What went is in it until then, a release
// before it adds nothing to it, and claims that ended want to be settled, each of which costs
// the one who adds up.
const ceilingFor = 10_000_000

// Holds reports whether the ceiling allows an app to grow from before to after without a new
// sum: the limits allow it, whatever the workspace has. now is the time of the database's clock
// in us.
func Holds(c model.Ceiling, now int64, l model.Limits, before, after model.Usage) bool {
	return c.CountedAt > 0 && now >= c.CountedAt && now-c.CountedAt < ceilingFor && Check(l, c.Without(before), before, after) == nil
}

// String is the refusal in a sentence.
func (r *Refusal) String() string {
	return fmt.Sprintf("the workspace may have %d %s: it has %d, and this call asks for %d more", r.Max, r.What, r.Used, r.Asked)
}

// Counted reports whether any limit is about what there is, so that it has to be added up.
func Counted(l model.Limits) bool {
	return l.Apps > 0 || l.Deployments > 0 || l.Instances > 0 || l.GPUs > 0 || l.Rollouts > 0
}

// Claim of an app with the given live deployment and the one on its way, nil for none,
// and its rows.
func Claim(app model.App, live, next *model.Deployment, rows []model.Topology) model.Claim {
	instances, gpus := cost(live, rows)
	more, moreGPUs := cost(next, rows)
	return model.Claim{
		AppID: app.ID, WorkspaceID: app.WorkspaceID, LiveDeploymentID: app.LiveDeploymentID, RolloutID: app.RolloutID,
		Instances: max(instances, more), GPUs: max(gpus, moreGPUs),
	}
}

// cost of a deployment: as many replicas as its rows say that run, and as its spec
// says before it has any.
func cost(d *model.Deployment, rows []model.Topology) (instances, gpus int64) {
	if d == nil {
		return 0, 0
	}
	add := func(regionID string, replicas int32) {
		each, gpusEach := PerReplica(override.In(d.Spec, regionID))
		instances += int64(replicas) * each
		gpus += int64(replicas) * gpusEach
	}
	placed := false
	for _, t := range rows {
		if t.DeploymentID != d.ID {
			continue
		}
		placed = true
		if topology.Active(t) {
			add(t.RegionID, t.Replicas)
		}
	}
	if placed {
		return instances, gpus
	}
	for _, name := range d.Spec.GetRegions() {
		id := override.ID(d.Spec, name)
		n, _ := override.Replicas(d.Spec, id)
		add(id, n)
	}
	return instances, gpus
}

// PerReplica is how many instances make a replica of the spec, as it is in a region, and
// how many GPUs they have.
func PerReplica(spec *windlassv1.DeploymentSpec) (instances, gpus int64) {
	if len(spec.GetRoles()) == 0 {
		return 1, int64(spec.GetResources().GetGpu().GetCount())
	}
	for _, r := range spec.GetRoles() {
		resources := r.GetResources()
		if resources == nil {
			resources = spec.GetResources()
		}
		n := int64(max(r.GetInstances(), 1))
		instances += n
		gpus += n * int64(resources.GetGpu().GetCount())
	}
	return instances, gpus
}
