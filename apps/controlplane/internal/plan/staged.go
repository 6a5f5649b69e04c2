package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A staged rollout is one that goes by a policy: every one but an app's first, and but
// those that began when apps without a policy of their own had none. Two things are decided
// apart:
//
//	judge      which regions' turn it is, by waves, and whether all goes back
//	moveLanes  in each region, the next step towards the version that is wanted there
//
// The live pointer moves when the last wave is done. Until then the version that is
// live keeps its rows everywhere, with fewer replicas or none, and going back only
// changes which version is wanted where.

const (
	waveWaiting = windlassv1.WaveProgress_STATE_WAITING
	waveRolling = windlassv1.WaveProgress_STATE_ROLLING
	waveBaking  = windlassv1.WaveProgress_STATE_BAKING
	waveDone    = windlassv1.WaveProgress_STATE_DONE

	regionWaiting   = windlassv1.RegionProgress_STATE_WAITING
	regionRolling   = windlassv1.RegionProgress_STATE_ROLLING
	regionMoved     = windlassv1.RegionProgress_STATE_MOVED
	regionGoingBack = windlassv1.RegionProgress_STATE_GOING_BACK
	regionBack      = windlassv1.RegionProgress_STATE_BACK
	regionFailed    = windlassv1.RegionProgress_STATE_FAILED
	regionSkipped   = windlassv1.RegionProgress_STATE_SKIPPED
)

// isForward tells whether the target is what is wanted in a region of that state.
func isForward(s windlassv1.RegionProgress_State) bool {
	return s == regionRolling || s == regionMoved || s == regionFailed
}

// staged tells whether the rollout in flight goes by a policy.
func (p *planner) staged() bool {
	return p.course != nil && p.target() != nil && p.course.Active(p.rollout.ID) && p.app.DeletingSince == 0
}

// courseRegion finds the region's wave and state, nil if it has none.
func courseRegion(c *model.Course, region string) (*model.CourseWave, *model.CourseRegion) {
	for i := range c.Waves {
		w := &c.Waves[i]
		for j := range w.Regions {
			if w.Regions[j].RegionID == region {
				return w, &w.Regions[j]
			}
		}
	}
	return nil, nil
}

// stage takes a staged rollout as far as the facts allow, once in a call.
func (p *planner) stage(d *model.Deployment) bool {
	c := p.course
	done := false
	if !c.Back && c.PausedAt == 0 && len(c.Waves) > 0 {
		done = p.judge(d)
	}
	p.noteBack()
	switch {
	case done:
		p.rollout.Deadline = 0
		p.move(d, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_NETWORK)
		p.goLive(d)
		return true
	case c.Back && p.restored():
		p.finishBack(d)
		return true
	}
	p.moveLanes()
	if len(c.Waves) > 0 {
		p.rollout.Deadline = p.deadlineOfRegions()
	}
	return false
}

// judge lets regions and waves come to their turn, and tells whether all are done.
func (p *planner) judge(d *model.Deployment) (done bool) {
	for i := range p.course.Waves {
		w := &p.course.Waves[i]
		for j := range w.Regions {
			if p.judgeRegion(d, w, &w.Regions[j]) {
				return false
			}
		}
	}
	for i := range p.course.Waves {
		w := &p.course.Waves[i]
		if w.State == waveWaiting {
			w.State = waveRolling
			p.log("WaveBegun", fmt.Sprintf("wave %s, %d of %d: %s", w.Name, i+1, len(p.course.Waves), p.regionNames(w)), d, "")
		}
		if w.State != waveDone {
			if !p.begun(d, w) {
				return false
			}
			if allSkipped(p.course, w) {
				continue // nothing of it can be waited for; it is open until one of them returns
			}
			if !p.baked(d, w) {
				return false
			}
		}
		done = true
	}
	if done && p.nowhere() {
		p.awaitSkipped()
		return false
	}
	return done
}

// judgeRegion looks at a region whose turn has come, and tells whether it stopped the
// rollout.
func (p *planner) judgeRegion(d *model.Deployment, w *model.CourseWave, st *model.CourseRegion) (stopped bool) {
	if !isForward(st.State) {
		return false
	}
	l := p.lane(st.RegionID)
	if w.State == waveDone && st.State == regionMoved && l.To.Told == 0 && l.Size > 0 {
		p.startAgain(d, w, st, l)
	}
	st.Sized = st.Sized || p.course.Sizes[st.RegionID] > 0
	if p.takeStepsAfterAll(d, w, st) {
		l = p.lane(st.RegionID)
	}
	if l.lost {
		st.UnhealthySince = 0
		if wavePolicy(p.course, *w).GetOnUnreachable() == windlassv1.Wave_ON_UNREACHABLE_FAIL && w.State != waveDone {
			p.failRegion(d, w, st, rollup.ReasonRegionUnreachable, "it is out of reach")
			return true
		}
		if p.skips(w) && w.State != waveDone && st.State == regionRolling {
			p.skip(d, w, st, "it is out of reach")
			return false
		}
		if st.State == regionRolling && st.HeldSince == 0 {
			st.HeldSince = p.now
		}
		return false
	}
	if st.HeldSince != 0 {
		st.ScoredAt += p.now - st.HeldSince
		if st.NoRoomSince != 0 {
			st.NoRoomSince += p.now - st.HeldSince
		}
		if st.TroubleSince != 0 {
			st.TroubleSince += p.now - st.HeldSince
		}
		st.HeldSince = 0
	}
	if p.standsEmpty(d, w, st, l) {
		return st.Emptied && p.judgeStep(d, w, st, l)
	}
	if p.lacksRoomForBoth(d, w, st, l) {
		return true
	}
	if reason, message, hopeless := p.hopeless(d, st, l); hopeless {
		p.failRegion(d, w, st, cmp.Or(reason, ReasonInstancesFailed), cmp.Or(message, "no detail was reported"))
		return true
	}
	if message, over := p.unhealthy(d, st, l); over {
		p.failRegion(d, w, st, ReasonUnhealthy, message)
		return true
	}
	p.noteRoom(d, st, l)
	step := st.Step
	if st.State == regionRolling && p.judgeStep(d, w, st, l) {
		return true
	}
	if st.Step != step {
		l = p.lane(st.RegionID) // with what the step that begins asks for
	}
	serves := st.Step >= Steps(p.course.Policy) && l.Serves() && l.Alone()
	switch {
	case st.State != regionMoved && serves:
		st.State, st.Since, st.Reason, st.Message, st.Unacknowledged = regionMoved, p.now, "", "", false
		p.noteServing(st, l)
		p.log("RegionMoved", fmt.Sprintf("it serves alone at route generation %d; %s", p.routes[st.RegionID].Generation, l.figures(p)), d, st.RegionID)
	case st.State == regionMoved && !serves && w.State != waveDone, st.Unacknowledged && !serves && !l.lacksAcknowledgement():
		if p.unsettle(d, w, st, l) {
			return true
		}
	}
	return st.State == regionRolling && p.regionLate(d, w, st, l)
}

// roll has the region be on its way from now on.
func (p *planner) roll(st *model.CourseRegion) {
	st.State, st.Since, st.ScoredAt, st.Heard, st.TroubleFor = regionRolling, p.now, p.now, 0, 0
	if l := p.lane(st.RegionID); l.row != nil {
		st.Heard = p.place(l.row).Observed.Guard
	}
}

// reopen has the wave roll, bake and pass its gate once more.
func reopen(w *model.CourseWave) {
	w.State, w.BakingSince, w.SkippedBy, w.Approvals = waveRolling, 0, "", nil
}

// startAgain has the wave wait for a region again that moved with nothing, and was then told
// to run something: that it had nothing to show is no proof that it serves.
func (p *planner) startAgain(d *model.Deployment, w *model.CourseWave, st *model.CourseRegion, l *lane) {
	reopen(w)
	p.roll(st)
	forgetRelapses(st)
	st.Score, st.HeldSince = l.score(), 0
	p.log("WaveReopened", fmt.Sprintf("wave %s was done with no replicas in %s, which is to have %d now",
		w.Name, p.regionName(st.RegionID), l.Size), d, st.RegionID)
}

// regionLate notes what progress there is, and fails a region that makes none.
func (p *planner) regionLate(d *model.Deployment, w *model.CourseWave, st *model.CourseRegion, l *lane) bool {
	if score := l.score(); score > st.Score || st.ScoredAt == 0 {
		if st.NoRoomSince != 0 {
			p.endRoom(st)
			st.NoRoomSince = p.now
		}
		st.Score, st.ScoredAt, st.TroubleFor = score, p.now, 0
	}
	due := RegionDeadline(p.course, d.Spec, *st)
	if due == 0 || p.now < due {
		return false
	}
	if l.row != nil {
		if pl := p.place(l.row); pl.Resyncing() || p.now-pl.Region.LastReportAt > freshFor {
			p.stale = true
			return false
		}
	}
	reason, message := rollup.ReasonDeadlineExceeded, ""
	if l.row != nil {
		why, text := p.place(l.row).Why()
		if slices.Contains(keepFromStarting, why) {
			reason = why
		}
		message = strings.TrimSpace(why + " " + text)
	}
	late := fmt.Sprintf("no progress for %d s", (p.now-st.ScoredAt)/1000)
	if !l.Acknowledged {
		late += fmt.Sprintf(", route generation %d is not acknowledged", p.routes[st.RegionID].Generation)
	}
	if message != "" {
		late += ": " + message
	}
	p.failRegion(d, w, st, reason, late)
	return true
}

// score grows with what comes of the steps, not with the steps: replicas that are ready,
// and old ones that are gone.
func (l *lane) score() int32 {
	n := l.To.Ready - l.seen
	if l.Acknowledged && l.To.Weight == 100 {
		n++
	}
	return n
}

func (p *planner) deadlineOfRegions() (due int64) {
	d := p.target()
	for _, w := range p.course.Waves {
		for i := range w.Regions {
			if at := RegionDeadline(p.course, d.Spec, w.Regions[i]); at != 0 && (due == 0 || at < due) {
				due = at
			}
		}
	}
	return due
}

// begun lets as many regions of the wave begin as may move at once, and tells whether
// all have moved.
func (p *planner) begun(d *model.Deployment, w *model.CourseWave) (all bool) {
	policy := wavePolicy(p.course, *w)
	atOnce := max(1, int(policy.GetMaxParallel())) - p.othersCatchingUp()
	all = true
	for i := range w.Regions {
		if w.Regions[i].State == regionRolling {
			atOnce--
		}
		all = all && (w.Regions[i].State == regionMoved || w.Regions[i].State == regionSkipped)
	}
	if !all && w.BakingSince != 0 {
		if w.State = waveRolling; !bakesOn(w) {
			w.BakingSince, w.Approvals = 0, nil
		}
	}
	for i := range w.Regions {
		st := &w.Regions[i]
		late := st.State == regionSkipped && w.BakingSince != 0
		if late || st.State != regionWaiting && st.State != regionSkipped || atOnce <= 0 {
			continue
		}
		if l := p.lane(st.RegionID); l.lost {
			switch {
			case p.skips(w):
				if st.State == regionWaiting {
					p.skip(d, w, st, "it is out of reach, and its turn has come")
				}
				continue
			case st.State == regionWaiting && p.skipsNew(st.RegionID):
				p.skip(d, w, st, "no agent has joined it yet, and its turn has come")
				continue
			}
			if policy.GetOnUnreachable() == windlassv1.Wave_ON_UNREACHABLE_FAIL {
				p.failRegion(d, w, st, rollup.ReasonRegionUnreachable, "it is out of reach, and its turn has come")
				return false
			}
			continue
		}
		turn := "its turn has come"
		if st.State == regionSkipped || p.behind != nil {
			turn = "it is in reach again, and follows"
			if !p.isActive(p.olderIn(st.RegionID), st.RegionID) {
				turn = "it is in reach, and follows"
			}
		}
		atOnce--
		all = false
		if st.State == regionSkipped && st.HalfWay {
			p.goOn(st)
		} else {
			p.beginRegion(st)
		}
		p.log("RegionBegun", fmt.Sprintf("%s in wave %s; %s", turn, w.Name, p.lane(st.RegionID).figures(p)), d, st.RegionID)
		if p.lacksRoomForBoth(d, w, st, p.lane(st.RegionID)) {
			return false
		}
	}
	return all
}

// beginRegion starts a region whose turn has come.
func (p *planner) beginRegion(st *model.CourseRegion) {
	forgetRelapses(st)
	p.roll(st)
	st.Reason, st.Message = "", ""
	st.Step, st.StoppedAt, st.PromotedBy, st.NoRoomSince, st.NoRoomFor, st.Approvals, st.HeldSince = 0, 0, "", 0, 0, nil, 0
	st.Trouble, st.TroubleSince, st.Inherited = 0, 0, 0
	forgetHealth(st)
	p.beginSteps(st)
	st.Score = p.lane(st.RegionID).score()
}

// baked tells whether the wave, all of whose regions have moved, has served long enough.
func (p *planner) baked(d *model.Deployment, w *model.CourseWave) bool {
	w.State = waveBaking
	if w.BakingSince == 0 {
		w.BakingSince = p.now
		gate, bake := WaveGate(p.course, *w), p.bakeTime(w)
		if bake > 0 {
			p.log("WaveBaking", fmt.Sprintf("wave %s serves in %s, and has to for %d s", w.Name, p.regionNames(w), bake/1000), d, "")
		}
		if gate != nil {
			p.log("WaveNeedsApproval", fmt.Sprintf("wave %s serves in %s, and needs %s", w.Name, p.regionNames(w), Missing(p.course, gate, nil)), d, "")
		}
	}
	if w.SkippedBy == "" && p.course.FullBy == "" {
		all, failed := p.analysed(d, w)
		if failed || !all || p.now < w.BakingSince+p.bakeTime(w) {
			return false
		}
	}
	gate := WaveGate(p.course, *w)
	if Shut(p.course, gate, w.Approvals) || !p.inReach(w) {
		return false
	}
	w.State = waveDone
	why := fmt.Sprintf("it served for %d s", (p.now-w.BakingSince)/1000)
	switch {
	case w.SkippedBy != "":
		why += "; " + w.SkippedBy + " ended its bake time"
	case p.course.FullBy != "":
		why += "; " + p.course.FullBy + " promoted it in full"
	}
	why += approvedBy(gate, w.Approvals)
	p.log("WaveDone", "wave "+w.Name+": "+why, d, "")
	return true
}

func (p *planner) bakeTime(w *model.CourseWave) int64 { return BakeTime(p.course, *w) }

// BakeTime of the wave, ms.
func BakeTime(c *model.Course, w model.CourseWave) int64 {
	return wavePolicy(c, w).GetBakeTime().AsDuration().Milliseconds()
}

// failRegion does what the wave's policy says of a region that failed.
func (p *planner) failRegion(d *model.Deployment, w *model.CourseWave, st *model.CourseRegion, reason, message string) {
	text := fmt.Sprintf("%s, in wave %s: %s", p.regionName(st.RegionID), w.Name, message)
	if l := p.lane(st.RegionID); l.row != nil {
		text = fmt.Sprintf("%s, in wave %s (%s): %s", p.regionName(st.RegionID), w.Name, l.figures(p), message)
	}
	st.Reason, st.Message, st.Since = reason, message, p.now
	st.StoppedAt, st.PromotedBy, st.Approvals = 0, "", nil
	onFailure, stays := p.onFailure(w, reason)
	if p.behind != nil {
		p.failBehind(d, st, onFailure, reason, text)
		return
	}
	switch onFailure {
	case windlassv1.Wave_ON_FAILURE_PAUSE, windlassv1.Wave_ON_FAILURE_ROLLBACK_REGION:
		st.State = regionFailed
		what := "it stays as it is"
		if onFailure == windlassv1.Wave_ON_FAILURE_ROLLBACK_REGION {
			st.State = regionGoingBack
			what = "it goes back to " + p.versionOf(p.app.LiveDeploymentID)
		}
		p.log("RegionFailed", fmt.Sprintf("%s: %s; %s, and the rollout is paused%s: %s it", reason, text, what, stays, saidOf(st)), d, st.RegionID)
		p.pause(fmt.Sprintf("%s failed (%s)%s", p.regionName(st.RegionID), reason, stays))
	default:
		p.goBack(d, windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED, reason, text, Who)
	}
}

func (p *planner) pause(why string) {
	c := p.course
	c.PausedAt, c.PausedBy, c.PausedWhy, c.Failed = p.now, Who, why, true
	stopClocks(c, p.now)
}

// goBack has every region come to the version that is live. The deployment's end is
// final at once, for whoever waits for it; the rollout ends when all is back.
func (p *planner) goBack(d *model.Deployment, final windlassv1.RolloutStatus, reason, message, who string) {
	c := p.course
	was := d.Status
	c.Back, c.Final, c.Reason, c.Message = true, final, reason, message
	c.PausedAt, c.PausedBy, c.PausedWhy, c.Failed = 0, "", "", false
	p.resolve = ""
	end := windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED
	if final == windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED {
		end = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_STOPPED
	}
	p.move(d, end)
	d.Reason, d.Message = reason, message
	p.rollout.Reason, p.rollout.Message, p.rollout.Deadline = reason, message, 0
	for i := range c.Waves {
		for j := range c.Waves[i].Regions {
			st := &c.Waves[i].Regions[j]
			if isForward(st.State) || st.State == regionSkipped && p.isActive(d.ID, st.RegionID) {
				st.State, st.Since, st.HeldSince = regionGoingBack, p.now, 0
				st.StoppedAt, st.PromotedBy, st.Approvals = 0, "", nil
				c.RolledBack = true
			}
		}
	}
	p.log("RolloutGoingBack", fmt.Sprintf("%s, while %s: %s; every region goes back to %s",
		reason, name(was), message, p.versionOf(p.app.LiveDeploymentID)), d, "")
	p.history[len(p.history)-1].Who = who
}

// noteBack marks the regions that are back.
func (p *planner) noteBack() {
	for i := range p.course.Waves {
		for j := range p.course.Waves[i].Regions {
			st := &p.course.Waves[i].Regions[j]
			if st.State != regionGoingBack {
				continue
			}
			if l := p.lane(st.RegionID); l.restored() {
				st.State, st.Since = regionBack, p.now
				p.log("RegionBack", "nothing is left of "+p.versionOf(p.newer().ID)+"; "+l.figures(p), p.deps[p.olderIn(st.RegionID)], st.RegionID)
			}
		}
	}
}

func (p *planner) restored() bool {
	for _, l := range p.look() {
		w, _ := courseRegion(p.course, l.region)
		if left := l.lost && w != nil && p.skips(w); !left && !l.restored() {
			return false
		}
	}
	return true
}

func (p *planner) finishBack(d *model.Deployment) {
	c := p.course
	p.leaveLost()
	p.finish(c.Final, c.Reason, c.Message)
	what := "RolloutFailed"
	if c.Final == windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED {
		what = "RolloutCancelled"
	}
	p.log(what, fmt.Sprintf("%s: %s; %s has every region to itself again", c.Reason, c.Message, p.versionOf(p.app.LiveDeploymentID)), d, "")
}
