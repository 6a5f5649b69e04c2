package plan

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A workload is what a region runs under one name: the instances of one row. In place means that a row takes over the
// workload of another row, with all replicas and their traffic:
//
//	v1  3 replicas, 100 %            ->  transferred: none, and the region should run none
//	v2  none                         ->  3 replicas of v1's workload, 100 %
//
// This happens in one transaction, so that each instance has an owner at all times. The region then replaces
// the replicas that are not of v2, a few at a time, and the other replicas serve meanwhile. The
// row that transferred its workload stays, like the rows of every live version. To go back, it takes the
// workload back. The region reports which replicas are replaced. The ready replicas of v2 count for v2, and all
// ready replicas count for its share of the traffic.
//
// A region whose agent is of an earlier release cannot take over workloads. There, replicas are replaced one
// by one, and each stops before its successor starts. This takes as long and needs no more room, but the successors
// have another name.
//
// With strategy rolling, a version of a pool takes the pool over if at most one role differs, so that instances of the
// other roles stay. If two or more roles differ, it takes the pool over only if its update has an order other than
// coherent, because instances of the two versions serve each other meanwhile. The region replaces roles in that order.
// If a pool is taken over before all its instances are of the row's version, it may have instances of still earlier
// versions. Their roles must be replaced, too. So the row names the roles that move until another row takes the pool
// over.
//
// Two versions are made alike if they differ only in fields that instances do not see. Such a version takes over
// workloads under every strategy. Then nothing is replaced: a region has the new version completely or not at all, and
// goes back as fast.

// mayTransfer reports whether the region's agent can take over a workload.
func (f *facts) mayTransfer(region string) bool {
	return slices.Contains(f.regions[region].AgentFeatures, agentv1.Feature_FEATURE_IN_PLACE.String())
}

// joinWorkloads finds the rows whose workloads the region plan's version takes over. It counts a
// transferred workload only once.
//
// inPlace reports whether the strategy takes over every workload, and rolls whether it takes over pools with the same
// roles.
func (v *view) joinWorkloads(l *regionPlan, inPlace, rolls bool) {
	if v.mayTransfer(l.region) && l.to != nil && l.To.Assigned == 0 && l.Size > 0 && !v.hasTaken(l.row) {
		for i := len(l.from) - 1; i >= 0; i-- {
			t := l.from[i]
			// A transferred workload goes back in place, whatever the current policy is.
			back := l.row != nil && l.row.Transferred && t.WorkloadKey() == l.row.WorkloadKey()
			if t.Assigned() && t.Replicas > 0 && (inPlace && isOfEqualGroups(l.to, v.deps[t.DeploymentID]) || rolls && v.movesInPlace(l, t) || back || v.madeAlike(l.to, t)) {
				l.RegionPlan.From[i].Transfers = true
				break
			}
		}
	}
	if l.row == nil || !l.row.Assigned() {
		return
	}
	for i, t := range l.from {
		if t.Transferred && t.WorkloadKey() == l.row.WorkloadKey() {
			l.To.Existing = max(l.To.Existing, l.RegionPlan.From[i].Existing)
			l.RegionPlan.From[i].Existing = 0
		}
	}
	if took, serving, outdated := takenOver(*l.row, l.from, v.observedOf, v.deps[l.row.DeploymentID]); took {
		l.To.Serving, l.To.Outdated = serving, outdated
	}
}

// movesInPlace reports whether the region plan's version takes over the row's pool in the order of its update.
func (v *view) movesInPlace(l *regionPlan, t *model.Topology) bool {
	moving, same := movingRoles(v.facts, l.to, t)
	if hasOf(l.row, t) {
		moving, same = l.to.ChangedRoles(v.deps[t.DeploymentID]) // the version has already taken the pool over
	}
	return same && l.to.MovesInPlace(moving, v.regions[l.region].HasPoolOrders())
}

// movingRoles returns the names of the roles whose instances are replaced if d takes over the row's pool. A role is
// replaced if it differs between d and the row's version, or if the region may still run its instances of earlier
// versions. same is the second result of ChangedRoles.
func movingRoles(f *facts, d *model.Deployment, t *model.Topology) (moving []string, same bool) {
	changed, same := d.ChangedRoles(f.deps[t.DeploymentID])
	if !same {
		return nil, false
	}
	before := t.MovingRoles()
	for _, r := range d.Spec.GetRoles() {
		name := r.GetName()
		if slices.Contains(changed, name) || slices.Contains(before, name) && !t.HasMoved(name, f.observedOf(*t)) {
			moving = append(moving, name)
		}
	}
	return moving, true
}

// keepsRoles reports whether the region plan's version takes over a pool in which roles differ, or has done so.
func (v *view) keepsRoles(l *regionPlan) bool {
	for i, t := range l.from {
		if (l.RegionPlan.From[i].Transfers || hasOf(l.row, t)) && v.movesInPlace(l, t) {
			return true
		}
	}
	return false
}

// madeAlike reports whether the row's instances can serve as the deployment's instances without a change.
func (f *facts) madeAlike(d *model.Deployment, t *model.Topology) bool {
	o := f.deps[t.DeploymentID]
	return d != nil && o != nil && d.MadeAlike(o)
}

// keepInstances records whether the region plan's version takes over instances unchanged, or is about to. It then has
// all of the instances at once. Nothing waits for instances that did not serve before, because they show nothing about
// the version. Instances that fail later do count.
func (v *view) keepInstances(l *regionPlan) {
	oldAssigned := int32(0)
	for i, t := range l.from {
		if l.RegionPlan.From[i].Transfers || hasOf(l.row, t) {
			if l.keeps = v.madeAlike(l.to, t); !l.keeps {
				return
			}
		} else {
			oldAssigned += l.RegionPlan.From[i].Assigned
		}
	}
	if !l.keeps {
		return
	}
	l.Keep = 0 // the instances are taken over, so there are no other replicas to keep
	if l.Stop != nil {
		l.Stop = &strategy.Stop{Replicas: l.Size, Weight: strategy.Full, Whole: true}
	}
	if _, st := progressIn(v.progress, l.region); st != nil && leadsTarget(*st) {
		l.inherited = st.Inherited
	}
	if oldAssigned == 0 && l.inherited > 0 {
		l.Need = min(l.Need, l.inherited)
	}
	l.Acknowledged = l.Acknowledged && v.routedAs(l.region)
}

// isOfEqualGroups reports whether groups of both deployments have the same roles with the same numbers of instances.
// Otherwise a region could not replace a group in its place.
func isOfEqualGroups(a, b *model.Deployment) bool {
	return a != nil && b != nil && model.SameGroups(a.Spec, b.Spec)
}

func (f *facts) observedOf(t model.Topology) model.Observed {
	return f.observed[rowKey{t.DeploymentID, t.RegionID}]
}

// takenOver reports whether the row has taken over the workload of another row of its app. serving is how many replicas
// serve under the row's name, and outdated is how many of these are not of its deployment d yet. Until the region
// reports the replicas under the new row, they count under an old row.
func takenOver(t model.Topology, rows []*model.Topology, observed func(model.Topology) model.Observed, d *model.Deployment) (took bool, serving, outdated int32) {
	var before int32
	for _, o := range rows {
		if t.Assigned() && o.RegionID == t.RegionID && o.Transferred && o.WorkloadKey() == t.WorkloadKey() {
			took = true
			before = max(before, servingOf(observed(*o), d))
		}
	}
	// An agent that must wait before it may take the instances over reports none for the row.
	of := observed(t)
	counted := of.CountsGeneration >= t.Generation && of.AppliedGeneration >= t.Generation && of.Phase == int32(agentv1.AppliedState_PHASE_APPLIED)
	if before == 0 || counted {
		serving = min(servingOf(of, d), t.Replicas)
		return took, serving, max(0, serving-of.ReadyReplicas)
	}
	serving = min(before, t.Replicas)
	return took, serving, serving
}

// hasTaken reports whether the row already has the workload of another row.
func (f *facts) hasTaken(t *model.Topology) bool {
	return slices.ContainsFunc(f.rows, func(o *model.Topology) bool { return hasOf(t, o) })
}

// madeFor returns the deployments for which d's instances in the region were made: the deployments whose workload was
// transferred to it, and the deployment that started the workload.
func (f *facts) madeFor(d *model.Deployment, region string) (ids []string) {
	t := f.rowIn(d.ID, region)
	for _, o := range f.rows {
		if hasOf(t, o) && f.madeAlike(d, o) {
			ids = append(ids, o.DeploymentID)
		}
	}
	if len(ids) > 0 && t.WorkloadKey() != d.ID && !slices.Contains(ids, t.WorkloadKey()) {
		ids = append(ids, t.WorkloadKey())
	}
	return ids
}

// hasOf reports whether the row has the workload that the other row transferred.
func hasOf(t, other *model.Topology) bool {
	return t != nil && t.Assigned() && other.Transferred && other.RegionID == t.RegionID && other.WorkloadKey() == t.WorkloadKey()
}

// servingOf returns how many replicas serve, of any version. With several roles, this is the number of whole replicas
// for which each role has enough ready instances.
func servingOf(o model.Observed, d *model.Deployment) int32 {
	if ready, _, ok := o.Shares(); ok {
		return max(o.ReadyReplicas, ready)
	}
	if d != nil && len(d.Spec.GetRoles()) > 1 {
		_, roles := o.Counts()
		ready := map[string]int32{}
		for _, r := range roles {
			ready[r.GetRole()] = r.GetReady()
		}
		whole := o.Ready
		for _, r := range d.Spec.GetRoles() {
			whole = min(whole, ready[r.GetName()]/max(r.GetInstances(), 1))
		}
		return max(o.ReadyReplicas, whole)
	}
	return max(o.ReadyReplicas, o.Ready/instancesEach(d))
}

// Outdated returns how many replicas serve under the row's name, but are not of its
// deployment yet, because the row took them over from other rows of its app in the region.
// observed returns what regions reported about a row. d is the row's deployment.
func Outdated(t model.Topology, rows []model.Topology, observed func(model.Topology) model.Observed, d *model.Deployment) (outdated int32) {
	if took, _, n := takenOver(t, pointersTo(rows), observed, d); took {
		outdated = n
	}
	return outdated
}

// Serving returns how many replicas serve under the row's name, of any version. Replicas
// of a workload that the row took over count. Replicas of a workload that another row took over from
// this row do not count, whatever the region reported before. The parameters are those of Outdated.
func Serving(t model.Topology, rows []model.Topology, observed func(model.Topology) model.Observed, d *model.Deployment) int32 {
	all := pointersTo(rows)
	if t.Transferred && slices.ContainsFunc(all, func(o *model.Topology) bool { return hasOf(o, &t) }) {
		return 0
	}
	if took, serving, _ := takenOver(t, all, observed, d); took {
		return serving
	}
	return observed(t).ReadyReplicas
}

func pointersTo(rows []model.Topology) []*model.Topology {
	all := make([]*model.Topology, len(rows))
	for i := range rows {
		all[i] = &rows[i]
	}
	return all
}

// transferWorkload gives the row's workload to the successor, with the given replicas.
func (s *stager) transferWorkload(t, successor *model.Topology, replicas int32) {
	version := t.WorkloadVersion
	if t.Workload == "" {
		version = s.versionNumber(t.DeploymentID)
	}
	successor.Workload, successor.WorkloadVersion, successor.Transferred = t.WorkloadKey(), version, false
	if successor.Workload == successor.DeploymentID {
		successor.Workload, successor.WorkloadVersion = "", 0
	}
	if before, had := s.before[rowKey{successor.DeploymentID, successor.RegionID}]; had && successor.Generation == before.Generation {
		successor.Generation++
	}
	moving, _ := movingRoles(s.facts, s.deps[successor.DeploymentID], t)
	successor.Moving = model.EncodeMovingRoles(moving)
	successor.Replicas, successor.MaxUnavailable, successor.Roles = replicas, 0, t.Roles
	if _, n := regionBounds(s.progress, successor.RegionID, s.sizeOf(successor.DeploymentID, successor.RegionID)); n > 1 || n == 1 && successor.Roles != "" {
		successor.MaxUnavailable = n
	}
	t.Replicas, t.Transferred = 0, true
	t.Generation++
}

func (f *facts) versionNumber(deployment string) int32 {
	if d := f.deps[deployment]; d != nil {
		return d.Version
	}
	return 0
}

// beginWorkload gives a starting row a workload that no other row has. This is the row's own workload. If another
// row has that, it is that row's own workload, and so on.
func (p *planner) beginWorkload(t *model.Topology) {
	t.Workload, t.WorkloadVersion, t.Transferred, t.MaxUnavailable, t.Moving = "", 0, false, 0, ""
	t.Roles = poolCounts(p.facts, t)
	for holder := p.holderOf(t); holder != nil; holder = p.holderOf(t) {
		t.Workload, t.WorkloadVersion = holder.DeploymentID, p.versionNumber(holder.DeploymentID)
	}
}

// holderOf returns another row that has the workload that the row names, nil for none.
func (f *facts) holderOf(t *model.Topology) *model.Topology {
	for _, rows := range [][]*model.Topology{f.rows, f.otherLayer} {
		for _, o := range rows {
			if o.RegionID == t.RegionID && o.DeploymentID != t.DeploymentID && o.WorkloadKey() == t.WorkloadKey() &&
				!o.Transferred && o.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
				return o
			}
		}
	}
	return nil
}

// successorRow returns the index of the row whose workload the step takes over, -1 for none.
func (l *regionPlan) successorRow(s strategy.Targets) int {
	for i, f := range l.RegionPlan.From {
		if f.Transfers && f.Assigned > 0 && s.From[i] == 0 && l.To.Assigned == 0 && s.To == f.Assigned {
			return i
		}
	}
	return -1
}
