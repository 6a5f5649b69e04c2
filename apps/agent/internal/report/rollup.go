package report

import (
	"slices"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/pool"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Rollup counts a deployment's instances. A replica is ready when all its instances are ready, all
// have the newest template, and none is missing. With one role, an instance is missing if its group
// is smaller than the deployment's largest group. With several roles, each role says how many
// instances it has. For a pool, replicas are percent; see roleRollups.sharesOf.
func Rollup(d runtime.ObservedDeployment) *agentv1.DeploymentRollup {
	r := &agentv1.DeploymentRollup{DeploymentId: d.DeploymentID, Generation: d.Generation}
	type group struct{ size, ready int }
	groups, exist := make(map[int]group, len(d.Instances)), make(map[int]bool, len(d.Instances))
	largest := 0
	var worst worstInstance
	roles := newRoleRollups(&d)
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
		exist[i.Group] = true
		current := d.IsCurrent(i)
		roles.add(i, current)
		// An instance that will be replaced says nothing about its successor.
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
		worst.add(i, current)
	}
	r.Groups = int32(len(exist))
	for _, g := range groups {
		if len(d.Roles) == 0 && g.size == largest && g.ready == g.size {
			r.ReadyReplicas++
		}
	}
	if len(d.Roles) > 0 {
		r.ReadyReplicas = int32(len(d.CompleteGroups(d.IsCurrent)))
	}
	if d.IsPool() {
		r.ReadyReplicas, r.Groups = roles.sharesOf()
	}
	r.Reason, r.Message = worst.reasonAndMessage()
	r.Roles = roles.list()
	return r
}

// worstInstance finds the instance with the most severe reason.
type worstInstance struct {
	instance *runtime.Instance
	rank     int
}

// add considers one instance. It ignores a doomed instance that will be replaced, because such an
// instance says nothing about its successor.
func (w *worstInstance) add(i *runtime.Instance, current bool) {
	if rank := severityOf(i); rank > w.rank && (current || !i.Doomed) {
		w.instance, w.rank = i, rank
	}
}

func (w *worstInstance) reasonAndMessage() (reason, message string) {
	if w.instance == nil {
		return "", ""
	}
	return boundText(w.instance.Reason), boundText(w.instance.Message)
}

// roleRollups counts the instances of each role of a deployment with several roles.
type roleRollups struct {
	all   []*agentv1.RoleRollup
	worst []worstInstance
	// readyCurrent has, by role, how many instances of the newest template are ready.
	readyCurrent []int
}

func newRoleRollups(d *runtime.ObservedDeployment) *roleRollups {
	r := &roleRollups{worst: make([]worstInstance, len(d.Roles)), readyCurrent: make([]int, len(d.Roles))}
	for _, one := range d.Roles {
		r.all = append(r.all, &agentv1.RoleRollup{Role: one.Name, Pool: int32(one.Pool)})
	}
	return r
}

func (r *roleRollups) add(i *runtime.Instance, current bool) {
	at := slices.IndexFunc(r.all, func(one *agentv1.RoleRollup) bool { return one.Role == i.Role })
	if at < 0 {
		return
	}
	one := r.all[at]
	one.Instances++
	if i.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
		one.Ready++
		if current {
			r.readyCurrent[at]++
		}
	}
	if current && i.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING {
		one.Updated++
	}
	if current && i.Doomed {
		one.Doomed++
	}
	r.worst[at].add(i, current)
}

// sharesOf returns the percent of a pool that is ready with the newest template, and the percent that exists.
func (r *roleRollups) sharesOf() (ready, existing int32) {
	var serve, exist []pool.Role
	for n, one := range r.all {
		serve = append(serve, pool.Role{Have: r.readyCurrent[n], Pool: int(one.Pool)})
		exist = append(exist, pool.Role{Have: int(one.Instances), Pool: int(one.Pool)})
	}
	return int32(pool.Ready(serve)), int32(pool.Existing(exist))
}

func (r *roleRollups) list() []*agentv1.RoleRollup {
	for n, one := range r.all {
		one.Reason, one.Message = r.worst[n].reasonAndMessage()
	}
	return r.all
}

// severityOf returns how severe the reason of an instance is. 0: there is no reason to show.
func severityOf(i *runtime.Instance) int {
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
