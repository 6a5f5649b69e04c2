package report

import (
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Rollup counts a deployment's instances. A replica is ready when each of its
// instances is, all are of the newest template, and it has as many as the
// largest of its peers: a group that is still being filled, or replaced, is not.
func Rollup(d runtime.ObservedDeployment) *agentv1.DeploymentRollup {
	r := &agentv1.DeploymentRollup{DeploymentId: d.DeploymentID, Generation: d.Generation}
	type group struct{ size, ready int }
	groups := make(map[int]group, len(d.Instances))
	largest := 0
	var worst *runtime.Instance
	worstRank := 0
	for n := range d.Instances {
		i := &d.Instances[n]
		switch i.Status {
		case windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED:
			continue
		case windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING, windlassv1.InstanceStatus_INSTANCE_STATUS_CREATING:
			r.Pending++
		case windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING:
			r.Running++
		case windlassv1.InstanceStatus_INSTANCE_STATUS_READY:
			r.Ready++
		case windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING:
			r.Draining++
		case windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED:
			r.Failed++
		}
		current := i.TemplateHash == d.TemplateHash
		// What is about to be replaced says nothing about what replaces it.
		if i.Doomed && current {
			r.Doomed++
		}
		r.Restarts += int32(i.Restarts)
		if i.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING {
			g := groups[i.Group]
			g.size++
			largest = max(largest, g.size)
			if current && i.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
				g.ready++
				if ms := i.ReadyAt.Sub(i.StartedAt).Milliseconds(); !i.ReadyAt.IsZero() && !i.StartedAt.IsZero() {
					r.SlowestStartMs = max(r.SlowestStartMs, ms)
				}
			}
			groups[i.Group] = g
		}
		if rank := severity(i); rank > worstRank && (current || !i.Doomed) {
			worst, worstRank = i, rank
		}
	}
	for _, g := range groups {
		if g.size == largest && g.ready == g.size {
			r.ReadyReplicas++
		}
	}
	if worst != nil {
		r.Reason, r.Message = boundText(worst.Reason), boundText(worst.Message)
	}
	return r
}

// severity orders instances by how much their reason tells; 0 says nothing.
func severity(i *runtime.Instance) int {
	switch {
	case i.Reason == "" || i.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY:
		return 0
	case i.Doomed:
		return 5
	case i.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED:
		return 4
	case i.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING:
		return 3
	case i.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING:
		return 1
	}
	return 2
}
