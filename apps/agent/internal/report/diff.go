package report

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// diff has the facts that changed since the last report.
type diff struct {
	applied     []*agentv1.AppliedState
	rollups     []*agentv1.DeploymentRollup
	capacity    *agentv1.Capacity
	quarantine  bool
	quarantined []*agentv1.QuarantinedKey
	notices     []runtime.Notice
	// edge means that a rollout may wait for a part of the diff, so the diff is sent at once.
	edge bool
	// urgent has the parts that a rollout may wait for.
	urgent struct {
		applied []*agentv1.AppliedState
		rollups []*agentv1.DeploymentRollup
	}
}

// instanceChange is an instance to report: its present state, or its last state if it is gone.
type instanceChange struct {
	deployment string
	*runtime.Instance
	gone bool
}

func (t instanceChange) stateOf() *agentv1.InstanceState {
	s := instanceState(t.deployment, t.Instance)
	if t.gone {
		return terminatedState(s)
	}
	return s
}

func (d *diff) isEmpty() bool {
	return len(d.applied)+len(d.rollups)+len(d.notices) == 0 && d.capacity == nil && !d.quarantine
}

// urgentParts returns a diff with the urgent parts only.
func (d *diff) urgentParts() diff {
	return diff{applied: d.urgent.applied, rollups: d.urgent.rollups, edge: d.edge}
}

// compareFacts returns the facts that changed.
func compareFacts(before, now picture) diff {
	var d diff
	for k, a := range now.applied {
		if was := before.applied[k]; was != a && !proto.Equal(was, a) {
			d.applied = append(d.applied, a)
			if was == nil || was.Phase != a.Phase || was.Generation != a.Generation || was.Deleted != a.Deleted {
				d.urgent.applied = append(d.urgent.applied, a)
			}
		}
	}
	for id, r := range now.rollups {
		if was := before.rollups[id]; was != r && !proto.Equal(was, r) {
			d.addCounts(was, r)
		}
	}
	for id, was := range before.rollups {
		if now.rollups[id] != nil {
			continue
		}
		// Zero counts are reported only once.
		if none := (&agentv1.DeploymentRollup{DeploymentId: id, Generation: was.Generation}); !proto.Equal(was, none) {
			d.addCounts(was, none)
		}
	}
	d.edge = len(d.urgent.applied)+len(d.urgent.rollups) > 0
	if now.capacity != nil && before.capacity != now.capacity && !proto.Equal(before.capacity, now.capacity) {
		d.capacity = now.capacity
	}
	same := func(a, b *agentv1.QuarantinedKey) bool { return proto.Equal(a, b) }
	if now.quarantineKnown && (!before.quarantineKnown || !slices.EqualFunc(before.quarantined, now.quarantined, same)) {
		d.quarantine, d.quarantined = true, now.quarantined
	}
	d.notices = newNotices(before.notices, now.notices)
	byID := func(a, b *agentv1.DeploymentRollup) int { return cmp.Compare(a.DeploymentId, b.DeploymentId) }
	slices.SortFunc(d.rollups, byID)
	slices.SortFunc(d.urgent.rollups, byID)
	byKey := func(a, b *agentv1.AppliedState) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Key, b.Key))
	}
	slices.SortFunc(d.applied, byKey)
	slices.SortFunc(d.urgent.applied, byKey)
	return d
}

// addCounts adds counts that changed. was is nil if there were none.
func (d *diff) addCounts(was, is *agentv1.DeploymentRollup) {
	d.rollups = append(d.rollups, is)
	if was == nil || was.Generation != is.Generation || was.ReadyReplicas != is.ReadyReplicas || was.Ready != is.Ready || was.Failed != is.Failed || was.Doomed != is.Doomed {
		d.urgent.rollups = append(d.urgent.rollups, is)
	}
}

// movedInstances has the instances that deployments gained (arrived) and lost (departed). An
// instance in both was taken over by another deployment.
type movedInstances struct {
	arrived  []instanceChange
	departed map[string]instanceChange
}

// changes has the instances to report. edge is true if a rollout may wait for one of them.
type changes struct {
	list []instanceChange
	edge bool
}

// compareInstances returns the instances that changed, sorted by id. It compares only
// deployments that differ between the pictures. edge is true if a rollout may wait for a change.
func compareInstances(before, now picture) (list []instanceChange, edge bool) {
	var d changes
	m := movedInstances{departed: map[string]instanceChange{}}
	for id, is := range now.deployments {
		was := before.deployments[id]
		switch {
		case was == nil:
			d.compareLists(&m, id, nil, is.seen.Instances)
		case was != is:
			d.compareLists(&m, id, was.seen.Instances, is.seen.Instances)
		}
	}
	for id, was := range before.deployments {
		if now.deployments[id] == nil {
			d.compareLists(&m, id, was.seen.Instances, nil)
		}
	}
	for _, t := range m.arrived {
		was := windlassv1.InstanceStatus_INSTANCE_STATUS_UNSPECIFIED
		if w, ok := m.departed[t.ID]; ok {
			was = w.Status
			delete(m.departed, t.ID)
		}
		d.addInstance(t, was)
	}
	for _, t := range m.departed {
		// An instance that vanished has ended. Its end is reported, unless it was reported before.
		if t.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED {
			t.gone = true
			d.list = append(d.list, t)
			d.edge = true
		}
	}
	slices.SortFunc(d.list, func(a, b instanceChange) int { return cmp.Compare(a.ID, b.ID) })
	return d.list, d.edge
}

func (d *changes) addInstance(t instanceChange, was windlassv1.InstanceStatus) {
	d.list = append(d.list, t)
	d.edge = d.edge || isEdge(was) != isEdge(t.Status)
}

// compareLists compares the instances of one deployment. Two lists mostly have the same instances
// in the same order. So compareLists matches instances by id only between the first and the last
// place where the ids differ.
func (d *changes) compareLists(m *movedInstances, id string, was, is []runtime.Instance) {
	pair := func(w, i *runtime.Instance) {
		if !reportsTheSame(w, i) {
			d.addInstance(instanceChange{deployment: id, Instance: i}, w.Status)
		}
	}
	for len(was) > 0 && len(is) > 0 && was[0].ID == is[0].ID {
		pair(&was[0], &is[0])
		was, is = was[1:], is[1:]
	}
	for len(was) > 0 && len(is) > 0 && was[len(was)-1].ID == is[len(is)-1].ID {
		pair(&was[len(was)-1], &is[len(is)-1])
		was, is = was[:len(was)-1], is[:len(is)-1]
	}
	left := make(map[string]*runtime.Instance, len(was))
	for n := range was {
		left[was[n].ID] = &was[n]
	}
	for n := range is {
		i := &is[n]
		if w := left[i.ID]; w != nil {
			delete(left, i.ID)
			pair(w, i)
		} else {
			m.arrived = append(m.arrived, instanceChange{deployment: id, Instance: i})
		}
	}
	for name, w := range left {
		m.departed[name] = instanceChange{deployment: id, Instance: w}
	}
}

// newRequest makes a report with the diff and with part of the instances.
func (d *diff) newRequest(part []instanceChange) *agentv1.ReportRequest {
	req := &agentv1.ReportRequest{
		Applied: d.applied, Rollups: d.rollups, Capacity: d.capacity,
		QuarantineComplete: d.quarantine, Quarantined: d.quarantined, Notices: noticesOf(d.notices),
	}
	for _, t := range part {
		req.Instances = append(req.Instances, t.stateOf())
	}
	return req
}

// terminatedState returns the last state of an instance that is gone. An instance that failed or
// drained keeps its reason, if it has one. For any other instance, the reason is ReasonStopped.
func terminatedState(was *agentv1.InstanceState) *agentv1.InstanceState {
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

// isEdge reports whether a rollout waits for the state, or fails because of it.
func isEdge(s windlassv1.InstanceStatus) bool {
	return s == windlassv1.InstanceStatus_INSTANCE_STATUS_READY || s == windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED
}
