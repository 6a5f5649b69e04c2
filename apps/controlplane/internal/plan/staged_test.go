package plan

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/pool"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// stagedSimulation has what really runs, in addition to what is reported: agents that apply changes late, replicas that
// come and go at random, and routes as regions serve them. The rules apply to what really runs, whatever the planner
// knew.
type stagedSimulation struct {
	*simulation
	t    *rapid.T
	runs map[rowKey]*running
	// routes has the deployments to which traffic goes, by region.
	routes map[string][]string
	bad    map[string]bool // versions that crash
	poor   map[string]bool // versions whose figures are bad
	// zeroed means that people scaled the app to 0, which stops replicas with traffic. emptied has regions in which a
	// rollout wanted 0 replicas, which does the same.
	zeroed  bool
	emptied map[string]bool
	// pool means that the app's layout is pooled.
	pool bool
	// restored is a retained version that was made live again.
	restored string
	// most has the number of replicas that existed before the last event, by region.
	most map[string]int32
	// resized has regions that were resized while they lagged.
	resized map[string]bool
	// may is the number of replicas that may exist since a plan last started some, by region.
	may    map[string]int32
	agreed agreed
	// moved is the number of replicas that plans started or stopped, by region.
	moved map[string]int32
}

type running struct {
	generation, epoch      int64
	assigned               int32
	gone                   bool
	ready, other, draining int32 // replicas
	failed                 bool
	// workload is the key of the row's workload. taken has its serving replicas of other versions.
	workload string
	taken    map[string]int32
}

func (r *running) existing() int32 { return r.ready + r.other + r.draining + r.outdated() }

// pull makes the region's agent apply the current row. If the row has fewer replicas, the agent first stops
// replicas that are not ready.
func (f *stagedSimulation) pull(key rowKey) {
	row, ok := f.rows[key]
	if !ok {
		return
	}
	r := f.runs[key]
	if r == nil {
		r = &running{}
		f.runs[key] = r
	}
	if f.awaitsSuccessor(row) {
		return
	}
	assigned := row.Replicas
	if r.gone = !row.Assigned(); r.gone {
		assigned = 0
	} else if r.workload != row.WorkloadKey() {
		f.adopt(key, row.WorkloadKey())
	}
	if assigned == 0 && r.ready > 0 && row.Weight == 0 && !f.zeroed && !f.emptied[key.region] {
		require.NotContains(f.t, f.routes[key.region], key.deployment, "%s is stopped in %s, where traffic goes to it", key.deployment, key.region)
	}
	grows := assigned > r.ready+r.other+r.outdated()
	f.moved[key.region] += max(assigned-r.existing(), r.existing()-assigned)
	if over := r.ready + r.other + r.outdated() - assigned; over > 0 {
		idle := min(over, r.other)
		older := min(over-idle, r.outdated())
		r.other -= idle
		r.stop(older)
		r.ready -= over - idle - older
		r.draining += over
	} else {
		r.other -= over
	}
	r.assigned, r.generation, r.epoch = assigned, row.Generation, f.regs[key.region].SessionEpoch
	if grows && !f.isPinned(key) {
		f.requireBelowCeiling(key.region)
	}
}

func (f *stagedSimulation) requireBelowCeiling(region string) {
	var exist int32
	for key, r := range f.runs {
		if key.region == region && !f.isPinned(key) {
			exist += r.existing()
		}
	}
	require.LessOrEqual(f.t, exist, max(f.may[region], f.most[region]), "replicas exist in %s", region)
}

// step plans once, and records how many replicas may exist in regions in which the plan starts some.
func (f *stagedSimulation) step() Output {
	staged := f.rolloutState.Progress.Active(f.app.RolloutID)
	before, behind, live := maps.Clone(f.rows), f.rolloutState.Progress.Clone(), f.app.LiveDeploymentID
	out := f.simulation.step()
	if c := f.rolloutState.Progress; c.Active(f.app.RolloutID) {
		for region, n := range c.Sizes {
			f.emptied[region] = f.emptied[region] || n == 0
		}
	}
	f.requireAgreed(behind, before, live)
	if f.app.LiveDeploymentID != live {
		f.requireServes(f.app.LiveDeploymentID)
	}
	for _, row := range out.Topology {
		was := before[rowKey{row.DeploymentID, row.RegionID}]
		require.False(f.t, row.DeploymentID == f.restored && f.app.RolloutID == "" && row.Replicas != was.Replicas,
			"the retained version should start something")
		if !isRowActive(&was) {
			was.Replicas = 0
		}
		if row.Replicas <= was.Replicas || !isRowActive(&row) || f.isPinned(rowKey{row.DeploymentID, row.RegionID}) {
			continue
		}
		if slices.ContainsFunc(out.Topology, func(t model.Topology) bool {
			from := before[rowKey{t.DeploymentID, t.RegionID}]
			return t.RegionID == row.RegionID && t.Transferred && !from.Transferred && t.WorkloadKey() == row.WorkloadKey() && row.Replicas <= from.Replicas
		}) {
			continue // the row continues with replicas that an earlier plan started
		}
		f.may[row.RegionID] = 1000
		if staged {
			f.may[row.RegionID] = ceiling(f.rolloutState.Progress, row.RegionID)
		}
		if b := behind.LaggingIn(row.RegionID); b != nil && !f.rolloutState.Progress.Active(f.app.RolloutID) {
			f.may[row.RegionID] = ceiling(b.Progress, row.RegionID) // also in the step in which the rollout ends
		}
	}
	return out
}

// requireServes checks that a version that cannot serve becomes live only in regions without replicas. If people scale
// it up later, the planner is not at fault.
func (f *stagedSimulation) requireServes(live string) {
	for k, row := range f.rows {
		if k.deployment == live && f.rolloutState.Progress.LaggingIn(k.region) == nil {
			require.False(f.t, f.bad[live] && row.Replicas > 0, "a version that never served becomes live: %v", k)
		}
	}
	d := f.deps[f.index(live)]
	require.False(f.t, f.bad[live] && d.Stable, "a version that never served counts as stable")
}

func ceiling(c *model.Progress, region string) (ceiling int32) {
	for _, sizes := range []map[string]int32{c.Sizes, c.OldSizes} {
		size := sizes[region]
		surge, _ := regionBounds(c, region, size)
		ceiling = max(ceiling, size+surge)
	}
	return ceiling
}

// report sends a report of what runs to the control plane.
func (f *stagedSimulation) report(key rowKey) {
	r := f.runs[key]
	if r == nil {
		return
	}
	f.observe(key.region, key.deployment, func(o *model.Observed) {
		*o = model.Observed{
			AppID: f.app.ID, DeploymentID: key.deployment, RegionID: key.region, UpdatedAt: f.now,
			AppliedEpoch: r.epoch, AppliedGeneration: r.generation, CountsGeneration: r.generation,
			Phase: int32(agentv1.AppliedState_PHASE_APPLIED), Deleted: r.gone && r.existing() == 0,
			Ready: r.ready + r.outdated(), ReadyReplicas: r.ready, Running: r.other, Draining: r.draining,
		}
		if r.failed && r.other > 0 {
			o.Running, o.Fail, o.Doomed, o.Restarts, o.Reason = r.other-1, 1, 1, 3, "CrashLoop"
		}
	})
}

func (f *stagedSimulation) serveRoutes(region string) {
	f.routes[region] = nil
	for key, row := range f.rows {
		if key.region == region && row.Weight > 0 {
			f.routes[region] = append(f.routes[region], key.deployment)
		}
	}
	f.ack(region)
}

// obeyAll makes a region apply all changes, and send a report.
func (f *stagedSimulation) obeyAll(region string) {
	for _, key := range sortedRows(f.rows) {
		if key.region != region {
			continue
		}
		f.pull(key)
		r := f.runs[key]
		r.draining = 0
		r.failed = f.bad[key.deployment]
		if !r.failed {
			r.ready, r.other, r.taken = r.ready+r.other+r.outdated(), 0, nil
		} else {
			if r.other+r.ready == 0 && r.outdated() > 0 {
				r.stop(1)
				r.other = 1
			}
			r.other, r.ready = r.ready+r.other, 0
		}
		f.report(key)
	}
	f.serveRoutes(region)
}

// scaleRoles does the same as the API for a scaled role. The pool should then start more instances.
func (f *stagedSimulation) scaleRoles(region string) {
	counts := model.RoleCounts{"prefill": rapid.Int32Range(1, 9).Draw(f.t, "prefill"), "decode": rapid.Int32Range(1, 4).Draw(f.t, "decode")}
	for key, row := range f.rows {
		if key.region != region || !row.Assigned() || row.Roles == counts.Encode() {
			continue
		}
		row.Roles = counts.Encode()
		row.Generation++
		f.rows[key] = row
		if r := f.runs[key]; r != nil {
			less := r.ready / 2
			r.ready, r.other = r.ready-less, r.other+less
		}
	}
}

// happen makes one random change.
func (f *stagedSimulation) happen() {
	t := f.t
	region := rapid.SampledFrom(places).Draw(t, "region")
	connected := f.regs[region].Status == windlassv1.RegionStatus_REGION_STATUS_CONNECTED
	progress := f.rolloutState.Progress
	inFlight := progress.Active(f.app.RolloutID)
	var keys []rowKey
	for _, k := range sortedRows(f.rows) {
		if k.region == region {
			keys = append(keys, k)
		}
	}
	var key rowKey
	if len(keys) > 0 {
		key = rapid.SampledFrom(keys).Draw(t, "row")
	}
	r := f.runs[key]
	switch rapid.IntRange(0, 9).Draw(t, "grant") {
	case 1:
		f.closed = map[string]bool{region: true}
	case 2:
		f.closed = nil
	}
	switch e := rapid.IntRange(0, 38).Draw(t, "event"); {
	case e == 36:
		drawFreeze(t, f.simulation)
	case e <= 4 && connected:
		f.pull(key)
	case e <= 8 && connected:
		f.report(key)
	case e <= 11 && r != nil && r.other > 0 && !f.bad[key.deployment]:
		r.ready, r.other = r.ready+1, r.other-1
	case e == 12 && r != nil && r.ready > 0:
		r.ready, r.other = r.ready-1, r.other+1
	case e <= 14 && r != nil:
		r.draining = 0
	case e == 15 && r != nil && f.bad[key.deployment]:
		r.failed = true
	case e <= 18 && connected:
		f.serveRoutes(region)
	case e <= 21 && connected:
		f.obeyAll(region)
	case e == 22:
		f.setRegion(region, func(r *model.Region) { r.Status = windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE })
	case e == 23:
		f.setRegion(region, func(r *model.Region) {
			r.Status, r.LastReportAt = windlassv1.RegionStatus_REGION_STATUS_CONNECTED, f.now
		})
	case e == 24:
		f.now += rapid.Int64Range(0, deadline).Draw(t, "pause")
	case e == 25 && f.app.LatestVersion < 7 && f.app.LiveDeploymentID != "":
		f.deployStaged()
	case e == 26 && inFlight:
		for i := range f.rol {
			if f.rol[i].ID == f.app.RolloutID {
				f.rol[i].CancelRequested, f.rol[i].CancelledBy = true, "ada"
			}
		}
	case e == 27 && inFlight:
		switch rapid.IntRange(0, 7).Draw(t, "say") {
		case 0:
			_, _ = Pause(progress, "ada", "", f.now)
		case 1:
			_, _ = Resume(progress)
		case 2:
			_, _ = Retry(progress, f.guards(), f.now)
		case 3:
			_, _ = SkipBake(progress, "ada")
		case 4, 5:
			_ = f.promote(rapid.IntRange(0, 3).Draw(t, "in full") == 0)
		case 6, 7:
			f.approve(rapid.SampledFrom([]string{"dora", "olga", "oscar"}).Draw(t, "who"))
		}
	case e == 28 && f.closed[region]: // the API refuses replicas there
	case e == 28 && inFlight:
		n := rapid.SampledFrom([]int32{0, 0, 0, 1, 2, 3, 4}).Draw(t, "size")
		f.zeroed = f.zeroed || n == 0
		where := rapid.SampledFrom([]string{"", region}).Draw(t, "where")
		if where == "" && len(f.closed) > 0 {
			where = region
		}
		Resize(progress, AskedIn(where, n))
	case e == 28 && f.app.RolloutID == "" && progress != nil:
		if ResizeLagging(progress, AskedIn(region, rapid.Int32Range(1, 4).Draw(t, "size"))) > 0 {
			f.resized[region] = true
		}
	case e == 29:
		f.setRegion(region, func(r *model.Region) { r.SessionEpoch++ })
	case e == 30:
		if f.restore(progress.Retained()) {
			f.restored = f.app.LiveDeploymentID
		}
	case e == 38 && f.pool:
		f.scaleRoles(region)
	case e == 37 && r != nil && r.outdated() > 0 && r.other == 0:
		r.stop(1)
		r.other = 1
	case e == 35 && r != nil && connected:
		f.observe(region, key.deployment, func(o *model.Observed) { o.Reason, o.ReasonMessage = "Unschedulable", "no room" })
	case e > 30 && inFlight:
		f.now += rapid.Int64Range(0, 90_000).Draw(t, "a while")
		f.answer(rapid.IntRange(0, 2).Draw(t, "answers"))
	}
	f.most = map[string]int32{}
	for k, r := range f.runs {
		if !f.isPinned(k) {
			f.most[k.region] += r.existing()
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "step") != 0 {
		f.step()
	}
}

func newStagedSimulation(t *rapid.T, policy *windlassv1.RolloutPolicy) *stagedSimulation {
	return newStagedSimulationOf(t, policy, rapid.IntRange(0, 4).Draw(t, "pool") == 0)
}

// newStagedSimulationOf is newStagedSimulation for an app whose layout is pooled or not.
func newStagedSimulationOf(t *rapid.T, policy *windlassv1.RolloutPolicy, pooled bool) *stagedSimulation {
	f := &stagedSimulation{simulation: newSimulation(t, places...), t: t, runs: map[rowKey]*running{}, routes: map[string][]string{}, bad: map[string]bool{}, poor: map[string]bool{}, may: map[string]int32{}, agreed: agreed{map[waitingPlace]bool{}, map[waitingPlace][]string{}}, moved: map[string]int32{}, resized: map[string]bool{}, emptied: map[string]bool{}}
	f.policy(allowedPolicy(policy, pooled))
	if rapid.IntRange(0, 3).Draw(t, "an agent of a release before") == 0 {
		features := [][]string{nil, {agentv1.Feature_FEATURE_IN_PLACE.String()}}
		f.setRegion("us", func(r *model.Region) { r.AgentFeatures = rapid.SampledFrom(features).Draw(t, "features") })
	}
	if f.pool = pooled; f.pool {
		f.deployPool(spec(pool.Whole, "eu", "us"), "all")
	} else {
		f.deploy(spec(2, "eu", "us"))
	}
	f.heal()
	return f
}

// heal mends the simulation: regions return, and every version except bad versions works. People resume or abort the
// rollouts that they paused.
func (f *stagedSimulation) heal() {
	f.closed = nil
	rounds := 400
	if f.pool {
		rounds *= 4 // a pool may move by one percent at a time
	}
	for n := 0; ; n++ {
		require.Less(f.t, n, rounds, "the app does not settle: %s", f.app.Message)
		for _, r := range places {
			f.setRegion(r, func(r *model.Region) {
				r.Status, r.LastReportAt = windlassv1.RegionStatus_REGION_STATUS_CONNECTED, f.now
			})
			f.obeyAll(r)
		}
		if c := f.rolloutState.Progress; c.Active(f.app.RolloutID) && c.PausedAt != 0 && !c.Back {
			if c.Failed {
				for i := range f.rol {
					if f.rol[i].ID == f.app.RolloutID {
						f.rol[i].CancelRequested, f.rol[i].CancelledBy = true, "ada"
					}
				}
			} else {
				_, err := Resume(c)
				require.NoError(f.t, err)
			}
		}
		f.answer(0)
		if f.freezes = nil; f.rolloutState.Progress.Active(f.app.RolloutID) {
			f.approve("olga", "oscar")
		}
		if c := f.rolloutState.Progress; c.Active(f.app.RolloutID) && slices.ContainsFunc(c.Waves, func(w model.WaveProgress) bool {
			return slices.ContainsFunc(w.Regions, func(st model.RegionProgress) bool { return w.State == waveBaking && emptyBake(c, &w, st, f.now) })
		}) {
			_, err := SkipBake(c, "ada")
			require.NoError(f.t, err)
		}
		if c := f.rolloutState.Progress; c.Active(f.app.RolloutID) && !c.Failed && f.waits(c) { // a failed rollout is aborted
			require.NoError(f.t, f.promote(false))
		}
		if f.app.RolloutID == "" && f.rolloutState.Progress != nil && RetryLagging(f.rolloutState.Progress, f.now) > 0 && f.poor[f.app.LiveDeploymentID] {
			// The version went live in regions where nothing could be compared with it. A better version replaces it.
			f.deploy(f.deps[f.index(f.app.LiveDeploymentID)].Spec)
		}
		out := f.step()
		f.now += 10_000
		behind := f.rolloutState.Progress != nil && len(f.rolloutState.Progress.Lagging) > 0
		if f.app.RolloutID == "" && f.rolloutState.Progress.Retained() == "" && !behind && !out.Changed() && !Next(f.input(), f.now).Changed() {
			return
		}
	}
}

// waits reports whether a region waits for a promotion.
func (f *stagedSimulation) waits(c *model.Progress) bool {
	for _, w := range c.Waves {
		for _, st := range w.Regions {
			if _, person := Waits(c, st); person && (!st.Emptied || c.Sizes[st.RegionID] == 0) {
				return true
			}
		}
	}
	return false
}

// TestStaged_HistoryKeepsTheRulesProperty requires, in addition to the checks of simulation.step, that nothing starts in
// a region that is full, and that no replica with traffic stops. After heal, one version serves alone, at
// the requested size.
func TestStaged_HistoryKeepsTheRulesProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := newStagedSimulation(t, drawPolicy(t))
		if rapid.IntRange(0, 4).Draw(t, "no policy") == 0 {
			f.rolloutState.Policy = nil
		}
		if rapid.Bool().Draw(t, "ap joins late") { // v1 is not there
			f.setRegion("ap", func(r *model.Region) { r.Status = windlassv1.RegionStatus_REGION_STATUS_PENDING })
		}
		for range rapid.IntRange(1, 120).Draw(t, "length") {
			f.happen()
		}
		f.heal()
		requireAtRestStaged(t, f)
	})
}

func requireAtRestStaged(t *rapid.T, f *stagedSimulation) {
	live := f.app.LiveDeploymentID
	require.NotEmpty(t, live)
	if c := f.rolloutState.Progress; c != nil && c.RolloutID == "rol-"+live {
		for k, row := range f.rows {
			size, planned := c.Sizes[k.region]
			if k.deployment == live && planned && !f.resized[k.region] {
				require.Equal(t, size, row.Replicas, "not the size that was asked for: %v", k)
			}
		}
	}
	scaledUp := false // the version went live without replicas, and got some later
	for k, row := range f.rows {
		if k.deployment != live {
			require.Equal(t, windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED, row.Status, k)
			require.Zero(t, f.runs[k].existing())
			continue
		}
		require.Equal(t, windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED, row.Status)
		require.Equal(t, int32(100), row.Weight)
		if !f.bad[live] {
			require.Equal(t, row.Replicas, f.runs[k].ready)
		}
		scaledUp = scaledUp || f.bad[live] && row.Replicas > 0
		require.Equal(t, []string{live}, f.routes[k.region])
		require.Nil(t, f.rolloutState.Progress.LaggingIn(k.region))
		require.True(t, f.rts[k.region].Routes(f.deps[f.index(live)].Spec.GetRouting()), "%s is routed by another policy", k.region)
	}
	for i, d := range f.deps {
		if d.ID == live {
			require.True(t, slices.ContainsFunc(f.rol, func(r model.Rollout) bool {
				return r.ID == "rol-"+d.ID && r.Status == windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED
			}))
			continue
		}
		require.True(t, model.Terminal(model.DeploymentMoves, f.deps[i].Status), fmt.Sprint(d.ID, d.Status))
	}
	if scaledUp {
		require.Equal(t, windlassv1.AppStatus_APP_STATUS_FAILED, f.app.Status, f.app.Message)
		return
	}
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_READY, f.app.Status, f.app.Message)
}

func TestStaged_CrashedIsNotPromotedInFull(t *testing.T) {
	progress := &model.Progress{RolloutID: "rol", Failed: true, PausedAt: 1, PromotionPaused: true, Waves: []model.WaveProgress{{
		State: waveRolling, Regions: []model.RegionProgress{{RegionID: "us", State: regionFailed, Reason: "CrashLoop"}},
	}}}
	before := progress.Clone()
	_, err := Promote(progress, "ada", true, 2)
	require.ErrorContains(t, err, "a region failed (CrashLoop)")
	require.Equal(t, before, progress, "a promotion that is refused leaves a trace")
}
