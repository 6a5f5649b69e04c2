package fleettest

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane"
	"github.com/windlass-run/windlass/pkg/pool"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// spotted is an instance and the place where it was seen.
type spotted struct {
	instance string
	place    place
}

// checker checks every commit against the promises, and against what the executors really did.
//
// At every commit:
//
//   - Feeds have no hole and never go back.
//   - Generations, fences and sequences never go back.
//   - A stored report is from the region's present session.
//   - Every workload that is said to be applied, removed or ready really was.
//   - The live deployment is not stopped. Its successor was ready and acknowledged in every region.
//   - Nothing is stopped before its region has acknowledged routes without it.
//   - Only the scaler changes the replicas of a scaled app.
//
// All the time:
//
//   - An app that serves keeps serving.
//
// After all faults are mended:
//
//   - Every rollout has ended.
//   - The wanted instances run: no more, no fewer, none twice, and no orphan.
//   - Stable slots count from 0 without gaps, and no slot has two instances.
//   - Every place has the newest generation.
//   - The database lists exactly the running instances.
//   - Acknowledged deployments exist.
//
// A restored database is another history: promises about the earlier history end with it.
type checker struct {
	w       *fleet
	history *history

	mu   sync.Mutex
	rows *mirror
	// These fields record what the executors did. They are kept when the database is restored.
	applied map[place]int64 // highest generation
	removed map[place]bool
	ready   map[spotted]bool // instances that were ever ready: one entry for each deployment that had the instance, and one without a deployment
	count   map[place]int    // of ready
	serving map[place]bool   // (region, app) that has served
	// decisions are the replicas that the scaler wrote last, by region id and app.
	decisions map[place]int32
	// sawRoutes is whether a region has served routes. sawScaling counts changes of replicas by the scaler.
	// sawPools, sawSlots and sawPairs count versions of pools, with stable slots and with pairing that went live in a
	// region. sawRaises counts adopted raises of regions that were cut off.
	sawRoutes  bool
	sawScaling int
	sawPools   int
	sawSlots   int
	sawPairs   int
	sawRaises  int

	acknowledged map[string]string // apps by the deployments that users got in answers
	wasRestored  bool
	violations   []string
	kinds        map[string]bool
}

// mirror is a copy of the database, made from its commits.
type mirror struct {
	names         map[string]string // of regions, by id
	regions       map[string]session
	heads         map[string]head
	apps          map[string]appRow
	deployments   map[string]deploymentRow
	rollouts      map[string]windlassv1.RolloutStatus
	topology      map[place]topologyRow // by region id, as all below
	routes        map[place]int64       // (region, app): generation
	observed      map[place]observedRow
	routeObserved map[place]acknowledged
	instances     map[string]instanceRow
}

type (
	session struct {
		fence, sequence int64
		unreachable     bool
	}
	head   struct{ epoch, revision int64 }
	appRow struct {
		name, live        string
		deleting, deleted bool
		rollout           string
		status            windlassv1.AppStatus
	}
	deploymentRow struct {
		app     string
		readyAt int64
		each    int32 // instances of a replica
		pooled  bool  // a replica is one percent of the pool
		paired  bool
		stable  []string // names of the roles with stable slots
	}
	topologyRow struct {
		app              string
		status           windlassv1.TopologyStatus
		generation       int64
		replicas, weight int32
		roles            map[string]int32 // of the whole pool
	}
	observedRow struct {
		guard             int64
		epoch, generation int64
		phase             int32
		deleted           bool
		ready             int32
	}
	acknowledged struct{ guard, epoch, generation int64 }
	instanceRow  struct {
		place  place
		status windlassv1.InstanceStatus
		guard  int64
		at     slot
	}
	// slot is the place of an instance within its deployment.
	slot struct {
		role         string
		group, index int32
	}
)

func newMirror() *mirror {
	return &mirror{
		names: map[string]string{}, regions: map[string]session{}, heads: map[string]head{}, apps: map[string]appRow{},
		deployments: map[string]deploymentRow{}, rollouts: map[string]windlassv1.RolloutStatus{}, topology: map[place]topologyRow{},
		routes: map[place]int64{}, observed: map[place]observedRow{}, routeObserved: map[place]acknowledged{}, instances: map[string]instanceRow{},
	}
}

func (m *mirror) clone() *mirror {
	return &mirror{
		names: maps.Clone(m.names), regions: maps.Clone(m.regions), heads: maps.Clone(m.heads), apps: maps.Clone(m.apps),
		deployments: maps.Clone(m.deployments), rollouts: maps.Clone(m.rollouts), topology: maps.Clone(m.topology),
		routes: maps.Clone(m.routes), observed: maps.Clone(m.observed), routeObserved: maps.Clone(m.routeObserved), instances: maps.Clone(m.instances),
	}
}

func newChecker(w *fleet) *checker {
	return &checker{
		w: w, history: &history{begin: time.Now()}, rows: newMirror(),
		applied: map[place]int64{}, removed: map[place]bool{}, ready: map[spotted]bool{}, count: map[place]int{}, serving: map[place]bool{}, decisions: map[place]int32{},
		acknowledged: map[string]string{}, kinds: map[string]bool{},
	}
}

// violatef records a violation with its history, if it is the first of its kind.
func (c *checker) violatef(kind string, p place, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violateLockedf(kind, "", p, format, args...)
}

func (c *checker) violateLockedf(kind, app string, p place, format string, args ...any) {
	if c.kinds[kind] || c.w.ended.Load() {
		return
	}
	c.kinds[kind] = true
	at := time.Since(c.history.begin).Seconds()
	c.violations = append(c.violations, fmt.Sprintf("%s, at %.3fs: %s\n%s", kind, at, fmt.Sprintf(format, args...), c.history.about(app, p)))
}

func (c *checker) broken() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.violations...)
}

func (c *checker) acknowledge(deployment, app string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acknowledged[deployment] = app
}

func (c *checker) mirrored() *mirror {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rows.clone()
}

// restored records that the database now has these earlier rows.
func (c *checker) restored(rows *mirror) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows, c.wasRestored = rows.clone(), true
	clear(c.acknowledged)
	clear(c.serving)
	clear(c.decisions)
}

// The executors of the regions call onApplied, onRemoved and onReady.
func (c *checker) onApplied(r *region, deployment string, generation int64) {
	c.w.trace.addf("%s applies %s generation %d", r.name, deployment, generation)
	p := place{r.name, deployment}
	c.history.add(event{region: r.name, deployment: deployment, text: fmt.Sprintf("the agent applies generation %d", generation)})
	c.mu.Lock()
	defer c.mu.Unlock()
	if before := c.applied[p]; generation < before && !c.wasRestored {
		c.violateLockedf("a generation went back", "", p, "the agent applies %d after %d", generation, before)
	}
	c.applied[p] = max(c.applied[p], generation)
	c.removed[p] = false
}

func (c *checker) onRemoved(r *region, deployment string) {
	c.w.trace.addf("%s removes %s", r.name, deployment)
	p := place{r.name, deployment}
	c.history.add(event{region: r.name, deployment: deployment, text: "the agent removes it"})
	routes := r.routes()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removed[p] = true
	if c.wasRestored {
		return
	}
	for app, targets := range routes {
		for _, target := range targets {
			if target == deployment {
				c.violateLockedf("a deployment that has traffic is stopped", "", p, "%s is routed to by %s", deployment, app)
			}
		}
	}
}

func (c *checker) onReady(r *region, deployment, instance string) {
	c.w.trace.addf("%s ready %s %s", r.name, deployment, instance)
	p := place{r.name, deployment}
	c.history.add(event{region: r.name, deployment: deployment, text: "instance " + instance + " is ready"})
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := (spotted{instance, p}); !c.ready[i] {
		c.ready[i], c.ready[spotted{instance, place{region: r.name}}] = true, true
		c.count[p]++
	}
}

// routes returns the deployments that the region routes to, by app.
func (r *region) routes() map[string][]string {
	r.mu.Lock()
	served := r.served
	r.mu.Unlock()
	return served.targets()
}

// watch checks that every app that has served keeps serving, until the fleet ends.
func (c *checker) watch() {
	for sleep(c.w.ctx, time.Second) == nil {
		for _, r := range c.w.regions {
			c.serves(r)
		}
	}
}

func (c *checker) serves(r *region) {
	routes, ready := r.routes(), r.runtime.Ready()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sawRoutes = c.sawRoutes || len(routes) > 0
	for id, a := range c.rows.apps {
		if len(a.name) < 5 || a.name[:5] != "fixed" {
			continue
		}
		n := 0
		for _, target := range routes[id] {
			n += len(ready[target])
		}
		p := place{r.name, id}
		switch {
		case n > 0 && a.live != "":
			c.serving[p] = true
		case n == 0 && c.serving[p] && !c.wasRestored:
			c.violateLockedf("an app no longer serves", a.name, place{region: r.name}, "%s in %s is routed to %v, which have no ready instance", a.name, r.name, routes[id])
		}
	}
}

const (
	phaseApplied = int32(agentv1.AppliedState_PHASE_APPLIED)
	fenceShift   = 40 // of a guard: fence<<40 | sequence
)

// onWrite is called for every commit, in order.
func (c *checker) onWrite(wrote controlplane.MemoryWrite) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.rows
	for _, r := range wrote.Regions {
		was, ok := m.regions[r.ID]
		now := session{r.SessionFence, r.SessionSequence, r.Status != windlassv1.RegionStatus_REGION_STATUS_CONNECTED}
		if ok && (now.fence < was.fence || now.fence == was.fence && now.sequence < was.sequence) {
			c.violateLockedf("a session went back", "", place{region: r.Name}, "from fence %d at %d to fence %d at %d", was.fence, was.sequence, now.fence, now.sequence)
		}
		if ok && now.fence != was.fence {
			c.history.add(event{region: r.Name, part: "session", text: fmt.Sprintf("fence %d", now.fence)})
		}
		m.regions[r.ID], m.names[r.ID] = now, r.Name
	}
	for _, ch := range wrote.Changes {
		h := m.heads[ch.RegionID]
		if ch.Revision != h.revision+1 {
			c.violateLockedf("a feed has a hole", "", place{region: m.names[ch.RegionID]}, "revision %d follows %d", ch.Revision, h.revision)
		}
		h.revision = ch.Revision
		m.heads[ch.RegionID] = h
	}
	for _, h := range wrote.Heads {
		if was := m.heads[h.RegionID]; h.Epoch < was.epoch || h.Revision < was.revision {
			c.violateLockedf("a revision went back", "", place{region: m.names[h.RegionID]}, "from %d of epoch %d to %d of epoch %d", was.revision, was.epoch, h.Revision, h.Epoch)
		}
		m.heads[h.RegionID] = head{h.Epoch, h.Revision}
	}
	for _, d := range wrote.Deployments {
		row := deploymentRow{
			app: d.AppID, readyAt: d.ReadyAt, each: instancesEach(d.Spec), pooled: d.Spec.GetLayout() == windlassv1.Layout_LAYOUT_POOLED, paired: d.Spec.GetPairing() != nil,
		}
		for _, r := range d.Spec.GetRoles() {
			if r.GetSlots() == windlassv1.RoleSpec_SLOTS_STABLE {
				row.stable = append(row.stable, r.GetName())
			}
		}
		m.deployments[d.ID] = row
	}
	for _, r := range wrote.Routes {
		p := place{r.RegionID, r.AppID}
		if r.Generation < m.routes[p] {
			c.violateLockedf("a route's generation went back", "", place{region: m.names[r.RegionID]}, "from %d to %d", m.routes[p], r.Generation)
		}
		m.routes[p] = r.Generation
	}
	c.reports(wrote)
	c.decided(wrote)
	was := maps.Clone(m.topology)
	for _, t := range wrote.Topology {
		m.topology[place{t.RegionID, t.DeploymentID}] = topologyRow{t.AppID, t.Status, t.Generation, t.Replicas, t.Weight, t.RoleCounts()}
	}
	for _, t := range wrote.Topology {
		c.placed(was[place{t.RegionID, t.DeploymentID}], place{t.RegionID, t.DeploymentID})
	}
	for _, a := range wrote.Apps {
		before := m.apps[a.ID]
		now := appRow{a.Name, a.LiveDeploymentID, a.DeletingSince != 0, a.DeletedAt != 0, a.RolloutID, a.Status}
		m.apps[a.ID] = now
		if now.live != before.live && now.live != "" {
			c.history.add(event{app: a.Name, part: "app", text: "live is now " + now.live})
			c.succeeded(a.ID, now)
		}
	}
	for _, t := range wrote.Topology {
		c.kept(t.AppID)
	}
	for _, r := range wrote.Rollouts {
		before := m.rollouts[r.ID]
		if before > windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING && r.Status != before {
			c.violateLockedf("a rollout that ended goes on", m.apps[r.AppID].name, place{}, "%s was %s and is %s", r.ID, before, r.Status)
		}
		if before != r.Status {
			c.history.add(event{app: m.apps[r.AppID].name, part: "rollout", deployment: r.DeploymentID, text: r.Status.String() + " " + r.Reason})
		}
		m.rollouts[r.ID] = r.Status
	}
}

// reports checks reports of agents against what the agents did, and against their earlier reports.
func (c *checker) reports(wrote controlplane.MemoryWrite) {
	m := c.rows
	fenced := func(p place, before, guard int64) {
		switch fence := guard >> fenceShift; {
		case guard < before:
			c.violateLockedf("a stale report overwrote a newer one", "", place{m.names[p.region], p.deployment}, "%d.%d over %d.%d", fence, guard&(1<<fenceShift-1), before>>fenceShift, before&(1<<fenceShift-1))
		case guard > before && fence != m.regions[p.region].fence:
			c.violateLockedf("a report of a fenced session was taken", "", place{m.names[p.region], p.deployment}, "of fence %d, the region's is %d", fence, m.regions[p.region].fence)
		}
	}
	for _, o := range wrote.Observed {
		p := place{o.RegionID, o.DeploymentID}
		spot := place{m.names[o.RegionID], o.DeploymentID}
		before := m.observed[p]
		now := observedRow{int64(o.Guard), o.AppliedEpoch, o.AppliedGeneration, o.Phase, o.Deleted, o.ReadyReplicas}
		fenced(p, before.guard, now.guard)
		switch {
		case now.phase == phaseApplied && !now.deleted && c.applied[spot] < now.generation:
			c.violateLockedf("a generation that was never applied is said to be applied", "", spot, "generation %d, and the executor got at most %d", now.generation, c.applied[spot])
		case now.phase == phaseApplied && now.deleted && !before.deleted && c.applied[spot] > 0 && !c.removed[spot] && !c.wasRestored:
			c.violateLockedf("a workload that was never removed is said to be removed", "", spot, "generation %d", now.generation)
		case int(now.ready) > c.count[spot] && (c.count[spot] == 0 || !m.deployments[p.deployment].takesOver()):
			c.violateLockedf("replicas that were never ready are said to be ready", "", spot, "%d are, and %d ever were", now.ready, c.count[spot])
		}
		m.observed[p] = now
	}
	for _, o := range wrote.RouteObserved {
		p := place{o.RegionID, o.AppID}
		before := m.routeObserved[p]
		now := acknowledged{int64(o.Guard), o.Epoch, o.Generation}
		fenced(place{region: p.region}, before.guard, now.guard)
		m.routeObserved[p] = now
	}
	for _, i := range wrote.Instances {
		p := place{i.RegionID, i.DeploymentID}
		before := m.instances[i.ID]
		fenced(p, before.guard, int64(i.Guard))
		spot := place{m.names[i.RegionID], i.DeploymentID}
		was := c.ready[spotted{i.ID, spot}]
		if m.deployments[i.DeploymentID].takesOver() {
			// The version that takes over instances has all of them, even instances that it still has to replace.
			was = was || c.ready[spotted{i.ID, place{region: spot.region}}]
		}
		if i.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY && !was {
			c.violateLockedf("an instance that was never ready is said to be ready", "", spot, "instance %s", i.ID)
		}
		m.instances[i.ID] = instanceRow{p, i.Status, int64(i.Guard), slot{i.Role, i.Group, i.Slot}}
	}
}

// acked reports whether the region acknowledged the app's newest routes, or never had routes of the app.
func (c *checker) acked(region, app string) bool {
	p := place{region, app}
	want, had := c.rows.routes[p]
	got := c.rows.routeObserved[p]
	return !had || got.epoch == c.rows.heads[region].epoch && got.generation >= want
}

// placed checks a place's new row against its earlier row.
func (c *checker) placed(before topologyRow, p place) {
	m := c.rows
	now := m.topology[p]
	spot := place{m.names[p.region], p.deployment}
	app := m.apps[now.app].name
	if now.generation < before.generation {
		c.violateLockedf("a generation went back", app, spot, "in the database, from %d to %d", before.generation, now.generation)
	}
	if now.status == before.status {
		return
	}
	c.history.add(event{app: app, part: "place", region: spot.region, deployment: spot.deployment, text: now.status.String()})
	switch now.status {
	case windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING:
		// A deletion does not wait for an unreachable region, because the region applies routes before
		// deletions when it returns.
		deleting := m.apps[now.app].deleting && m.regions[p.region].unreachable
		if now.weight != 0 || !deleting && !c.acked(p.region, now.app) {
			c.violateLockedf("a place is stopped before its region acknowledged routes without it", app, spot, "its weight is %d", now.weight)
		}
	case windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED:
		if o := m.observed[p]; !o.deleted || o.generation < before.generation {
			c.violateLockedf("a place is said to be stopped before its region said so", app, spot, "the region removed generation %d (%v), it is %d", o.generation, o.deleted, before.generation)
		}
	default:
	}
}

// succeeded checks an app's new live deployment against what its regions did.
func (c *checker) succeeded(id string, a appRow) {
	m := c.rows
	for p, t := range m.topology {
		if p.deployment != a.live || t.status >= windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING {
			continue
		}
		spot := place{m.names[p.region], p.deployment}
		if m.deployments[p.deployment].pooled {
			c.sawPools++
		}
		if len(m.deployments[p.deployment].stable) > 0 {
			c.sawSlots++
		}
		if m.deployments[p.deployment].paired {
			c.sawPairs++
		}
		if all := t.instances(m.deployments[p.deployment]); c.count[spot] < int(all) {
			c.violateLockedf("a deployment that was not ready went live", a.name, spot, "%d of %d instances ever were", c.count[spot], all)
		}
		if !c.acked(p.region, id) {
			c.violateLockedf("a deployment that was not acknowledged everywhere went live", a.name, spot, "routes %d of %d", m.routeObserved[place{p.region, id}].generation, m.routes[place{p.region, id}])
		}
	}
}

// kept checks that the app's live deployment is not stopped.
func (c *checker) kept(id string) {
	a := c.rows.apps[id]
	if a.live == "" || a.deleting || a.deleted {
		return
	}
	for p, t := range c.rows.topology {
		if p.deployment == a.live && t.status >= windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING {
			c.violateLockedf("the live deployment is stopped", a.name, place{c.rows.names[p.region], p.deployment}, "it is %s", t.status)
		}
	}
}

// takesOver reports whether the version may take over the instances of another one.
func (d deploymentRow) takesOver() bool { return d.pooled || len(d.stable) > 0 }

// instances returns how many instances the row asks for.
func (t topologyRow) instances(d deploymentRow) (n int32) {
	if !d.pooled {
		return t.replicas * d.each
	}
	for _, whole := range t.roles {
		n += int32(pool.Units(int(t.replicas), int(whole)))
	}
	return n
}

// instancesEach returns how many instances make a replica of the spec.
func instancesEach(spec *windlassv1.DeploymentSpec) int32 {
	var n int32
	for _, r := range spec.GetRoles() {
		n += max(r.GetInstances(), 1)
	}
	return max(n, 1)
}
