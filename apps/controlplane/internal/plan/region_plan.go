package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	"github.com/windlass-run/windlass/pkg/pool"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// regionPlan is a region in a staged rollout: the version that should have the region alone, and how far it is. This is
// the target once the region's turn has come, and the live version before. So going back needs no separate code.
type regionPlan struct {
	strategy.RegionPlan
	region string
	// to is nil if neither version belongs in the region: only the target has the region, and its turn has not come or
	// was withdrawn.
	to   *model.Deployment
	row  *model.Topology // row of to, nil before it has one
	from []*model.Topology
	// reportedReplicas is the number of replicas of the versions in from that the region reports.
	reportedReplicas int32
	// lost means that the region is out of reach, so its last reports decide nothing.
	lost bool
	// keeps means that to continues with instances of another version that are made alike. inherited is how many of these
	// replicas served when that began.
	keeps     bool
	inherited int32
}

// isRestored reports whether the region is as it should be when no rollout is in flight: the target has its replicas,
// and other versions have none. The replicas need not be ready, because the version was live before and may have
// failed already then.
func (l *regionPlan) isRestored() bool {
	if l.row != nil && l.row.Transferred {
		return false // the version must run again, even without replicas
	}
	if len(l.from) == 0 && l.To.Assigned == l.Size {
		return true // nothing ever started in this region, whatever it reports
	}
	if l.lost || !l.To.Known || l.To.Assigned != l.Size || l.To.Outdated > 0 {
		return false
	}
	for _, f := range l.RegionPlan.From {
		if !f.Known || f.Assigned > 0 {
			return false
		}
	}
	return l.to == nil || len(l.from) == 0 || l.To.Serving == 0 || l.Alone()
}

// makeRegionPlans makes the region plans of all regions that have rows or a size, sorted.
func (v *view) makeRegionPlans() []*regionPlan {
	regions := map[string]bool{}
	for _, t := range v.rows {
		if isRowActive(t) {
			regions[t.RegionID] = true
		}
	}
	for _, w := range v.progress.Waves {
		for _, r := range w.Regions {
			regions[r.RegionID] = true
		}
	}
	var regionPlans []*regionPlan
	for _, id := range sortedKeys(regions) {
		regionPlans = append(regionPlans, v.regionPlan(id))
	}
	return regionPlans
}

func (v *view) regionPlan(region string) *regionPlan {
	c := v.progress
	wave, st := progressIn(c, region)
	l := &regionPlan{region: region, lost: v.regions[region].Status != windlassv1.RegionStatus_REGION_STATUS_CONNECTED}
	forward := st != nil && !c.Back && leadsTarget(*st)
	older := v.olderIn(region)
	if forward {
		l.to = v.newerVersion()
	} else if v.isActive(older, region) {
		l.to = v.deps[older]
	}
	l.Size = 0
	if l.to != nil {
		l.Size = v.sizeOf(l.to.ID, region)
		l.Need = l.Size
		if m := l.to.Spec.GetMinReady(); m > 0 && m < l.Size {
			l.Need = m
		}
	}
	l.Surge, l.Unavailable = regionBounds(c, region, l.Size)
	if v.in.Closed[region] && !forward {
		// A region that goes back replaces replicas within the number that the live version had there.
		l.Surge, l.Unavailable = 0, max(1, l.Unavailable)
	}
	if forward && wave.State != windlassv1.WaveProgress_STATE_DONE {
		l.OldFloor, l.OldCeiling = oldBounds(c, region)
	}
	order := strategy.Of(c.Policy).Order()
	l.Recreate = order == strategy.StopFirst
	l.Hold = c.PausedAt != 0 && (st == nil || st.State != regionGoingBack)
	if st != nil && st.State == regionSkipped && !c.Back {
		l.Hold = true // it may have moved in part, and its turn comes again
	}
	if l.Closed = forward && v.in.Closed[region]; l.Closed {
		l.Hold = true
		if n := max(l.Size, v.sizeOf(older, region)); n > 0 {
			surge, _ := regionBounds(c, region, n)
			l.MaxReplicas = n + surge
		}
	}
	if forward {
		l.Stop = stopOf(c, *st, l.Size)
		if (wave.State != windlassv1.WaveProgress_STATE_DONE || retentionOf(c.Policy) > 0) && order != strategy.InPlace {
			l.Keep = v.sizeOf(older, region)
		}
	}
	l.Acknowledged = v.hasAcknowledged(region)
	l.To, l.Absent, l.LeavingKnown = strategy.Side{Known: true}, true, true
	for _, t := range v.rows {
		switch {
		case t.RegionID != region || t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED:
		case !isRowActive(t):
			s := v.sideOf(t)
			l.Leaving += s.Existing
			l.LeavingKnown = l.LeavingKnown && s.Known
		case l.to != nil && t.DeploymentID == l.to.ID:
			l.row, l.To, l.Absent = t, v.sideOf(t), false
		default:
			l.from = append(l.from, t)
		}
	}
	// A version that is not wanted any more stops before the version that a rollback needs.
	slices.SortStableFunc(l.from, func(a, b *model.Topology) int {
		return cmp.Compare(v.rankOf(a), v.rankOf(b))
	})
	for _, t := range l.from {
		s := v.sideOf(t)
		s.Withdrawn = v.isWithdrawn(t, st, forward)
		l.RegionPlan.From = append(l.RegionPlan.From, s)
		l.reportedReplicas += v.reportedReplicas(t)
	}
	v.joinWorkloads(l, order == strategy.InPlace && forward, forward && l.Stop == nil && order == strategy.Overlap)
	v.keepInstances(l)
	if v.keepsRoles(l) {
		l.Keep = 0 // the pool is taken over, so there are no other replicas to keep
	}
	if l.row != nil && !l.lost && v.lacksCapacity(l.row) {
		l.Unavailable = max(l.Unavailable, poolYield(v.facts, c.Policy, l.row))
	}
	return l
}

// isWithdrawn reports whether the row's version failed or was aborted, everywhere or in its
// region.
func (v *view) isWithdrawn(t *model.Topology, st *model.RegionProgress, forward bool) bool {
	if d := v.deps[t.DeploymentID]; d != nil && (d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED ||
		d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_STOPPED) {
		return true
	}
	newer := v.newerVersion()
	return newer != nil && t.DeploymentID == newer.ID && !forward && (v.progress.Back || st == nil || st.State != regionSkipped)
}

func (v *view) rankOf(t *model.Topology) int {
	switch {
	case t.DeploymentID == v.olderIn(t.RegionID):
		return 2
	case v.isKept(t):
		return 1
	}
	return 0
}

// sizeOf returns how many replicas of the deployment the region should have at the end of the rollout.
func (v *view) sizeOf(deployment, region string) int32 {
	sizes := v.progress.Sizes
	if deployment == v.olderIn(region) {
		sizes = v.progress.OldSizes
	}
	if n, ok := sizes[region]; ok {
		return n
	}
	for _, t := range v.rows {
		if t.DeploymentID == deployment && t.RegionID == region {
			return t.Replicas
		}
	}
	return 0
}

// sideOf returns the region's report of the row, in replicas.
func (v *view) sideOf(t *model.Topology) strategy.Side {
	pl := v.placeOf(t)
	o := pl.Observed
	s := strategy.Side{Assigned: t.Replicas, Weight: t.Weight, Existing: t.Replicas, Live: t.DeploymentID == v.olderIn(t.RegionID)}
	if !isRowActive(t) {
		s.Assigned = 0
	}
	counted := o.CountsGeneration >= t.Generation
	rejected := pl.Heard() && o.Phase == int32(agentv1.AppliedState_PHASE_REJECTED)
	s.Known = pl.Heard() && (counted || rejected)
	s.Serving = min(o.ReadyReplicas, s.Assigned)
	if s.Known && pl.Applied() && counted && !o.Deleted {
		s.Ready = s.Serving
	}
	if t.Transferred {
		s.Known = pl.Applied() && o.Deleted
	}
	if s.Known && (!isRowActive(t) || rejected && !o.Retryable) {
		// A row that was rejected for good will never run.
		s.Existing = 0
	}
	s.Existing = max(s.Existing, v.reportedReplicas(t))
	return s
}

// reportedReplicas returns how many replicas of the row the region reports, in any state.
func (f *facts) reportedReplicas(t *model.Topology) int32 {
	o := f.observed[rowKey{t.DeploymentID, t.RegionID}]
	groups, _ := o.Counts() // a group takes its whole room even if some of its instances have ended
	if d := f.deps[t.DeploymentID]; d != nil && model.IsPooled(d.Spec) {
		return groups // percent
	}
	each := instancesEach(f.deps[t.DeploymentID])
	return max(groups, (o.Instances()+each-1)/each)
}

// instancesEach returns the number of instances of a replica.
func instancesEach(d *model.Deployment) int32 {
	if d == nil {
		return 1
	}
	return model.InstancesEach(d.Spec)
}

// instancesOf returns the number of instances of the row's replicas.
func instancesOf(d *model.Deployment, t model.Topology) int32 {
	if d == nil {
		return t.Replicas
	}
	return model.Instances(t.In(d.Spec), t.Replicas)
}

// moveRegions makes the next change in each region that is in reach.
func (s *stager) moveRegions() {
	for _, l := range s.makeRegionPlans() {
		if !l.lost {
			s.moveRegion(l)
		}
	}
}

func (s *stager) moveRegion(l *regionPlan) {
	_, st := progressIn(s.progress, l.region)
	next := strategy.Next(l.RegionPlan)
	if st != nil && st.Emptied && !s.progress.Back {
		next = strategy.Next(s.withoutNewer(l))
	}
	begins := l.row == nil && l.to != nil && !s.progress.Back && st != nil && leadsTarget(*st) && !l.Hold
	// If the row got another workload before the region has released the transferred one, the transferred instances
	// would have no owner when the region applies this row before its successor.
	reclaims := l.row != nil && l.row.Transferred && l.To.Known && !l.Hold && next.To == 0
	moves, shares := begins || reclaims || next.To != l.To.Assigned, next.ToWeight != l.To.Weight
	for i, f := range l.RegionPlan.From {
		moves = moves || next.From[i] != f.Assigned
		shares = shares || next.FromWeights[i] != f.Weight
	}
	if !moves && !shares || !s.p.isWritable(l.region) {
		return
	}
	var parts []string
	tell := func(t *model.Topology, from, to int32) {
		if from != to {
			parts = append(parts, fmt.Sprintf("%s %d -> %d", s.versionOf(t.DeploymentID), from, to))
		}
	}
	switch {
	case begins:
		s.p.assignRow(l.to, l.region, next.To)
		parts = append(parts, fmt.Sprintf("%s 0 -> %d", s.versionOf(l.to.ID), next.To))
		if i := l.successorRow(next); i >= 0 {
			s.transferWorkload(l.from[i], s.rowIn(l.to.ID, l.region), next.To)
			s.p.giveWeight(s.rowIn(l.to.ID, l.region), next.ToWeight)
		}
	case l.row != nil && l.successorRow(next) >= 0:
		tell(l.row, l.To.Assigned, next.To)
		s.transferWorkload(l.from[l.successorRow(next)], l.row, next.To)
		s.p.giveWeight(l.row, next.ToWeight)
	case reclaims:
		s.p.beginWorkload(l.row)
		l.row.Generation++
		s.p.giveWeight(l.row, next.ToWeight)
	case l.row != nil:
		tell(l.row, l.To.Assigned, next.To)
		s.p.setReplicas(l.row, next.To)
		s.p.giveWeight(l.row, next.ToWeight)
	}
	for i, t := range l.from {
		tell(t, l.RegionPlan.From[i].Assigned, next.From[i])
		s.p.setReplicas(t, next.From[i])
		s.p.giveWeight(t, next.FromWeights[i])
	}
	if i := l.successorRow(next); i >= 0 {
		what := "and the region replaces them in their places"
		if u := l.to.Spec.GetUpdate(); u.GetOrder() != windlassv1.PoolUpdate_ORDER_UNSPECIFIED && s.regions[l.region].HasPoolOrders() {
			what += ", in order " + pool.OrderName(u)
		}
		if l.keeps && st != nil {
			st.Inherited = l.RegionPlan.From[i].Serving
		}
		if l.keeps {
			what = "which stay as they are: nothing that instances see differs"
		}
		s.log("InstancesTakenOver", fmt.Sprintf("%s goes on with the instances of %s, %s; %s; %s",
			s.versionOf(l.to.ID), s.versionOf(l.from[i].DeploymentID), what, strings.Join(parts, ", "), s.figuresText(l)), l.to, l.region)
		return
	}
	if len(parts) > 0 {
		s.log("ReplicasMoved", strings.Join(parts, ", ")+"; "+s.figuresText(l), l.to, l.region)
	}
}

// setReplicas sets the replicas that the row's region runs to n.
func (p *planner) setReplicas(t *model.Topology, n int32) {
	if t.Replicas == n {
		return
	}
	t.Replicas = n
	t.Generation++
	if t.Transferred && n > 0 {
		p.beginWorkload(t)
	}
}

// giveWeight sets the row's share of the traffic. setWeights makes the route from it.
func (p *planner) giveWeight(t *model.Topology, weight int32) {
	p.shares[rowKey{t.DeploymentID, t.RegionID}] = weight
	if weight > 0 && t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING {
		t.Status = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
	}
}

// figuresText describes the counts on which a step is based: "ready: v1 3 of 3, v2 1 of 1; wanted: 3". Counts of a pool are
// percent.
func (f *facts) figuresText(l *regionPlan) string {
	var parts []string
	for i, t := range l.from {
		parts = append(parts, fmt.Sprintf("%s %d of %d%s", f.versionOf(t.DeploymentID), l.RegionPlan.From[i].Serving, l.RegionPlan.From[i].Assigned, l.unitText()))
	}
	if l.row != nil {
		parts = append(parts, fmt.Sprintf("%s %s", f.versionOf(l.row.DeploymentID), l.readyText(l.To.Assigned)))
	}
	if len(parts) == 0 {
		return fmt.Sprintf("wanted: %d%s", l.Size, l.unitText())
	}
	return fmt.Sprintf("ready: %s; wanted: %d%s", strings.Join(parts, ", "), l.Size, l.unitText())
}

// readyText describes how many of the version's replicas are ready, and how many replicas of other versions serve in their
// place: "1 of 3 and 2 to be replaced", or "1 of 3 and 2 to be kept".
func (l *regionPlan) readyText(of int32) string {
	text := fmt.Sprintf("%d of %d%s", l.To.Serving-l.To.Outdated, of, l.unitText())
	if l.To.Outdated > 0 {
		text += " and " + l.outdatedText()
	}
	return text
}

// unitText returns the text after a number of replicas: a percent sign for a pool, else "".
func (l *regionPlan) unitText() string {
	if l.isPooled() {
		return "%"
	}
	return ""
}

// outdatedText describes what happens to the replicas of other versions that serve in place of the version's own.
func (l *regionPlan) outdatedText() string {
	n := fmt.Sprint(l.To.Outdated) + l.unitText()
	if l.keeps {
		return n + " to be kept"
	}
	return n + " to be replaced"
}

func (f *facts) versionOf(deployment string) string {
	if d := f.deps[deployment]; d != nil {
		return fmt.Sprintf("v%d", d.Version)
	}
	return deployment
}

// logShares adds to the history where traffic goes, region by region.
func (p *planner) logShares() {
	for _, region := range sortedKeys(p.routes) {
		if p.routes[region].Generation == p.routesWas[region].Generation {
			continue
		}
		var parts []string
		for _, t := range trafficOf(p.facts, region) {
			parts = append(parts, fmt.Sprintf("%s %d %%", p.versionOf(t.DeploymentID), t.Weight))
		}
		switch {
		case len(parts) > 0:
		case len(p.routes[region].Hosts) > 0:
			p.log("NoTraffic", noTraffic, nil, region)
			continue
		default:
			p.log("RoutesRemoved", "nothing should serve there", nil, region)
			continue
		}
		s := p.main()
		if b := p.progress.LaggingIn(region); b != nil && p.mustCatchUp() {
			s = p.stagerOf(b)
		}
		s.log("WeightsSet", fmt.Sprintf("%s, as route generation %d; %s",
			strings.Join(parts, ", "), p.routes[region].Generation, s.figuresText(s.regionPlan(region))), s.newerVersion(), region)
	}
}
