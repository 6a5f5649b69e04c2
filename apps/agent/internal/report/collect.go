package report

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// picture is everything there is to report, at one moment.
type picture struct {
	applied     map[string]*agentv1.AppliedState // by kind and key
	instances   map[string]*agentv1.InstanceState
	rollups     map[string]*agentv1.DeploymentRollup
	capacity    *agentv1.Capacity
	quarantined []*agentv1.QuarantinedKey
	// judged: whether quarantined is known at all.
	judged bool
}

func emptyPicture() picture {
	return picture{
		applied:   map[string]*agentv1.AppliedState{},
		instances: map[string]*agentv1.InstanceState{},
		rollups:   map[string]*agentv1.DeploymentRollup{},
	}
}

// take makes a picture of what the source knows. Deployments that are applied or
// being removed have counts even when nothing of them exists, since "none" is
// what a removal waits for. States are read before the observation, so that the
// counts beside a state are never from before it.
func take(src Source) (picture, bool) {
	applied := src.Applied()
	seen, ok := src.Observation()
	if !ok {
		return picture{}, false
	}
	p := emptyPicture()
	for _, a := range applied {
		if message := text(a.Message); message != a.Message {
			a = proto.CloneOf(a)
			a.Message = message
		}
		p.applied[appliedKey(a)] = a
		if a.Kind == agentv1.ItemKind_ITEM_KIND_DEPLOYMENT {
			p.rollups[a.Key] = &agentv1.DeploymentRollup{DeploymentId: a.Key, Generation: a.Generation}
		}
	}
	for _, d := range seen.Deployments {
		p.rollups[d.DeploymentID] = Rollup(d)
		for _, i := range d.Instances {
			p.instances[i.ID] = instanceState(d.DeploymentID, i)
		}
	}
	p.capacity = seen.Capacity
	p.quarantined, p.judged = src.Quarantined()
	return p, true
}

func appliedKey(a *agentv1.AppliedState) string { return a.Kind.String() + "/" + a.Key }

func instanceState(deployment string, i runtime.Instance) *agentv1.InstanceState {
	out := &agentv1.InstanceState{
		Id: i.ID, DeploymentId: deployment, Role: i.Role, Group: int32(i.Group), Slot: int32(i.Slot),
		Status: i.Status, Reason: text(i.Reason), Message: text(i.Message), Address: i.Address,
		RuntimeName: i.RuntimeName, Restarts: int32(i.Restarts), Gpus: i.GPUs,
	}
	if !i.StartedAt.IsZero() {
		out.StartedAt = i.StartedAt.UnixMilli()
	}
	if !i.ReadyAt.IsZero() {
		out.ReadyAt = i.ReadyAt.UnixMilli()
	}
	return out
}

// maxText is more than the control plane keeps of a reason or message.
const maxText = 1024

// text bounds what a runtime or an instance says. What is not UTF-8 could not be
// sent at all, now and at every retry.
func text(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return strings.ToValidUTF8(s, "")
}

// Rollup counts a deployment's instances. A replica is ready when each of its
// instances is, all are of the newest template, and it has as many as the
// largest of its peers: a group that is still being filled is not.
func Rollup(d runtime.ObservedDeployment) *agentv1.DeploymentRollup {
	r := &agentv1.DeploymentRollup{DeploymentId: d.DeploymentID, Generation: d.Generation}
	type group struct{ size, ready int }
	groups := map[int]*group{}
	largest := 0
	worst := runtime.Instance{}
	worstRank := -1
	for _, i := range d.Instances {
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
		if i.Doomed {
			r.Doomed++
		}
		r.Restarts += int32(i.Restarts)
		if i.TemplateHash == d.TemplateHash && i.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING {
			g := groups[i.Group]
			if g == nil {
				g = &group{}
				groups[i.Group] = g
			}
			g.size++
			largest = max(largest, g.size)
			if i.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
				g.ready++
				if ms := i.ReadyAt.Sub(i.StartedAt).Milliseconds(); !i.ReadyAt.IsZero() && !i.StartedAt.IsZero() {
					r.SlowestStartMs = max(r.SlowestStartMs, ms)
				}
			}
		}
		if rank := severity(i); rank > worstRank {
			worst, worstRank = i, rank
		}
	}
	for _, g := range groups {
		if g.size == largest && g.ready == g.size {
			r.ReadyReplicas++
		}
	}
	if worstRank > 0 {
		r.Reason, r.Message = text(worst.Reason), text(worst.Message)
	}
	return r
}

// severity orders instances by how much their reason tells; 0 says nothing.
func severity(i runtime.Instance) int {
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

// diff is what the next report has to say: now against what was reported.
type diff struct {
	applied     []*agentv1.AppliedState
	instances   []*agentv1.InstanceState
	rollups     []*agentv1.DeploymentRollup
	capacity    *agentv1.Capacity
	quarantine  bool
	quarantined []*agentv1.QuarantinedKey
	// edge: somebody waits for this; do not coalesce.
	edge bool
}

func (d diff) empty() bool {
	return len(d.applied)+len(d.instances)+len(d.rollups) == 0 && d.capacity == nil && !d.quarantine
}

// compare finds what changed. An instance that is no longer there has ended.
func compare(before, now picture) diff {
	var d diff
	for k, a := range now.applied {
		if was := before.applied[k]; !proto.Equal(was, a) {
			d.applied = append(d.applied, a)
			d.edge = d.edge || was == nil || was.Phase != a.Phase || was.Generation != a.Generation || was.Deleted != a.Deleted
		}
	}
	for id, i := range now.instances {
		if was := before.instances[id]; !proto.Equal(was, i) {
			d.instances = append(d.instances, i)
			d.edge = d.edge || isEdge(was.GetStatus()) != isEdge(i.Status)
		}
	}
	for id, was := range before.instances {
		if _, ok := now.instances[id]; ok || was.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED {
			continue
		}
		d.instances = append(d.instances, terminated(was))
		d.edge = true
	}
	for id, r := range now.rollups {
		if was := before.rollups[id]; !proto.Equal(was, r) {
			d.rollups = append(d.rollups, r)
			d.edge = d.edge || was == nil || was.ReadyReplicas != r.ReadyReplicas || was.Doomed != r.Doomed
		}
	}
	for id, was := range before.rollups {
		if _, ok := now.rollups[id]; !ok {
			d.rollups = append(d.rollups, &agentv1.DeploymentRollup{DeploymentId: id, Generation: was.Generation})
		}
	}
	if now.capacity != nil && !proto.Equal(before.capacity, now.capacity) {
		d.capacity = now.capacity
	}
	same := func(a, b *agentv1.QuarantinedKey) bool { return proto.Equal(a, b) }
	if now.judged && (!before.judged || !slices.EqualFunc(before.quarantined, now.quarantined, same)) {
		d.quarantine, d.quarantined = true, now.quarantined
	}
	slices.SortFunc(d.instances, func(a, b *agentv1.InstanceState) int { return cmp.Compare(a.Id, b.Id) })
	slices.SortFunc(d.rollups, func(a, b *agentv1.DeploymentRollup) int { return cmp.Compare(a.DeploymentId, b.DeploymentId) })
	slices.SortFunc(d.applied, func(a, b *agentv1.AppliedState) int { return cmp.Compare(appliedKey(a), appliedKey(b)) })
	return d
}

// terminated is the last word on an instance that is gone. One that failed, or left
// for a reason (evicted, replaced), ended of that; any other was stopped.
func terminated(was *agentv1.InstanceState) *agentv1.InstanceState {
	gone := proto.CloneOf(was)
	gone.Status = windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED
	gone.Address = ""
	switch was.Status {
	case windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED, windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING:
		if was.Reason != "" {
			return gone
		}
	default:
	}
	gone.Reason, gone.Message = runtime.ReasonStopped, ""
	return gone
}

// isEdge: states that a rollout waits for or fails on.
func isEdge(s windlassv1.InstanceStatus) bool {
	return s == windlassv1.InstanceStatus_INSTANCE_STATUS_READY || s == windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED
}
