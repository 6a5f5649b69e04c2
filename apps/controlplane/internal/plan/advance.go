package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// moveTo changes the status of d. It ignores a change that model.DeploymentMoves does not have, because to keep the
// status does no harm. The planner never requests such a change.
func (p *planner) moveTo(d *model.Deployment, to windlassv1.DeploymentStatus) {
	if !model.CanMove(model.DeploymentMoves, d.Status, to) {
		return
	}
	d.Status = to
	switch to {
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_READY:
		d.ReadyAt, d.Reason, d.Message = p.now, "", ""
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED,
		windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED,
		windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_STOPPED:
		d.EndedAt = p.now
	default:
	}
}

// endRollout ends a rollout that a person aborted, or that has nothing left to do.
func (p *planner) endRollout() {
	r := p.rollout
	switch {
	case r == nil:
		p.app.RolloutID = ""
	case r.Status != windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING:
		p.app.RolloutID = ""
	case p.deps[r.DeploymentID] == nil:
		p.finishRollout(windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED, rollup.ReasonDeploymentLost,
			"its deployment "+r.DeploymentID+" does not exist")
		p.log("RolloutFailed", r.Message, nil, "")
	case p.app.DeletingSince != 0:
		p.stopTarget(ReasonAppDeleted, "the app is being deleted", Who)
	case p.isStaged() && p.progress.Back:
		// It is already going back.
	case r.CancelRequested:
		why := "cancelled by " + r.CancelledBy
		if r.CancelWhy != "" {
			why += ": " + r.CancelWhy
		}
		if p.isStaged() {
			p.main().goBack(p.targetDeployment(), windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED, ReasonCancelled, why, r.CancelledBy)
			return
		}
		p.stopTarget(ReasonCancelled, why, r.CancelledBy)
	}
}

func (p *planner) stopTarget(reason, why, who string) {
	d := p.targetDeployment()
	if !model.Terminal(model.DeploymentMoves, d.Status) {
		p.moveTo(d, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_STOPPED)
		d.Reason, d.Message = reason, why
	}
	p.finishRollout(windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED, reason, why)
	p.log("RolloutCancelled", why, d, "")
	p.history[len(p.history)-1].Who = who
}

func (p *planner) finishRollout(to windlassv1.RolloutStatus, reason, message string) {
	r := p.rollout
	r.Status, r.Reason, r.Message, r.FinishedAt = to, reason, message, p.now
	if p.progress.Active(r.ID) {
		p.progress.DoneAt = p.now
	}
	p.app.RolloutID = ""
}

// fail ends the rollout and its deployment. From now on, rows of the deployment are stopped, and the live deployment,
// if there is one, gets all weight.
func (p *planner) fail(d *model.Deployment, reason, message string) {
	if p.isStaged() {
		p.main().goBack(d, windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED, reason, message, Who)
		return
	}
	from := d.Status
	p.resolve = ""
	p.moveTo(d, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED)
	d.Reason, d.Message = reason, message
	p.finishRollout(windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED, reason, message)
	why := fmt.Sprintf("%s, while %s: %s", reason, statusName(from), message)
	if live := p.liveDeployment(); live != nil {
		why += fmt.Sprintf("; v%d stays live", live.Version)
	}
	p.log("RolloutFailed", why, d, "")
}

// advanceTarget takes the target to its next state, if the facts allow it.
func (p *planner) advanceTarget() { p.again = p.hasAdvanced() }

// hasAdvanced reports whether the target's state changed.
func (p *planner) hasAdvanced() bool {
	d := p.targetDeployment()
	if p.isStaged() && (p.progress.Back || d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_DEPLOYING) {
		return p.main().advanceStages(d)
	}
	if d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_DEPLOYING ||
		d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_NETWORK {
		p.noteStarted(d)
		if reason, message, doomed := p.doomedBy(d); doomed {
			p.fail(d, reason, message)
			return true
		}
	}
	switch d.Status {
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING,
		windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_BUILDING:
		// The deadline comes first, because nothing must be started only to be stopped.
		moved := !p.isFrozen(d) && !p.waitsAtGate(d) && (p.failIfLate(d) || p.buildTarget(d))
		if p.isStaged() && !moved {
			p.main().moveRegions() // completes moves that an earlier rollout left unfinished
		}
		return moved
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_DEPLOYING:
		if p.allReady(d) {
			p.moveTo(d, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_NETWORK)
			return true
		}
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_NETWORK:
		if p.allAcknowledged(d) {
			p.goLive(d)
			return true
		}
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED,
		windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED,
		windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_STOPPED:
		// A call superseded the deployment before its rollout. Now the rollout ends, too.
		p.finishRollout(windlassv1.RolloutStatus_ROLLOUT_STATUS_SUPERSEDED, ReasonSuperseded, "its deployment ended")
		p.log("RolloutSuperseded", "its deployment is "+statusName(d.Status), d, "")
		return true
	default:
		return false
	}
	return p.failIfLate(d)
}

// buildTarget resolves the image, if it has only a tag and a region may run it, and then tells the regions.
func (p *planner) buildTarget(d *model.Deployment) bool {
	image := Image(d.Spec)
	if image != "" && d.ResolvedImage == "" {
		if strings.Contains(image, "@sha256:") || !p.pullsImage(d.Spec) {
			d.ResolvedImage = image
		} else if !p.hasDigest(d, image) {
			return d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED
		}
	}
	p.start(d)
	return true
}

// pullsImage reports whether a region of the spec may pull its image. Hosts that run processes pull none. A
// region whose agent never connected may be a cluster.
func (p *planner) pullsImage(spec *windlassv1.DeploymentSpec) bool {
	return slices.ContainsFunc(spec.GetRegions(), func(name string) bool {
		id := p.in.RegionIDs[name]
		i := slices.IndexFunc(p.in.Regions, func(r model.Region) bool { return r.ID == id })
		return i < 0 || p.in.Regions[i].PullsImages()
	})
}

// Image returns the image whose tag is resolved, empty for none. With several roles, this is the spec's image, which
// roles without an image of their own run. Images of roles already have digests.
func Image(spec *windlassv1.DeploymentSpec) string {
	if len(spec.GetRoles()) > 1 {
		return spec.GetImage()
	}
	for _, r := range spec.GetRoles() {
		if r.GetImage() != "" {
			return r.GetImage()
		}
	}
	return spec.GetImage()
}

// hasDigest reports whether d has a digest for its image. If not, it requests the digest.
func (p *planner) hasDigest(d *model.Deployment, image string) bool {
	if d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING {
		p.moveTo(d, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_BUILDING)
		p.log("ImageResolving", image+" names a tag: its digest is looked up once, so that every region runs the same image", d, "")
	}
	r := p.in.Resolved
	switch {
	case r == nil || r.Image != image:
		p.resolve = image
		return false
	case r.Digested != "":
		d.ResolvedImage, d.Reason, d.Message = r.Digested, "", ""
		p.log("ImageResolved", image+" is "+r.Digested, d, "")
		return true
	case r.Final:
		p.fail(d, ReasonImagePullError, r.Message)
		return false
	}
	// The reason stays on the deployment, so that a failure at the deadline can name it.
	p.resolve = image
	d.Reason, d.Message = ReasonImagePullError, r.Message
	return false
}

// start assigns the deployment to all regions at once. A first deployment has its weight from the start, because no
// other version serves. An update gets no weight before it is ready in all regions.
func (p *planner) start(d *model.Deployment) {
	replicas := int32(defaultReplicas)
	switch {
	case d.Spec.Replicas != nil:
		replicas = d.Spec.GetReplicas()
	case p.app.Replicas > 0:
		replicas = p.app.Replicas
	}
	for _, n := range d.Spec.GetRegions() {
		if p.in.RegionIDs[n] == "" {
			p.fail(d, ReasonUnknownRegion, "region "+n+" does not exist or may not be used by the workspace")
			return
		}
	}
	if n := override.Stale(d.Spec, p.in.RegionIDs); n != "" {
		p.fail(d, ReasonUnknownRegion, "region "+n+" was created again after its overrides were computed: deploy again")
		return
	}
	if p.isStaged() {
		p.main().layOut(d)
		return
	}
	sizes := map[string]int32{}
	for _, n := range d.Spec.GetRegions() {
		sizes[n] = replicas
		if own, ok := override.Replicas(d.Spec, p.in.RegionIDs[n]); ok {
			sizes[n] = own
		}
		p.assignRow(d, p.in.RegionIDs[n], sizes[n])
	}
	p.moveTo(d, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_DEPLOYING)
	p.log("RegionsStarting", ReplicasText(d.Spec, func(n string) int32 { return sizes[n] }), d, "")
}

// ReplicasText returns how many replicas the spec's regions have, in words: "2 replicas in each of
// eu-west-1, us-east-1; 6 in us-west-2". For a pool it is "a whole pool in each of eu-west-1, us-east-1".
func ReplicasText(spec *windlassv1.DeploymentSpec, of func(region string) int32) string {
	var sizes []int32
	by := map[int32][]string{}
	for _, n := range spec.GetRegions() {
		if by[of(n)] == nil {
			sizes = append(sizes, of(n))
		}
		by[of(n)] = append(by[of(n)], n)
	}
	slices.SortStableFunc(sizes, func(a, b int32) int { return cmp.Compare(len(by[b]), len(by[a])) })
	var parts []string
	for i, n := range sizes {
		size, in := model.SizeText(spec, n), " in "
		switch {
		case i > 0 && !model.IsPooled(spec):
			size = fmt.Sprint(n)
		case i == 0 && (len(sizes) == 1 || len(by[n]) > 1):
			in = " in each of "
		}
		parts = append(parts, size+in+strings.Join(by[n], ", "))
	}
	return strings.Join(parts, "; ")
}

func (p *planner) assignRow(d *model.Deployment, region string, replicas int32) {
	p.touchRegion(region)
	for _, t := range p.rows {
		if t.DeploymentID == d.ID && t.RegionID == region {
			if t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
				t.Status, t.Reason = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING, ""
				t.Replicas, t.Weight = replicas, 0
				t.Generation++
				p.beginWorkload(t)
			}
			return
		}
	}
	t := &model.Topology{
		WorkspaceID: p.app.WorkspaceID, AppID: p.app.ID, DeploymentID: d.ID, RegionID: region,
		Replicas: replicas, Generation: 1,
		Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING, CreatedAt: p.now,
	}
	p.beginWorkload(t)
	p.rows = append(p.rows, t)
	slices.SortFunc(p.rows, compareRows)
}

// poolCounts returns the number of instances of each role of the row's pool, encoded like Topology.Roles. Counts of
// other versions in the region come first, then the row's former counts, then the counts in the spec.
func poolCounts(f *facts, t *model.Topology) string {
	d := f.deps[t.DeploymentID]
	if d == nil || !model.IsPooled(d.Spec) {
		return ""
	}
	counts, there := model.RoleCounts{}, t.RoleCounts()
	for _, o := range f.rows {
		if o.RegionID == t.RegionID && o.Assigned() && o.DeploymentID != t.DeploymentID {
			maps.Copy(there, o.RoleCounts())
		}
	}
	for _, r := range override.In(d.Spec, t.RegionID).GetRoles() {
		counts[r.GetName()] = cmp.Or(there[r.GetName()], max(r.GetInstances(), 1))
	}
	return counts.Encode()
}

func (p *planner) noteStarted(d *model.Deployment) {
	for _, t := range p.activeRows(d.ID) {
		pl := p.placeOf(t)
		if t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING && pl.Ready() {
			t.Status = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
			p.log("RegionReady", fmt.Sprintf("%s at generation %d",
				model.ReadyText(t.Roles != "", pl.Observed.ReadyReplicas, t.Replicas), t.Generation), d, t.RegionID)
		}
	}
}

// doomedBy returns why a region will never be ready. Of several such regions, it takes the first by name.
func (f *facts) doomedBy(d *model.Deployment) (reason, message string, doomed bool) {
	for _, pl := range f.placesOf(f.activeRows(d.ID)) {
		if reason, message, doomed := f.hopelessAtStart(d, pl); doomed {
			if reason == "" {
				reason = rollup.ReasonInstancesFailed
			}
			if message == "" {
				message = "no detail was reported"
			}
			where := pl.Name() + ", " + model.ReadyText(pl.Row.Roles != "", pl.Observed.ReadyReplicas, pl.Row.Replicas)
			if n := pl.Observed.Doomed; n > 0 {
				where += fmt.Sprintf(", %d doomed", n)
			}
			// The message comes last, because it may end with the text of a program.
			return reason, where + ": " + message, true
		}
	}
	return "", "", false
}

func (f *facts) allReady(d *model.Deployment) bool {
	for _, t := range f.activeRows(d.ID) {
		if !f.placeOf(t).Ready() {
			return false
		}
	}
	return true
}

// allAcknowledged reports whether every region acknowledged its route and is still ready. The old version is about to
// stop, and a replica or an epoch may have been lost since traffic began to move.
func (f *facts) allAcknowledged(d *model.Deployment) bool {
	for _, t := range f.activeRows(d.ID) {
		if t.Weight != fullWeight || !f.hasAcknowledged(t.RegionID) || !f.placeOf(t).Ready() {
			return false
		}
	}
	return true
}

func (p *planner) goLive(d *model.Deployment) {
	old := p.liveDeployment()
	if p.isStaged() {
		p.main().noteLagging(d)
	}
	var figures []string
	for _, t := range p.activeRows(d.ID) {
		if p.isLagging(t.RegionID) {
			continue
		}
		figures = append(figures, fmt.Sprintf("%s at route generation %d", p.placeOf(t).Name(), p.routes[t.RegionID].Generation))
	}
	p.moveTo(d, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_READY)
	p.app.LiveDeploymentID = d.ID
	d.Stable = mainView(p.facts).hasServed(d)
	retain := p.isStaged() && old != nil && retentionOf(p.progress.Policy) > 0 && !p.hasTransferred(old)
	if old != nil {
		if old.Stable {
			p.app.PreviousDeploymentID = old.ID
		}
		if retain {
			p.progress.RetainedID, p.progress.RetainedUntil = old.ID, p.now+retentionOf(p.progress.Policy)
		} else {
			p.moveTo(old, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED)
		}
	}
	p.finishRollout(windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED, "", "")
	who := "every region serves it: "
	if p.progress != nil && len(p.progress.Lagging) > 0 {
		who = "every region except those left behind serves it: "
	}
	p.log("LiveMoved", who+strings.Join(figures, ", "), d, "")
	switch {
	case retain:
		p.log("VersionRetained", fmt.Sprintf("v%d is live; v%d keeps its replicas for %d s, to go back to", d.Version, old.Version, retentionOf(p.progress.Policy)/1000), old, "")
	case old != nil:
		p.log("DeploymentSuperseded", fmt.Sprintf("v%d is live", d.Version), old, "")
	}
}

// hasServed reports whether a replica of the live deployment is ready in a region where the deployment has traffic. A
// version that went live without replicas is not a version to go back to.
func (v *view) hasServed(d *model.Deployment) bool {
	return slices.ContainsFunc(v.activeRows(d.ID), func(t *model.Topology) bool {
		return v.sideOf(t).Ready > 0 && t.Weight > 0 && v.hasAcknowledged(t.RegionID)
	})
}

// isUnproven reports whether the live version has not served yet.
func isUnproven(f *facts) bool {
	return f.liveDeployment() != nil && !f.liveDeployment().Stable && f.app.DeletingSince == 0
}

// noteServed marks the live deployment as stable if it went live without replicas and serves now.
func (p *planner) noteServed() {
	if d := p.liveDeployment(); mainView(p.facts).hasServed(d) {
		d.Stable = true
		p.log("VersionProven", "it went live with no replicas, and serves now: the app can go back to it", d, "")
	}
}

// freshFor is how recent a region's last report must be for a deadline to be judged by it, in ms: the longest lease.
// After an outage of the control plane, or a restored backup, the reports are old. A connected region then reports
// within its lease or becomes unreachable, and either settles the deadline.
const freshFor = 60_000

// failIfLate fails a target that is late. Only recent reports count.
func (p *planner) failIfLate(d *model.Deployment) bool {
	r := p.rollout
	p.postponeDeadline(d)
	if r.Deadline == 0 || p.now < r.Deadline {
		return false
	}
	rows := p.activeRows(d.ID)
	var late, lost int
	cause := ""
	for _, t := range rows {
		pl := p.placeOf(t)
		if pl.Ready() && (d.Status != windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_NETWORK || p.hasAcknowledged(t.RegionID)) {
			continue
		}
		late++
		if why, _ := pl.Why(); cause == "" && !pl.Unreachable() && rollup.MeaningOf(why).Waits {
			cause = why
		}
		if pl.Unreachable() {
			lost++
		} else if pl.Resyncing() || p.now-pl.Region.LastReportAt > freshFor {
			p.stale = true
			return false
		}
	}
	reason := rollup.ReasonDeadlineExceeded
	switch {
	case late > 0 && late == lost:
		reason = rollup.ReasonRegionUnreachable
	case cause != "":
		reason = cause
	}
	p.fail(d, reason, p.latenessText(d, rows))
	return true
}

func (f *facts) latenessText(d *model.Deployment, rows []*model.Topology) string {
	after := fmt.Sprintf("not ready after %d s", (f.now-f.rollout.CreatedAt)/1000)
	switch d.Status {
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING:
		return after + ": it could not be started in time"
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_BUILDING:
		return fmt.Sprintf("%s: %s could not be resolved: %s", after, Image(d.Spec), d.Message)
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_NETWORK:
		var parts []string
		for _, pl := range f.placesOf(rows) {
			if f.hasAcknowledged(pl.Row.RegionID) {
				if !pl.Ready() {
					parts = append(parts, pl.String())
				}
				continue
			}
			o, route := f.routeObs[pl.Row.RegionID], f.routes[pl.Row.RegionID]
			s := fmt.Sprintf("%s has not acknowledged route generation %d (it is at %d)", pl.Name(), route.Generation, o.Generation)
			if o.Message != "" {
				s += ": " + o.Message
			}
			if pl.Unreachable() {
				s += ": region is out of reach"
			}
			parts = append(parts, s)
		}
		return after + ": " + strings.Join(parts, "; ")
	default:
		return after + ": " + rollup.Describe(f.placesOf(rows), func(pl rollup.Place) bool { return !pl.Ready() })
	}
}

func statusName(s windlassv1.DeploymentStatus) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "DEPLOYMENT_STATUS_"))
}
