// Package admission decides whether a workspace may make a call. It compares the usage that the workspace would have
// after the call with its limits. A bucket limits the rate at which the workspace starts work. The package uses only
// the arguments of its functions and does no I/O.
//
// # Quotas
//
// Quotas are exact. The call writes its changes, then locks its workspace's row and computes the sum over the
// workspace's apps. If the sum is above a limit, the transaction is rolled back. So of two calls for the last GPU
// exactly one passes, and calls of different workspaces never wait for each other.
//
// The usage of each app is in its claim: one row, which a call that changes the app also writes. Code that ends
// rollouts writes no claims. A claim names the app's live deployment and rollout, so that the query of the sum also
// finds outdated claims. The call that computes the sum writes new claims for these apps, up to five hundred at once.
// How many queries that takes does not depend on the number of claims. Apps without a claim get one in the same way.
// Only calls that change an app's usage need the sum.
//
// During an update, an app counts with the larger of its two versions, although instances of both versions run. That
// time is short, and the limit on rollouts in flight bounds the number of such apps. If both versions counted, a
// workspace with a full quota could not update its apps.
//
// # The rate of starts
//
// The bucket is a row per workspace in the database, and uses the database's clock. All processes of the control
// plane share it, and it needs no round trip in addition to those of the quotas. A token is taken in the transaction
// of the call. A call that fails takes no token. A repeated call takes none either, because the record of the first
// call exists already. A transaction that the database runs twice takes one token.
//
// A refusal in the transaction is expensive, and most calls of a flood are refused. So a Limiter in each process has
// a copy of the bucket. A token is taken from the copy before any work, and the copy is updated from the row. A
// Limiter can only refuse calls. Only the row decides whether a call passes. If other processes used tokens of which
// a Limiter does not know, the row refuses the call. If another process raised limits, the Limiter notices, because
// it lets one call a second through.
package admission

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// InForce returns the limits that are in force for a workspace: each limit of its own, and the control plane's limit
// where the workspace has none of its own.
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
	// Limit is the name of the limit in the API. What names the counted objects, such as "rollouts in flight".
	Limit, What string
	Max         int64
	// Used is the number before the call. Asked is the number that the call adds.
	Used, Asked int64
}

// Check returns the first limit that the workspace would exceed because an app grows from before to after, or nil.
// others is the usage of all other apps. A value that does not grow is not checked, so that people can still scale
// down after limits were lowered.
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

// ceilingFor is how long a ceiling is used after its usage was counted, in us. In this time, the ceiling may be wrong
// in two ways: usage that has ended is still in it, and usage that processes of an earlier release add is missing.
const ceilingFor = 10_000_000

// Holds reports whether an app may grow from before to after without a new sum, because even the ceiling plus the
// growth is within the limits. now is the time of the database's clock, in us.
func Holds(c model.Ceiling, now int64, l model.Limits, before, after model.Usage) bool {
	return c.CountedAt > 0 && now >= c.CountedAt && now-c.CountedAt < ceilingFor && Check(l, c.Without(before), before, after) == nil
}

// String returns the refusal as text for the caller.
func (r *Refusal) String() string {
	return fmt.Sprintf("the workspace may have %d %s: it has %d, and this call asks for %d more", r.Max, r.What, r.Used, r.Asked)
}

// Counted reports whether a limit on usage is set, so that the sum of usage is needed.
func Counted(l model.Limits) bool {
	return l.Apps > 0 || l.Deployments > 0 || l.Instances > 0 || l.GPUs > 0 || l.Rollouts > 0
}

// Claim returns the claim of an app. live is its live deployment and next the deployment of its rollout, nil for
// none. rows are its topology.
func Claim(app model.App, live, next *model.Deployment, rows []model.Topology) model.Claim {
	instances, gpus := costOf(live, rows)
	more, moreGPUs := costOf(next, rows)
	return model.Claim{
		AppID: app.ID, WorkspaceID: app.WorkspaceID, LiveDeploymentID: app.LiveDeploymentID, RolloutID: app.RolloutID,
		Instances: max(instances, more), GPUs: max(gpus, moreGPUs),
	}
}

// costOf returns the instances and GPUs of a deployment. It uses the replicas of its active rows, or of its spec if it
// has no rows yet, counted by CountedReplicas.
func costOf(d *model.Deployment, rows []model.Topology) (instances, gpus int64) {
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

// CountedReplicas returns the number of replicas that count against quotas. spec is the version's spec in the region.
// A version at zero counts as one replica, because a request can start one without a check of the quota.
func CountedReplicas(spec *windlassv1.DeploymentSpec, replicas int32) int32 {
	at := model.Topology{Replicas: replicas}
	return max(replicas, at.WakeTo(spec))
}

// Of returns the instances and GPUs of replicas of the spec. spec is the spec in one region. An instance of several
// hosts counts once for each host.
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

// CostOfRole returns the cost of one instance of a role of the spec.
func CostOfRole(spec *windlassv1.DeploymentSpec, r *windlassv1.RoleSpec) model.RoleCost {
	resources := r.GetResources()
	if resources == nil {
		resources = spec.GetResources()
	}
	hosts := int64(model.HostsOf(r))
	return model.RoleCost{Instances: hosts, GPUs: hosts * int64(resources.GetGpu().GetCount())}
}
