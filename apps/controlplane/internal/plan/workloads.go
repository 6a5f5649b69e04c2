package plan

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A workload is what a region runs under one name: the instances of one row. In place, a row takes over the workload
// of another row, with all replicas and their traffic:
//
//	v1  3 replicas, 100 %            ->  transferred: none, and the region should run none
//	v2  none                         ->  3 replicas of v1's workload, 100 %
//
// in one transaction, so that each instance has an owner at all times. The region then replaces
// the replicas that are not of v2, some at a time, and serves with the others meanwhile. The
// row that transferred stays, as the rows of every live version do: to go back is to take the
// workload back. The region reports which replicas are replaced: the ready ones of v2 count as
// v2's, and all of them for its share of the traffic.
//
// A region whose agent is of an earlier release cannot do so. There, replicas are replaced one
// by one, each stopped before its successor starts: no faster and no wider, only under another
// name.
//
// A version of a pool in which at most one role differs takes the pool over under the strategy rolling, so that
// instances of the other roles stay. If two roles differ, it does so only if its update names another order than
// coherent, because instances of the two versions serve each other meanwhile. The region replaces roles in that order.
// A pool that is taken over before all its instances are of the row's version may have instances of still earlier
// versions. Their roles count, too: so the row names the roles that move, until another row takes the pool over.
//
// A version that is made like the version before it differs only in what no instance sees. It takes over workloads
// under every strategy. Nothing is replaced then: a region has the whole new version, or nothing of it, and goes back
// as fast.

// mayTransfer reports whether the region's agent can take a workload over.
func (f *facts) mayTransfer(region string) bool {
	return slices.Contains(f.regions[region].AgentFeatures, agentv1.Feature_FEATURE_IN_PLACE.String())
}

// joinWorkloads finds the rows whose workloads go to the region plan's version, and counts a
// workload that was transferred only once.
//
// inPlace reports whether the strategy takes over every workload, and rolls whether it takes over pools with the same
// roles.
func (v *view) joinWorkloads(l *regionPlan, inPlace, rolls bool) {
	if v.mayTransfer(l.region) && l.to != nil && l.To.Assigned == 0 && l.Size > 0 && !v.hasTaken(l.row) {
		for i := len(l.from) - 1; i >= 0; i-- {
			t := l.from[i]
			// A workload that was transferred goes back in place, whatever the policy is by now.
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
		moving, same = l.to.ChangedRoles(v.deps[t.DeploymentID]) // it took the pool over already
	}
	return same && l.to.MovesInPlace(moving, v.regions[l.region].HasPoolOrders())
}

// movingRoles returns the names of the roles whose instances are replaced if d takes over the row's pool. A role is
// replaced if it differs between d and the row's version, or if the region may still run instances of it from earlier
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

// madeAlike reports whether the row's instances are the deployment's as they are.
func (f *facts) madeAlike(d *model.Deployment, t *model.Topology) bool {
	o := f.deps[t.DeploymentID]
	return d != nil && o != nil && d.MadeAlike(o)
}

// keepInstances notes whether the region plan's version takes over instances as they are, or is about to. It then has
// all of them at once. Nothing waits for instances that did not serve before, because they show nothing about the
// version. Instances that break later do.
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
	l.Keep = 0 // there is nothing else that could be kept
	if l.Stop != nil {
		l.Stop = &strategy.Stop{Replicas: l.Size, Weight: strategy.Full, Whole: true}
	}
	if _, st := progressIn(v.progress, l.region); st != nil && leads(*st) {
		l.inherited = st.Inherited
	}
	if oldAssigned == 0 && l.inherited > 0 {
		l.Need = min(l.Need, l.inherited)
	}
	l.Acknowledged = l.Acknowledged && v.routedAs(l.region)
}

// isOfEqualGroups reports whether groups of both deployments have the same roles and as many instances of each.
// Otherwise a region could not replace one by the other in its place.
func isOfEqualGroups(a, b *model.Deployment) bool {
	return a != nil && b != nil && model.SameGroups(a.Spec, b.Spec)
}

func (f *facts) observedOf(t model.Topology) model.Observed {
	return f.observed[rowKey{t.DeploymentID, t.RegionID}]
}

// takenOver reports whether the row has taken over the workload of others of its app's rows, how
// many replicas serve under its name, and how many of those are not yet of its deployment d.
// Until the region reports them under the new row they count under an old one.
func takenOver(t model.Topology, rows []*model.Topology, observed func(model.Topology) model.Observed, d *model.Deployment) (took bool, serving, outdated int32) {
	var before int32
	for _, o := range rows {
		if t.Assigned() && o.RegionID == t.RegionID && o.Transferred && o.WorkloadKey() == t.WorkloadKey() {
			took = true
			before = max(before, servingOf(observed(*o), d))
		}
	}
	// An agent that has to wait until it may go on with them reports none for the row.
	of := observed(t)
	counted := of.CountsGeneration >= t.Generation && of.AppliedGeneration >= t.Generation && of.Phase == int32(agentv1.AppliedState_PHASE_APPLIED)
	if before == 0 || counted {
		serving = min(servingOf(of, d), t.Replicas)
		return took, serving, max(0, serving-of.ReadyReplicas)
	}
	serving = min(before, t.Replicas)
	return took, serving, serving
}

// hasTaken reports whether the row has the workload of another one already.
func (f *facts) hasTaken(t *model.Topology) bool {
	return slices.ContainsFunc(f.rows, func(o *model.Topology) bool { return hasOf(t, o) })
}

// madeFor returns the deployments for which d's instances in the region were made: the deployments whose workload was
// transferred to it, and the one that started the workload.
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

// hasOf reports whether the row has the workload that the other one transferred.
func hasOf(t, other *model.Topology) bool {
	return t != nil && t.Assigned() && other.Transferred && other.RegionID == t.RegionID && other.WorkloadKey() == t.WorkloadKey()
}

// servingOf returns how many replicas serve, of whatever version they are.
//
// With several roles, as many replicas serve as the scarcest role has ready instances for.
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

// Outdated returns how many replicas serve under the row's name and are not yet of its
// deployment: those that it has taken over from others of the app's rows in its region.
// observed returns what regions reported of rows, and d is the row's deployment.
func Outdated(t model.Topology, rows []model.Topology, observed func(model.Topology) model.Observed, d *model.Deployment) (outdated int32) {
	if took, _, n := takenOver(t, pointers(rows), observed, d); took {
		outdated = n
	}
	return outdated
}

// Serving returns how many replicas serve under the row's name, of whichever version. Replicas
// of a workload that the row took over count. Those of a workload that another row took from
// it do not, whatever the region reported before. The parameters are those of Outdated.
func Serving(t model.Topology, rows []model.Topology, observed func(model.Topology) model.Observed, d *model.Deployment) int32 {
	all := pointers(rows)
	if t.Transferred && slices.ContainsFunc(all, func(o *model.Topology) bool { return hasOf(o, &t) }) {
		return 0
	}
	if took, serving, _ := takenOver(t, all, observed, d); took {
		return serving
	}
	return observed(t).ReadyReplicas
}

func pointers(rows []model.Topology) []*model.Topology {
	all := make([]*model.Topology, len(rows))
	for i := range rows {
		all[i] = &rows[i]
	}
	return all
}

// transfer gives the row's workload to the successor, with the given replicas.
func (s *stager) transfer(t, successor *model.Topology, replicas int32) {
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
	if _, n := regionBounds(s.progress, successor.RegionID, s.size(successor.DeploymentID, successor.RegionID)); n > 1 || n == 1 && successor.Roles != "" {
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

// beginWorkload gives a row that starts anew a workload that no other row has. This is its own workload. If another
// row has that, it is the one of that other row, and so on.
func (p *planner) beginWorkload(t *model.Topology) {
	t.Workload, t.WorkloadVersion, t.Transferred, t.MaxUnavailable, t.Moving = "", 0, false, 0, ""
	t.Roles = poolCounts(p.facts, t)
	for holder := p.holder(t); holder != nil; holder = p.holder(t) {
		t.Workload, t.WorkloadVersion = holder.DeploymentID, p.versionNumber(holder.DeploymentID)
	}
}

// holder returns another row that has the workload that the row names, nil for none.
func (f *facts) holder(t *model.Topology) *model.Topology {
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

// successor returns the index of the row from which the step takes the workload, -1 for none.
func (l *regionPlan) successor(s strategy.Targets) int {
	for i, f := range l.RegionPlan.From {
		if f.Transfers && f.Assigned > 0 && s.From[i] == 0 && l.To.Assigned == 0 && s.To == f.Assigned {
			return i
		}
	}
	return -1
}
