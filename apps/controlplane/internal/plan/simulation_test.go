package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/pkg/pool"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	start    = int64(1_000_000)
	deadline = int64(600_000)
)

// simulation is an app with its regions: the content of the database, and
// callers and agents that change it like the real ones.
type simulation struct {
	// keys are the app's keys, as routes have them.
	keys []byte
	t    require.TestingT
	// steps is the number of plans that were made.
	steps int
	now   int64
	app   model.App
	deps  []model.Deployment
	rol   []model.Rollout
	rows  map[rowKey]model.Topology
	obs   map[rowKey]model.Observed
	// reports is the number of reports. It is the guard of the newest report.
	reports model.Guard
	rts     map[string]model.Route
	rob     map[string]model.RouteObserved
	regs    map[string]model.Region
	res     *Resolution
	// rolloutState is the app's rollout state, nil while the app has no policy.
	rolloutState *model.RolloutState
	// freezes are the workspace's freezes, and refusal is the refusal of the last command.
	freezes []model.Freeze
	refusal string
	next    int64
	// closed has the regions that the workspace may no longer use.
	closed map[string]bool
	// woken has the rows with a replica that the region started by itself.
	woken map[rowKey]bool
	// broken has the regions that obey, but in which replicas of the newest version crash.
	broken map[string]bool
	log    []model.History
	// measured has the results of due checks. answers has the figures that checks will return, by check.
	measured []Measurement
	answers  map[string]analysis.Figures
	asked    []Measure
	// pins are the app's pins, by version.
	pins []model.Pin
	// routed has the deployments to which each generation of a region's route sent
	// traffic.
	routed map[string]map[int64][]string
}

func newSimulation(t require.TestingT, regions ...string) *simulation {
	w := &simulation{
		t: t, now: start,
		app:  model.App{ID: "app", WorkspaceID: "ws", Status: windlassv1.AppStatus_APP_STATUS_IDLE},
		rows: map[rowKey]model.Topology{}, obs: map[rowKey]model.Observed{},
		rts: map[string]model.Route{}, rob: map[string]model.RouteObserved{},
		regs: map[string]model.Region{}, routed: map[string]map[int64][]string{}, woken: map[rowKey]bool{},
	}
	for _, r := range regions {
		w.regs[r] = model.Region{
			ID: r, Name: r, SessionEpoch: 1, LastReportAt: start,
			Status: windlassv1.RegionStatus_REGION_STATUS_CONNECTED, AgentFeatures: []string{agentv1.Feature_FEATURE_IN_PLACE.String(), agentv1.Feature_FEATURE_POOL_ORDERS.String()},
		}
	}
	return w
}

func (w *simulation) input() Input {
	in := Input{
		App: w.app, Deployments: slices.Clone(w.deps), Hosts: []string{"app.test"}, Keys: w.keys,
		RegionIDs: map[string]string{}, Resolved: w.res, Jitter: 0.5, Measurements: slices.Clone(w.measured),
	}
	in.Freezes = slices.Clone(w.freezes)
	for _, p := range w.pins {
		in.Pins = append(in.Pins, p.Clone())
	}
	if w.rolloutState != nil {
		s := w.rolloutState.Clone()
		in.RolloutState = &s
	}
	for _, r := range w.rol {
		if r.ID == w.app.RolloutID {
			in.Rollout = &r
		}
	}
	in.Closed = maps.Clone(w.closed)
	for id, r := range w.regs {
		in.Regions = append(in.Regions, r)
		if !w.closed[id] {
			in.RegionIDs[id] = id
		}
	}
	for _, t := range w.rows {
		in.Topology = append(in.Topology, t)
	}
	for _, o := range w.obs {
		in.Observed = append(in.Observed, w.inInstances(o))
	}
	for _, r := range w.rts {
		in.Routes = append(in.Routes, r)
	}
	for _, o := range w.rob {
		in.RouteObserved = append(in.RouteObserved, o)
	}
	return in
}

// inInstances converts observed counts of replicas to counts of instances and of each role, as regions report them for a
// deployment with several roles. The simulation counts replicas.
func (w *simulation) inInstances(o model.Observed) model.Observed {
	i := w.index(o.DeploymentID)
	if i < 0 || len(w.deps[i].Spec.GetRoles()) < 2 {
		return o
	}
	if model.IsPooled(w.deps[i].Spec) {
		return w.inPool(o, w.deps[i].Spec)
	}
	rollup := &agentv1.DeploymentRollup{Groups: o.Instances()}
	for _, r := range w.deps[i].Spec.GetRoles() {
		rollup.Roles = append(rollup.Roles, &agentv1.RoleRollup{Role: r.GetName(), Instances: o.Instances() * r.GetInstances(), Ready: o.Ready * r.GetInstances()})
	}
	o.RoleCounts = model.EncodeRoleCounts(rollup)
	each := model.InstancesEach(w.deps[i].Spec)
	for _, n := range []*int32{&o.Pending, &o.Running, &o.Ready, &o.Draining, &o.Fail} {
		*n *= each
	}
	return o
}

// inPool is inInstances for a pool, which the simulation counts in percent.
func (w *simulation) inPool(o model.Observed, spec *windlassv1.DeploymentSpec) model.Observed {
	row := w.rows[rowKey{o.DeploymentID, o.RegionID}]
	in := row.In(spec)
	rollup := &agentv1.DeploymentRollup{}
	for _, r := range in.GetRoles() {
		n, updated := int(r.GetInstances()), o.Instances()-o.Draining
		if slices.Contains(row.MovingRoles(), r.GetName()) {
			updated -= o.Ready - o.ReadyReplicas // instances of the earlier version
		}
		rollup.Roles = append(rollup.Roles, &agentv1.RoleRollup{
			Role: r.GetName(), Pool: r.GetInstances(), Instances: int32(pool.Units(int(o.Instances()), n)), Ready: int32(pool.Units(int(o.Ready), n)),
			Updated: int32(pool.Units(int(updated), n)),
		})
	}
	rollup.Groups = o.Instances()
	o.RoleCounts = model.EncodeRoleCounts(rollup)
	for _, n := range []*int32{&o.Pending, &o.Running, &o.Ready, &o.Draining, &o.Fail} {
		*n = model.Instances(in, *n)
	}
	return o
}

// pooled makes the spec a pool of 8 prefill and 2 decode servers.
func pooled(s *windlassv1.DeploymentSpec) *windlassv1.DeploymentSpec {
	s.Layout = windlassv1.Layout_LAYOUT_POOLED
	s.Roles = []*windlassv1.RoleSpec{{Name: "prefill", Instances: 8}, {Name: "decode", Instances: 2, Entry: true}}
	return s
}

// deployPool is deploy for a pool. changed names the roles that differ from the live version.
func (w *simulation) deployPool(spec *windlassv1.DeploymentSpec, changed string) string {
	return w.deployPoolOn(spec, changed, w.app.LiveDeploymentID)
}

// deployPoolOn is deployPool with roles that differ from the version of the deployment base.
func (w *simulation) deployPoolOn(spec *windlassv1.DeploymentSpec, changed, base string) string {
	id := w.deploy(pooled(spec))
	before := map[string][]byte{}
	if base != "" {
		before = w.deps[w.index(base)].RoleHashes()
	}
	hashes := map[string][]byte{}
	for _, r := range spec.GetRoles() {
		hashes[r.GetName()] = before[r.GetName()]
		if hashes[r.GetName()] == nil || strings.Contains(changed, r.GetName()) {
			hashes[r.GetName()] = []byte(id)
		}
	}
	var err error
	w.deps[w.index(id)].RolesMade, err = model.EncodeRoleHashes(hashes)
	require.NoError(w.t, err)
	return id
}

// groups returns a spec whose replicas are groups of three instances.
func groups(s *windlassv1.DeploymentSpec) *windlassv1.DeploymentSpec {
	s.Roles = []*windlassv1.RoleSpec{{Name: "prefill", Instances: 2}, {Name: "decode", Instances: 1, Entry: true}}
	return s
}

// step plans once, checks the rules that apply to every plan, and writes the plan.
func (w *simulation) step() Output {
	in := w.input()
	// A script checks the phases at every step, and that the same facts give the same plan. Drawn histories do so only
	// at some steps, because there are many histories, and these checks take most of their time.
	_, drawn := w.t.(*rapid.T)
	if !drawn || w.steps%8 == 0 {
		checkPhases(w.t, w.input(), w.now)
	}
	out := Next(in, w.now)
	if !drawn || w.steps%4 == 1 {
		require.Equal(w.t, out, Next(w.input(), w.now), "the same facts must give the same plan")
	}
	w.steps++
	w.check(in, out)
	require.Empty(w.t, Lint(in, out))
	w.write(out)
	if w.take(out) {
		return w.merge(out)
	}
	again := Next(w.input(), w.now)
	require.False(w.t, again.Changed() && out.Next != w.now, "the second run must change nothing: %+v", again)
	w.next = again.Next
	w.checkHosts(again)
	return out
}

func (w *simulation) write(out Output) {
	if out.App != nil {
		w.app = *out.App
	}
	if out.RolloutState != nil {
		w.rolloutState = out.RolloutState
	}
	if out.Rollout != nil {
		i := slices.IndexFunc(w.rol, func(r model.Rollout) bool { return r.ID == out.Rollout.ID })
		w.rol[i] = *out.Rollout
	}
	for _, d := range out.Deployments {
		w.deps[w.index(d.ID)] = d
	}
	for _, row := range out.Topology {
		w.rows[rowKey{row.DeploymentID, row.RegionID}] = row
	}
	w.writePins(out)
	for _, r := range out.Routes {
		w.rts[r.RegionID] = r
		var to []string
		for k, row := range w.rows {
			if k.region == r.RegionID && row.Weight > 0 {
				to = append(to, k.deployment)
			}
		}
		if w.rolloutState == nil && len(w.pins) == 0 {
			require.LessOrEqual(w.t, len(to), 1)
		}
		if len(r.Hosts) == 0 {
			for _, id := range to {
				require.True(w.t, w.closed[r.RegionID] && w.rows[rowKey{id, r.RegionID}].AtZero(w.deps[w.index(id)].Spec), "%s sends requests, and has no hosts", r.RegionID)
			}
			to = nil
		}
		if len(r.Hosts) == 0 {
			require.Empty(w.t, r.Keys)
		}
		if w.routed[r.RegionID] == nil {
			w.routed[r.RegionID] = map[int64][]string{}
		}
		w.routed[r.RegionID][r.Generation] = to
	}
	w.log = append(w.log, out.History...)
}

func (w *simulation) index(id string) int {
	return slices.IndexFunc(w.deps, func(d model.Deployment) bool { return d.ID == id })
}

// deploy does the same as the API: it makes the next version and its rollout, and ends the rollout in flight.
func (w *simulation) deploy(spec *windlassv1.DeploymentSpec) string {
	w.app.LatestVersion++
	id := fmt.Sprintf("v%d", w.app.LatestVersion)
	for i, r := range w.rol {
		if r.ID == w.app.RolloutID {
			w.rol[i].Status = windlassv1.RolloutStatus_ROLLOUT_STATUS_SUPERSEDED
			j := w.index(r.DeploymentID)
			w.deps[j].Status = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED
			w.deps[j].EndedAt = w.now
		}
	}
	w.deps = append(w.deps, model.Deployment{
		ID: id, AppID: w.app.ID, WorkspaceID: "ws", Version: w.app.LatestVersion, Spec: spec,
		Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING, CreatedAt: w.now, SpecHash: []byte(id),
	})
	w.stage("rol-" + id)
	w.app.RolloutID = "rol-" + id
	w.rol = append(w.rol, model.Rollout{
		ID: w.app.RolloutID, AppID: w.app.ID, DeploymentID: id, Version: w.app.LatestVersion,
		Status:    windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING,
		CreatedAt: w.now, Deadline: w.now + deadline,
	})
	return id
}

// deployAlike deploys a spec that differs from the live spec only in fields that instances do not see. For an app
// without a live version, it is the same as deploy.
func (w *simulation) deployAlike(spec *windlassv1.DeploymentSpec) string {
	id := w.deploy(spec)
	if w.app.LiveDeploymentID != "" {
		w.deps[w.index(id)].MadeAs = w.deps[w.index(w.app.LiveDeploymentID)].Made()
	}
	return id
}

// alike reports whether the two deployments are made alike.
func (w *simulation) alike(a, b string) bool {
	return w.deps[w.index(a)].MadeAlike(&w.deps[w.index(b)])
}

// policy sets the policy of the app's next rollouts.
func (w *simulation) policy(policy *windlassv1.RolloutPolicy) {
	if w.rolloutState == nil {
		w.rolloutState = &model.RolloutState{AppID: w.app.ID, WorkspaceID: "ws"}
	}
	w.rolloutState.Policy = policy
}

// stage sets the progress of a new rollout like the API.
func (w *simulation) stage(rolloutID string) {
	if w.rolloutState == nil {
		return
	}
	var rows []model.Topology
	for _, k := range sortedRows(w.rows) {
		rows = append(rows, w.rows[k])
	}
	asked := Asked{Regions: map[string]int32{}}
	for _, o := range w.deps[len(w.deps)-1].Spec.GetPinnedOverrides() {
		asked.Regions[o.GetRegionId()] = o.GetValues().GetReplicas()
	}
	if w.rolloutState.Progress = NextProgress(*w.rolloutState, w.app, rows, rolloutID, asked); w.rolloutState.Progress != nil {
		w.rolloutState.Progress.DeployedBy, w.rolloutState.Progress.DeployedByID = "dora", "key-dora"
	}
}

// restore does the same as the API for a rollback to a retained version.
func (w *simulation) restore(id string) bool {
	if w.rolloutState == nil || id == "" {
		return false
	}
	p := newFacts(w.input(), w.now)
	old, live := &w.deps[w.index(id)], &w.deps[w.index(w.app.LiveDeploymentID)]
	return Restore(w.rolloutState.Progress, &w.app, live, old, p.placesOf(p.activeRows(id)), w.now)
}

func spec(replicas int32, regions ...string) *windlassv1.DeploymentSpec {
	return &windlassv1.DeploymentSpec{Command: []string{"serve"}, Replicas: new(replicas), Regions: regions}
}

// observe changes the region's report of the deployment.
func (w *simulation) observe(region, deployment string, f func(*model.Observed)) {
	k := rowKey{deployment, region}
	o := w.obs[k]
	o.AppID, o.DeploymentID, o.RegionID, o.UpdatedAt = w.app.ID, deployment, region, w.now
	f(&o)
	w.reports++
	o.Guard = w.reports
	w.obs[k] = o
	w.noteReport(region)
}

// guards returns the guards of the regions' reports about the version in flight.
func (w *simulation) guards() map[string]model.Guard {
	out := map[string]model.Guard{}
	for _, r := range w.rol {
		if r.ID != w.app.RolloutID {
			continue
		}
		for k, o := range w.obs {
			if k.deployment == r.DeploymentID {
				out[k.region] = o.Guard
			}
		}
	}
	return out
}

func (w *simulation) noteReport(region string) {
	r := w.regs[region]
	r.LastReportAt = w.now
	w.regs[region] = r
}

// apply makes the agent apply the row's current generation, with the number of ready replicas.
func (w *simulation) apply(region, deployment string, ready int32) {
	row, ok := w.rows[rowKey{deployment, region}]
	if !ok {
		return
	}
	w.observe(region, deployment, func(o *model.Observed) {
		gone := !row.Assigned()
		*o = model.Observed{
			AppID: w.app.ID, DeploymentID: deployment, RegionID: region, UpdatedAt: w.now,
			AppliedEpoch: w.regs[region].SessionEpoch, AppliedGeneration: row.Generation,
			Phase: int32(agentv1.AppliedState_PHASE_APPLIED), Deleted: gone, CountsGeneration: row.Generation,
		}
		if !gone {
			o.ReadyReplicas, o.Ready = ready, ready
			o.Running = row.Replicas - ready
		}
		if n := row.WakeTo(w.deps[w.index(deployment)].Spec); w.woken[rowKey{deployment, region}] && !gone && n > 0 {
			o.Code, o.Ready, o.ReadyReplicas = "Woken", n, n
			return
		}
		delete(w.woken, rowKey{deployment, region})
	})
}

// request sends a request for the app to the region. The agent starts the replicas that the rows' generations allow.
func (w *simulation) request(region string) {
	if len(w.rts[region].Hosts) == 0 || w.rob[region].Generation < w.rts[region].Generation {
		return
	}
	for _, k := range sortedRows(w.rows) {
		row, seen := w.rows[k], w.obs[k]
		if k.region == region && row.Assigned() && row.Weight > 0 && row.WakeTo(w.deps[w.index(k.deployment)].Spec) > 0 &&
			seen.AppliedGeneration == row.Generation && seen.Phase == int32(agentv1.AppliedState_PHASE_APPLIED) {
			w.woken[k] = true
			w.apply(region, k.deployment, 0)
		}
	}
}

// older makes n of the row's serving replicas be of another version.
func (w *simulation) older(region, deployment string, n int32) {
	w.observe(region, deployment, func(o *model.Observed) { o.Ready, o.Running = o.Ready+n, max(0, o.Running-n) })
}

func (w *simulation) ack(region string) {
	if r, ok := w.rts[region]; ok {
		w.rob[region] = model.RouteObserved{
			AppID: w.app.ID, RegionID: region, Epoch: w.regs[region].SessionEpoch,
			Generation: r.Generation, Phase: int32(agentv1.AppliedState_PHASE_APPLIED), UpdatedAt: w.now,
		}
	}
	w.noteReport(region)
}

// losesGateways makes gateways of the region restart, so that they do not serve the route yet.
func (w *simulation) losesGateways(region string) {
	o := w.rob[region]
	o.Phase, o.Code, o.UpdatedAt = int32(agentv1.AppliedState_PHASE_PENDING), "AwaitingGateways", w.now
	w.rob[region] = o
}

// obey makes the region's agent apply everything.
func (w *simulation) obey(region string) {
	for k, row := range w.rows {
		if k.region == region {
			if w.broken[region] && k.deployment == fmt.Sprintf("v%d", w.app.LatestVersion) && row.Replicas > 0 {
				w.apply(region, k.deployment, 0)
				w.observe(region, k.deployment, func(o *model.Observed) {
					o.Running, o.Fail, o.Doomed, o.Restarts = o.Running-1, 1, 1, 3
					o.Reason, o.ReasonMessage = "CrashLoop", "exit code 1"
				})
				continue
			}
			w.apply(region, k.deployment, row.Replicas)
		}
	}
	w.ack(region)
}

func (w *simulation) setRegion(region string, f func(*model.Region)) {
	r := w.regs[region]
	f(&r)
	w.regs[region] = r
}

// settle makes steps, and makes every region obey, until nothing changes.
func (w *simulation) settle() {
	for range 40 {
		out := w.step()
		if out.Resolve != "" {
			w.res = &Resolution{Image: out.Resolve, Digested: out.Resolve + "@sha256:00"}
		}
		for r := range w.regs {
			if w.regs[r].Status == windlassv1.RegionStatus_REGION_STATUS_CONNECTED {
				w.obey(r)
			}
		}
		w.now += 1000
		if !out.Changed() && !Next(w.input(), w.now).Changed() {
			return
		}
	}
	require.Fail(w.t, "the app does not settle")
}
