package api

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/forecast"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// regionViews tells of each region what the deploy takes there, and what it has.
func (r *dryRun) regionViews(f forecast.Forecast, out *windlassv1.PlanDeployResponse) error {
	ids := map[string]bool{}
	for _, id := range r.in.RegionIDs {
		ids[id] = true
	}
	for _, t := range r.wasRows {
		if topology.Active(t) {
			ids[t.RegionID] = true
		}
	}
	for _, id := range r.byName(ids) {
		v, reported, err := r.regionView(f, id)
		if err != nil {
			return err
		}
		wave, waits, skips := r.waveOf(f, id)
		v.Wave = wave
		out.Regions = append(out.Regions, v)
		if r.woken {
			out.Findings = append(out.Findings, r.reach(v, id, waits, skips, out.GetOutcome())...)
			if found := r.room(v, reported); found != nil {
				out.Findings = append(out.Findings, r.awaited(found))
			}
		}
	}
	return nil
}

// awaited is the finding for a rollout that waits for room, if its policy says so.
func (r *foresight) awaited(f *windlassv1.PlanFinding) *windlassv1.PlanFinding {
	limit := r.waitsForRoom()
	if limit == 0 || !f.GetBlocks() {
		return f
	}
	f.Blocks, f.Fix = false, ""
	f.Message += fmt.Sprintf(": it would wait for that, for %s at most", limit)
	return f
}

// waitsForRoom is for how long the rollout does.
func (r *foresight) waitsForRoom() time.Duration {
	if r.in.RolloutState == nil {
		return 0
	}
	if c := r.progress(); c != nil {
		return c.Policy.GetWaitForCapacity().AsDuration()
	}
	return r.in.RolloutState.Policy.GetWaitForCapacity().AsDuration()
}

// progress of the rollout, nil for one that is not staged.
func (r *foresight) progress() *model.Progress {
	if r.in.RolloutState == nil || !r.in.RolloutState.Progress.Active(r.in.App.RolloutID) {
		return nil
	}
	return r.in.RolloutState.Progress
}

// byName sorts regions.
func (r *foresight) byName(ids map[string]bool) []string {
	all := keys(ids)
	slices.SortStableFunc(all, func(a, b string) int { return cmp.Compare(r.regions[a].Name, r.regions[b].Name) })
	return all
}

// capacity is what a region said that it has.
type capacity struct {
	// known: it has said something.
	known bool
	gpus  []*windlassv1.GpuCapacity
}

// regionView tells what the forecast takes of a region, and what that has.
func (r *foresight) regionView(f forecast.Forecast, id string) (*windlassv1.PlanRegion, capacity, error) {
	region := r.regions[id]
	view, err := regionProto(region)
	if err != nil {
		return nil, capacity{}, err
	}
	has := capacity{len(region.Capacity) > 0, view.GetGpus()}
	v := &windlassv1.PlanRegion{Region: region.Name, Status: region.Status}
	e := r.extent(f, region, view.GetGpus())
	v.ReplicasNow, v.ReplicasPeak, v.ReplicasAfter = e.now.replicas, e.peak.replicas, e.after.replicas
	v.GpusNow, v.GpusPeak, v.GpusAfter = e.now.gpus, e.peak.gpus, e.after.gpus
	if gpu := gpuOf(override.In(r.target.Spec, id)); gpu != nil && e.comes {
		v.Gpu, v.GpusNeeded, v.GpusKept, v.Pools = gpu, e.needed, e.kept, fitting(gpu, view.GetGpus())
		for _, p := range v.GetPools() {
			v.GpusFree += usable(p)
		}
	}
	return v, has, nil
}

// roomToBegin refuses a rollout that a call made if what it begins with does not fit in a
// region that tells what it has, unless its policy has it wait for room.
func (c *change) roomToBegin(app model.App, made outcome) error {
	if c.dry != nil || made.Unchanged || made.Scaled || !slices.ContainsFunc(override.Any(made.Deployment.Spec), hasGPU) {
		return nil // a dry run tells of more than the beginning
	}
	r, err := c.foresee(app.ID, made.Deployment, made.RolloutID)
	if err != nil {
		return err
	}
	return r.roomToBegin(c)
}

// roomToBegin refuses what is foreseen if it cannot begin with what regions have free, and
// is not to wait for more; and if a region that it would come to later has none of the GPUs
// at all: they may be free by then, and would not be there.
func (r *foresight) roomToBegin(c *change) error {
	if r.waitsForRoom() > 0 {
		return nil
	}
	f := forecast.Begin(r.was, r.in, c.at, r.target.ID)
	ids := map[string]bool{}
	for _, s := range f.Steps {
		if s.Kind == windlassv1.PlanStep_KIND_MOVE {
			ids[s.RegionID] = true
		}
	}
	var first *windlassv1.PlanFinding
	var short []string
	for _, id := range r.byName(ids) {
		v, has, err := r.regionView(f, id)
		if err != nil {
			return err
		}
		if found := r.room(v, has); found != nil && found.GetBlocks() {
			first = cmp.Or(first, found)
			short = append(short, found.GetMessage())
		}
	}
	text := "there is no room to begin: "
	if first == nil {
		text = "it could begin, and not come to its end: "
	}
	for _, id := range r.byName(r.later(ids)) {
		found, err := r.lacks(id)
		if err != nil {
			return err
		}
		if found != nil && found.GetBlocks() {
			first = cmp.Or(first, found)
			short = append(short, found.GetMessage())
		}
	}
	if first == nil {
		return nil
	}
	const shown = 5
	text += strings.Join(short[:min(shown, len(short))], "; ")
	if more := len(short) - shown; more > 0 {
		text += fmt.Sprintf("; and so it is in %d regions more", more)
	}
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: first.GetReason(), Field: first.GetField(),
		Fix: first.GetFix() + " `windlass plan` shows all that it takes. With rollout.waitForCapacity, such as 6h, it waits for room.",
	}, text)
}

// foresee reads what the planner goes by once the deployment was asked for, in a rollout
// or, if it is pinned, beside the one in flight; empty for none.
func (c *change) foresee(appID string, d model.Deployment, rolloutID string) (*foresight, error) {
	r := &foresight{target: &d}
	var err error
	if r.in.App, err = c.GetApp(c.workspaceID, appID); err != nil {
		return nil, fmt.Errorf("read app %s: %w", appID, err)
	}
	want, regions := map[string]bool{d.ID: true}, map[string]bool{}
	if rolloutID != "" {
		rollout, err := c.GetRollout(c.workspaceID, rolloutID)
		if err != nil {
			return nil, fmt.Errorf("read rollout %s: %w", rolloutID, err)
		}
		r.in.Rollout = &rollout
		want[rollout.DeploymentID] = true
	}
	if err := r.readPins(c, want, regions); err != nil {
		return nil, err
	}
	if r.in.Topology, err = c.ListTopology([]string{appID}); err != nil {
		return nil, fmt.Errorf("read topology of app %s: %w", appID, err)
	}
	r.was = r.in.Topology // a rollout's making moves nothing
	rolloutStates, err := c.GetRolloutStates([]string{appID})
	if err != nil {
		return nil, fmt.Errorf("read rollout state of app %s: %w", appID, err)
	}
	if len(rolloutStates) > 0 {
		r.in.RolloutState = &rolloutStates[0]
	}
	if id := r.in.App.LiveDeploymentID; id != "" {
		want[id] = true
	}
	for _, t := range r.in.Topology {
		regions[t.RegionID] = true
		if t.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
			want[t.DeploymentID] = true
		}
	}
	if r.in.Deployments, err = c.GetDeployments(keys(want)); err != nil {
		return nil, fmt.Errorf("read deployments of app %s: %w", appID, err)
	}
	return r, r.readRegions(c, regions)
}

// waveOf is the region's wave in the forecast, and whether that waits for a region that is
// out of reach, or skips it.
func (r *foresight) waveOf(f forecast.Forecast, region string) (name string, waits, skips bool) {
	if f.Progress == nil || r.in.Rollout == nil || f.Progress.RolloutID != r.in.Rollout.ID {
		return "", false, false
	}
	for _, w := range f.Progress.Waves {
		if !slices.ContainsFunc(w.Regions, func(st model.RegionProgress) bool { return st.RegionID == region }) {
			continue
		}
		policy := &windlassv1.Wave{}
		if waves := f.Progress.Policy.GetWaves(); w.Policy < len(waves) {
			policy = waves[w.Policy]
		}
		on := policy.GetOnUnreachable()
		skips = on == windlassv1.Wave_ON_UNREACHABLE_SKIP || f.Progress.SkipsNew && r.isNew(region)
		return w.Name, on != windlassv1.Wave_ON_UNREACHABLE_FAIL, skips
	}
	return "", true, false
}

// isNew reports whether no agent has joined the region, and nothing of the app that is live
// is there.
func (r *foresight) isNew(region string) bool {
	live := r.in.App.LiveDeploymentID
	return r.regions[region].Status == windlassv1.RegionStatus_REGION_STATUS_PENDING &&
		!slices.ContainsFunc(r.was, func(t model.Topology) bool {
			return t.RegionID == region && t.DeploymentID == live && topology.Active(t)
		})
}

// reach tells of a region that cannot be told anything now.
func (r *dryRun) reach(v *windlassv1.PlanRegion, id string, waits, skips bool, outcome windlassv1.PlanDeployResponse_Outcome) []*windlassv1.PlanFinding {
	if v.GetStatus() == windlassv1.RegionStatus_REGION_STATUS_CONNECTED {
		return nil
	}
	f := &windlassv1.PlanFinding{
		Reason: windlassv1.ErrorReason_ERROR_REASON_REGION_UNREACHABLE, Region: v.GetRegion(),
		Fix: fmt.Sprintf("`windlass region show %s` tells what is known of it.", v.GetRegion()),
	}
	why, when := fmt.Sprintf("region %s is out of reach", v.GetRegion()), "when it returns"
	if v.GetStatus() == windlassv1.RegionStatus_REGION_STATUS_PENDING {
		why, when = fmt.Sprintf("no agent has joined region %s yet", v.GetRegion()), "when one has"
	}
	i := slices.IndexFunc(r.target.Spec.GetRegions(), func(name string) bool { return r.in.RegionIDs[name] == id })
	switch {
	case i < 0:
		f.Message = why + ": what runs there stays until it returns"
	case outcome != windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT:
		f.Message = why + ": what is asked for is done there when it returns"
	case skips:
		f.Message = why + ": the rollout would leave it out for now, and it would catch up " + when
	case waits:
		f.Message = why + ": the rollout would wait for it when its turn comes, and those after it with it"
	default:
		f.Message, f.Blocks = why+": the rollout would fail there", true
	}
	if i >= 0 {
		f.Field = fmt.Sprintf("spec.regions[%d]", i)
	}
	return []*windlassv1.PlanFinding{f}
}

// room tells of a region that has too few GPUs free, or that may have; nil for none.
func (r *foresight) room(v *windlassv1.PlanRegion, has capacity) *windlassv1.PlanFinding {
	if v.GetGpu() == nil || v.GetStatus() != windlassv1.RegionStatus_REGION_STATUS_CONNECTED {
		return nil
	}
	f := &windlassv1.PlanFinding{
		Reason: windlassv1.ErrorReason_ERROR_REASON_NO_CAPACITY, Blocks: true, Field: r.gpuField(v), Region: v.GetRegion(),
	}
	// Hosts that take no other may take it, and others may have to leave for it: what is
	// free for all says less then.
	if k := r.target.Spec.GetKubernetes(); len(k.GetTolerations()) > 0 || k.GetPriorityClass() != "" {
		f.Blocks = false
	}
	each := v.GetGpu().GetCount()
	var largest int32
	for _, p := range v.GetPools() {
		largest = max(largest, p.GetLargestFree())
	}
	switch {
	case !has.known:
		f.Blocks = false
		f.Message = fmt.Sprintf("region %s has not told yet what it has: whether %s are free there is not known", v.GetRegion(), gpuText(v.GetGpu()))
	case len(v.GetPools()) == 0:
		f.Blocks = true
		f.Message = fmt.Sprintf("region %s has no %s: it has %s", v.GetRegion(), gpuText(v.GetGpu()), poolsText(has.gpus))
		f.Fix = "Ask for what it has, or take the region out."
	case v.GetGpusNeeded() > v.GetGpusFree():
		f.Message = fmt.Sprintf("region %s needs %d more %s%s and has %d free", v.GetRegion(), v.GetGpusNeeded(), gpuText(v.GetGpu()), r.when, v.GetGpusFree())
		f.Fix = "Ask for fewer replicas, or for fewer GPUs for each, or make room."
		if v.GetGpusKept() <= v.GetGpusFree() {
			f.Fix = "Move within the room that there is: rollout.maxSurge 0 and maxUnavailable 1, or strategy recreate. Or make room."
		}
	case v.GetGpusNeeded() > 0 && each > largest:
		f.Message = fmt.Sprintf("region %s has %d %s free, and an instance takes %d of one host, of which none has more than %d free",
			v.GetRegion(), v.GetGpusFree(), gpuText(v.GetGpu()), each, largest)
		f.Fix = "Ask for fewer GPUs for each instance, or make room on one host."
	default:
		return nil
	}
	return f
}

// gpuField is what asks for the region's GPUs: the spec, or its overrides.
func (r *foresight) gpuField(v *windlassv1.PlanRegion) string {
	if proto.Equal(v.GetGpu(), gpuOf(r.target.Spec)) {
		return "spec.resources.gpu"
	}
	return "spec.overrides"
}

// amount is what replicas of an app take.
type amount struct{ replicas, gpus int32 }

// extent is what the app takes of a region: now, at most, and in the end.
type extent struct {
	now, peak, after amount
	// needed GPUs of the kind that the target asks for, beyond those given back.
	needed int32
	// kept of those that are needed are so in the end, too.
	kept int32
	// comes reports whether replicas of the target are there at any time.
	comes bool
}

// extent follows the region's steps. Between two of them there is of each version what
// either says, at most.
func (r *foresight) extent(f forecast.Forecast, region model.Region, pools []*windlassv1.GpuCapacity) (e extent) {
	each, gives := map[string]int32{}, map[string]bool{}
	mine := gpuOf(override.In(r.target.Spec, region.ID))
	for _, d := range r.in.Deployments {
		there := override.In(d.Spec, region.ID)
		_, n := admission.PerReplica(there)
		each[d.ID] = int32(n)
		theirs := gpuOf(there)
		// What it gives back is of use if the target could take any of it.
		gives[d.ID] = mine != nil && theirs != nil && subset(fitting(theirs, pools), fitting(mine, pools))
	}
	at := map[string]int32{}
	for _, t := range r.was {
		if t.RegionID == region.ID && topology.Active(t) {
			at[t.DeploymentID] += t.Replicas
		}
	}
	start := at
	sum := func(replicas map[string]int32) (a amount, needed int32) {
		for id, n := range replicas {
			a.replicas += n
			a.gpus += n * each[id]
			if id == r.target.ID || gives[id] {
				needed += (n - start[id]) * each[id]
			}
			e.comes = e.comes || id == r.target.ID && n > 0
		}
		for id, n := range start {
			if _, still := replicas[id]; !still && (id == r.target.ID || gives[id]) {
				needed -= n * each[id]
			}
		}
		return a, needed
	}
	e.now, _ = sum(at)
	e.peak, e.after = e.now, e.now
	for _, s := range f.Steps {
		if s.Kind != windlassv1.PlanStep_KIND_MOVE || s.RegionID != region.ID {
			continue
		}
		next, most := map[string]int32{}, maps.Clone(at)
		for _, side := range s.Sides {
			next[side.DeploymentID] = side.Replicas
			most[side.DeploymentID] = max(most[side.DeploymentID], side.Replicas)
		}
		if s.InPlace {
			most = maps.Clone(next) // nothing is started beside what it is started for
		}
		a, _ := sum(most)
		for id := range most {
			if id == r.target.ID || id == r.in.App.LiveDeploymentID {
				continue
			}
			// It is not wanted any more. It leaves as soon as nothing is routed to it; where a
			// rollout is staged, as far as this step says.
			most[id] = 0
			if r.progress() != nil {
				most[id] = next[id]
			}
		}
		_, needed := sum(most)
		e.peak = amount{max(e.peak.replicas, a.replicas), max(e.peak.gpus, a.gpus)}
		e.needed = max(e.needed, needed)
		e.after, e.kept = sum(next)
		e.kept = max(0, e.kept)
		at = next
	}
	return e
}
