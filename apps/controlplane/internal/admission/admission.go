// Package admission decides whether a call of a workspace may pass. It compares what the workspace would have
// afterwards with its limits, and the rate at which it starts work with a bucket. It decides on its arguments
// alone and does no I/O.
//
// # Quotas
//
// Quotas are exact. The call writes its changes, then locks its workspace's row and adds up the workspace. If
// the sum is above a limit, the whole call is undone. So one of two calls for the last GPU passes, and calls
// of different workspaces never wait for each other.
//
// Each app counts by its claim, one row that a call which changes the app writes together with the app. The
// code that ends rollouts writes no claims. A claim names its app's live deployment and rollout, so that the
// sum shows which claims are outdated. The call that adds up writes those anew, five hundred in five queries.
// Apps older than claims get one in the same way. Only calls that change an app's usage pay for the sum.
//
// An app that is being updated counts with the larger of its two versions. While the old and the new version
// overlap, more instances run. That time is short, and the limit on rollouts in flight bounds the number of
// such apps. If the overlap counted, a workspace with a full quota could not update.
//
// # The rate of starts
//
// The bucket is in SQL, one row for each workspace, on the database's clock. It holds for all processes of
// the control plane together, and adds no round trip to those of the quotas. It is charged in the transaction
// of the call. A call that fails costs nothing, a repeated call finds its record first, and a transaction
// that the database runs twice is charged once.
//
// But by then the call has cost a transaction, and most calls of a flood are refused. So a Gate in each
// process has a copy of the bucket, which is charged before any work and updated from the row. A gate refuses
// calls in memory. It never admits one, because only the row decides that. If another process admitted calls
// of which a gate does not know, a call costs a transaction. If limits were raised in another process, the
// gate lets a call ask the database once a second.
package admission

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// InForce returns the control plane's limits, with the workspace's own in place of those that it sets.
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

// Refusal is the limit that a call would exceed.
type Refusal struct {
	// Limit is its name in the API, What describes what it counts.
	Limit, What string
	Max         int64
	// Used is the number before the call, Asked is what the call adds.
	Used, Asked int64
}

// Check returns the first limit that the workspace would exceed because an app grows from before to after;
// nil if there is none. others is the usage of all other apps. A value that does not grow is not checked, so
// that after limits were lowered, running apps stay and people can scale down.
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

// ceilingFor is how long a ceiling is used, in us. Until then, usage that was given up stays in it, and
// processes of an earlier release do not add to it. Claims that ended accumulate until the next sum has to
// settle them.
const ceilingFor = 10_000_000

// Holds reports whether an app may grow from before to after without a new sum, because even the ceiling
// stays within the limits. now is the time of the database's clock in us.
func Holds(c model.Ceiling, now int64, l model.Limits, before, after model.Usage) bool {
	return c.CountedAt > 0 && now >= c.CountedAt && now-c.CountedAt < ceilingFor && Check(l, c.Without(before), before, after) == nil
}

// String returns the refusal as a sentence.
func (r *Refusal) String() string {
	return fmt.Sprintf("the workspace may have %d %s: it has %d, and this call asks for %d more", r.Max, r.What, r.Used, r.Asked)
}

// Counted reports whether any limit is on the workspace's usage, which then has to be added up.
func Counted(l model.Limits) bool {
	return l.Apps > 0 || l.Deployments > 0 || l.Instances > 0 || l.GPUs > 0 || l.Rollouts > 0
}

// Claim returns the claim of an app. live and next are its live deployment and the one of its rollout, nil
// for none; rows are its topology.
func Claim(app model.App, live, next *model.Deployment, rows []model.Topology) model.Claim {
	instances, gpus := cost(live, rows)
	more, moreGPUs := cost(next, rows)
	return model.Claim{
		AppID: app.ID, WorkspaceID: app.WorkspaceID, LiveDeploymentID: app.LiveDeploymentID, RolloutID: app.RolloutID,
		Instances: max(instances, more), GPUs: max(gpus, moreGPUs),
	}
}

// cost returns what a deployment takes. It counts the replicas of its active rows, or those of its spec if it
// has no rows yet, each as CountedReplicas counts it.
func cost(d *model.Deployment, rows []model.Topology) (instances, gpus int64) {
	if d == nil {
		return 0, 0
	}
	add := func(t model.Topology) {
		spec := t.In(override.In(d.Spec, t.RegionID))
		more, moreGPUs := Of(spec, CountedReplicas(spec, t.Replicas))
		instances, gpus = instances+more, gpus+moreGPUs
	}
	placed := false
	for _, t := range rows {
		if t.DeploymentID != d.ID {
			continue
		}
		placed = true
		if topology.Active(t) {
			add(t)
		}
	}
	if placed {
		return instances, gpus
	}
	for _, name := range d.Spec.GetRegions() {
		id := override.ID(d.Spec, name)
		n, _ := override.Replicas(d.Spec, id)
		add(model.Topology{RegionID: id, Replicas: n})
	}
	return instances, gpus
}

// CountedReplicas returns how many of a version's replicas in a region count against quotas. spec is the version's in the
// region. A version at zero counts as one replica, because the region starts it when a request comes, without a
// check of the quota.
func CountedReplicas(spec *windlassv1.DeploymentSpec, replicas int32) int32 {
	at := model.Topology{Replicas: replicas}
	return max(replicas, at.WakeTo(spec))
}

// Of returns how many instances the replicas of the spec have, as it is in a region, and how many GPUs they have. An
// instance of several hosts counts once for each host.
func Of(spec *windlassv1.DeploymentSpec, replicas int32) (instances, gpus int64) {
	if len(spec.GetRoles()) == 0 {
		return int64(replicas), int64(replicas) * int64(spec.GetResources().GetGpu().GetCount())
	}
	for _, r := range spec.GetRoles() {
		n, one := int64(model.InstancesOf(spec, r, replicas)), CostOfRole(spec, r)
		instances += n * one.Instances
		gpus += n * one.GPUs
	}
	return instances, gpus
}

// CostOfRole returns what one instance of a role of the spec takes.
func CostOfRole(spec *windlassv1.DeploymentSpec, r *windlassv1.RoleSpec) model.RoleCost {
	resources := r.GetResources()
	if resources == nil {
		resources = spec.GetResources()
	}
	hosts := int64(model.HostsOf(r))
	return model.RoleCost{Instances: hosts, GPUs: hosts * int64(resources.GetGpu().GetCount())}
}
