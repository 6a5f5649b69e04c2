package plan

import (
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
//	moveRegions  in each region, the next step towards the version that is wanted there
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

// isForward reports whether the target is what is wanted in a region of that state.
func isForward(s windlassv1.RegionProgress_State) bool {
	return s == regionRolling || s == regionMoved || s == regionFailed
}

// staged reports whether the rollout in flight goes by a policy.
func (f *facts) staged() bool {
	return f.progress != nil && f.target() != nil && f.progress.Active(f.rollout.ID) && f.app.DeletingSince == 0
}

// progressIn finds the region's wave and state, nil if it has none.
func progressIn(c *model.Progress, region string) (*model.WaveProgress, *model.RegionProgress) {
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
func (v *view) stage(d *model.Deployment) bool {
	c := v.progress
	done := false
	if !c.Back && c.PausedAt == 0 && len(c.Waves) > 0 {
		done = v.judge(d)
	}
	v.noteBack()
	switch {
	case done:
		v.rollout.Deadline = 0
		v.transition(d, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_NETWORK)
		v.goLive(d)
		return true
	case c.Back && v.restored():
		v.finishBack(d)
		return true
	}
	v.moveRegions()
	if len(c.Waves) > 0 {
		v.rollout.Deadline = deadlineOfRegions(c, d.Spec)
	}
	return false
}

// judge lets regions and waves come to their turn, and reports whether all are done.
func (v *view) judge(d *model.Deployment) (done bool) {
	for i := range v.progress.Waves {
		w := &v.progress.Waves[i]
		for j := range w.Regions {
			if v.judgeRegion(d, w, &w.Regions[j]) {
				return false
			}
		}
	}
	for i := range v.progress.Waves {
		w := &v.progress.Waves[i]
		if w.State == waveWaiting {
			w.State = waveRolling
			v.log("WaveBegun", fmt.Sprintf("wave %s, %d of %d: %s", w.Name, i+1, len(v.progress.Waves), v.regionNames(w)), d, "")
		}
		if w.State != waveDone {
			if !v.begun(d, w) {
				return false
			}
			if allSkipped(v.progress, w) {
				continue // nothing of it can be waited for; it is open until one of them returns
			}
			if !v.baked(d, w) {
				return false
			}
		}
		done = true
	}
	if done && nowhere(v.progress) {
		awaitSkipped(v.progress)
		return false
	}
	return done
}

// judgeRegion looks at a region whose turn has come, and reports whether it stopped the
// rollout.
func (v *view) judgeRegion(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress) (stopped bool) {
	if !isForward(st.State) {
		return false
	}
	l := v.regionPlan(st.RegionID)
	if w.State == waveDone && st.State == regionMoved && l.To.Assigned == 0 && l.Size > 0 {
		v.startAgain(d, w, st, l)
	}
	st.Sized = st.Sized || v.progress.Sizes[st.RegionID] > 0
	if v.takeStepsAfterAll(d, w, st) {
		l = v.regionPlan(st.RegionID)
	}
	if l.lost {
		st.UnhealthySince = 0
		if wavePolicy(v.progress, *w).GetOnUnreachable() == windlassv1.Wave_ON_UNREACHABLE_FAIL && w.State != waveDone {
			v.failRegion(d, w, st, rollup.ReasonRegionUnreachable, "it is out of reach")
			return true
		}
		if v.skips(w) && w.State != waveDone && st.State == regionRolling {
			v.skip(d, w, st, "it is out of reach")
			return false
		}
		if st.State == regionRolling {
			st.ProgressClock.Stop(v.now)
		}
		return false
	}
	if v.in.Closed[st.RegionID] && st.State == regionRolling {
		return v.judgeClosed(d, w, st, l)
	}
	st.StartClocks(v.now)
	if v.standsEmpty(d, w, st, l) {
		return st.Emptied && v.judgeStep(d, w, st, l)
	}
	if v.lacksRoomForBoth(d, w, st, l) {
		return true
	}
	if v.failsByHealth(d, w, st, l) {
		return true
	}
	v.noteRoom(d, st, l)
	step := st.Step
	if st.State == regionRolling && v.judgeStep(d, w, st, l) {
		return true
	}
	if st.Step != step {
		l = v.regionPlan(st.RegionID) // with what the step that begins asks for
	}
	serves := st.Step >= Steps(v.progress.Policy) && l.Serves() && l.Alone()
	switch {
	case st.State != regionMoved && serves:
		st.State, st.Since, st.Reason, st.Message, st.Unacknowledged = regionMoved, v.now, "", "", false
		v.noteServing(st, l)
		v.log("RegionMoved", fmt.Sprintf("it serves alone at route generation %d; %s", v.routes[st.RegionID].Generation, v.figures(l)), d, st.RegionID)
	case st.State == regionMoved && !serves && w.State != waveDone, st.Unacknowledged && !serves && !l.lacksAcknowledgement():
		if v.unsettle(d, w, st, l) {
			return true
		}
	}
	return st.State == regionRolling && v.regionLate(d, w, st, l)
}

// roll has the region be on its way from now on.
func (v *view) roll(st *model.RegionProgress) {
	st.State, st.Since, st.ScoredAt, st.Heard, st.TroubleFor = regionRolling, v.now, v.now, 0, 0
	if l := v.regionPlan(st.RegionID); l.row != nil {
		st.Heard = v.place(l.row).Observed.Guard
	}
}

// reopen has the wave roll, bake and pass its gate once more.
func reopen(w *model.WaveProgress) {
	w.State, w.BakingSince, w.SkippedBy, w.Approvals = waveRolling, 0, "", nil
}

// startAgain has the wave wait for a region again that moved with nothing, and was then told
// to run something: that it had nothing to show is no proof that it serves.
func (v *view) startAgain(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, l *regionPlan) {
	reopen(w)
	v.roll(st)
	st.RelapseCount.Reset()
	st.Score, st.HeldSince = l.score(), 0
	v.log("WaveReopened", fmt.Sprintf("wave %s was done with no replicas in %s, which has %d now",
		w.Name, v.regionName(st.RegionID), l.Size), d, st.RegionID)
}

// regionLate notes what progress there is, and fails a region that makes none.
func (v *view) regionLate(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, l *regionPlan) bool {
	if score := l.score(); score > st.Score || st.ScoredAt == 0 {
		if st.NoRoomSince != 0 {
			v.endRoom(st)
			st.NoRoomSince = v.now
		}
		st.Score, st.ScoredAt, st.TroubleFor = score, v.now, 0
	}
	due := RegionDeadline(v.progress, d.Spec, *st)
	if due == 0 || v.now < due {
		return false
	}
	if l.row != nil {
		if pl := v.place(l.row); pl.Resyncing() || v.now-pl.Region.LastReportAt > freshFor {
			v.stale = true
			return false
		}
	}
	reason, message := rollup.ReasonDeadlineExceeded, ""
	if l.row != nil {
		why, text := v.place(l.row).Why()
		if slices.Contains(keepFromStarting, why) {
			reason = why
		}
		message = strings.TrimSpace(why + " " + text)
	}
	late := fmt.Sprintf("no progress for %d s", (v.now-st.ScoredAt)/1000)
	if !l.Acknowledged {
		late += fmt.Sprintf(", route generation %d is not acknowledged", v.routes[st.RegionID].Generation)
	}
	if message != "" {
		late += ": " + message
	}
	v.failRegion(d, w, st, reason, late)
	return true
}

// score grows with what comes of the steps, not with the steps: replicas that are ready,
// and old ones that are gone.
func (l *regionPlan) score() int32 {
	n := l.To.Ready - l.seen
	if l.Acknowledged && l.To.Weight == 100 {
		n++
	}
	return n
}

// begun lets as many regions of the wave begin as may move at once, and reports whether all
// have moved.
func (v *view) begun(d *model.Deployment, w *model.WaveProgress) (all bool) {
	policy := wavePolicy(v.progress, *w)
	atOnce := max(1, int(policy.GetMaxParallel())) - v.othersCatchingUp()
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
		if l := v.regionPlan(st.RegionID); l.lost {
			switch {
			case v.skips(w):
				if st.State == regionWaiting {
					v.skip(d, w, st, "it is out of reach, and its turn has come")
				}
				continue
			case st.State == regionWaiting && v.skipsNew(st.RegionID):
				v.skip(d, w, st, "no agent has joined it yet, and its turn has come")
				continue
			}
			if policy.GetOnUnreachable() == windlassv1.Wave_ON_UNREACHABLE_FAIL {
				v.failRegion(d, w, st, rollup.ReasonRegionUnreachable, "it is out of reach, and its turn has come")
				return false
			}
			continue
		}
		if v.in.Closed[st.RegionID] {
			continue
		}
		turn := "its turn has come"
		if st.State == regionSkipped || v.behind != nil {
			turn = "it is in reach again, and follows"
			if !v.isActive(v.olderIn(st.RegionID), st.RegionID) {
				turn = "it is in reach, and follows"
			}
		}
		atOnce--
		all = false
		if st.State == regionSkipped && st.HalfWay {
			v.goOn(st)
		} else {
			v.beginRegion(st)
		}
		v.log("RegionBegun", fmt.Sprintf("%s in wave %s; %s", turn, w.Name, v.figures(v.regionPlan(st.RegionID))), d, st.RegionID)
		if v.lacksRoomForBoth(d, w, st, v.regionPlan(st.RegionID)) {
			return false
		}
	}
	return all
}

// beginRegion starts a region whose turn has come.
func (v *view) beginRegion(st *model.RegionProgress) {
	*st = model.RegionProgress{RegionID: st.RegionID, Checks: st.Checks}
	v.roll(st)
	v.beginSteps(st)
	st.Score = v.regionPlan(st.RegionID).score()
}

// baked reports whether the wave, all of whose regions have moved, has served long enough.
func (v *view) baked(d *model.Deployment, w *model.WaveProgress) bool {
	w.State = waveBaking
	if w.BakingSince == 0 {
		w.BakingSince = v.now
		gate, bake := WaveGate(v.progress, *w), BakeTime(v.progress, *w)
		if bake > 0 {
			v.log("WaveBaking", fmt.Sprintf("wave %s serves in %s, and has to for %d s", w.Name, v.regionNames(w), bake/1000), d, "")
		}
		if gate != nil {
			v.log("WaveNeedsApproval", fmt.Sprintf("wave %s serves in %s, and needs %s", w.Name, v.regionNames(w), Missing(v.progress, gate, nil)), d, "")
		}
	}
	if w.SkippedBy == "" && v.progress.FullBy == "" {
		all, failed := v.analysed(d, w)
		if failed || !all || v.now < w.BakingSince+BakeTime(v.progress, *w) {
			return false
		}
	}
	gate := WaveGate(v.progress, *w)
	if Shut(v.progress, gate, w.Approvals) || !v.inReach(w) {
		return false
	}
	w.State = waveDone
	why := fmt.Sprintf("it served for %d s", (v.now-w.BakingSince)/1000)
	switch {
	case w.SkippedBy != "":
		why += "; " + w.SkippedBy + " ended its bake time"
	case v.progress.FullBy != "":
		why += "; " + v.progress.FullBy + " promoted it in full"
	}
	why += approvedBy(gate, w.Approvals)
	v.log("WaveDone", "wave "+w.Name+": "+why, d, "")
	return true
}

// BakeTime of the wave, ms.
func BakeTime(c *model.Progress, w model.WaveProgress) int64 {
	return wavePolicy(c, w).GetBakeTime().AsDuration().Milliseconds()
}

// failRegion does what the wave's policy says of a region that failed.
func (v *view) failRegion(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, reason, message string) {
	text := fmt.Sprintf("%s, in wave %s: %s", v.regionName(st.RegionID), w.Name, message)
	if l := v.regionPlan(st.RegionID); l.row != nil {
		text = fmt.Sprintf("%s, in wave %s (%s): %s", v.regionName(st.RegionID), w.Name, v.figures(l), message)
	}
	st.Reason, st.Message, st.Since = reason, message, v.now
	st.StepWait.Reset()
	on, stays := onFailure(v.progress, w, reason)
	if v.behind != nil {
		v.failBehind(d, st, on, reason, text)
		return
	}
	switch on {
	case windlassv1.Wave_ON_FAILURE_PAUSE, windlassv1.Wave_ON_FAILURE_ROLLBACK_REGION:
		st.State = regionFailed
		what := "it stays as it is"
		if on == windlassv1.Wave_ON_FAILURE_ROLLBACK_REGION {
			st.State = regionGoingBack
			what = "it goes back to " + v.versionOf(v.app.LiveDeploymentID)
		}
		v.log("RegionFailed", fmt.Sprintf("%s: %s; %s, and the rollout is paused%s: %s it", reason, text, what, stays, saidOf(st)), d, st.RegionID)
		v.pause(fmt.Sprintf("%s failed (%s)%s", v.regionName(st.RegionID), reason, stays))
	default:
		v.goBack(d, windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED, reason, text, Who)
	}
}

func (v *view) pause(why string) {
	c := v.progress
	c.PausedAt, c.PausedBy, c.PausedWhy, c.Failed = v.now, Who, why, true
	stopClocks(c, v.now)
}

// goBack moves every region to the live version. The deployment's status is final at once for
// the requests that wait for it; the rollout ends when all regions are back.
func (v *view) goBack(d *model.Deployment, final windlassv1.RolloutStatus, reason, message, who string) {
	c := v.progress
	was := d.Status
	c.Back, c.Final, c.Reason, c.Message = true, final, reason, message
	c.PausedAt, c.PausedBy, c.PausedWhy, c.Failed = 0, "", "", false
	v.resolve = ""
	end := windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED
	if final == windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED {
		end = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_STOPPED
	}
	v.transition(d, end)
	d.Reason, d.Message = reason, message
	v.rollout.Reason, v.rollout.Message, v.rollout.Deadline = reason, message, 0
	for i := range c.Waves {
		for j := range c.Waves[i].Regions {
			st := &c.Waves[i].Regions[j]
			if isForward(st.State) || st.State == regionSkipped && v.isActive(d.ID, st.RegionID) {
				st.State, st.Since, st.HeldSince = regionGoingBack, v.now, 0
				st.StepWait.Reset()
				c.RolledBack = true
			}
		}
	}
	v.log("RolloutGoingBack", fmt.Sprintf("%s, while %s: %s; every region goes back to %s",
		reason, name(was), message, v.versionOf(v.app.LiveDeploymentID)), d, "")
	v.history[len(v.history)-1].Who = who
}

// noteBack marks the regions that are back.
func (v *view) noteBack() {
	for i := range v.progress.Waves {
		for j := range v.progress.Waves[i].Regions {
			st := &v.progress.Waves[i].Regions[j]
			if st.State != regionGoingBack {
				continue
			}
			if l := v.regionPlan(st.RegionID); l.restored() {
				st.State, st.Since = regionBack, v.now
				v.log("RegionBack", "nothing is left of "+v.versionOf(v.newer().ID)+"; "+v.figures(l), v.deps[v.olderIn(st.RegionID)], st.RegionID)
			}
		}
	}
}

func (v *view) restored() bool {
	for _, l := range v.look() {
		w, _ := progressIn(v.progress, l.region)
		if left := l.lost && w != nil && v.skips(w); !left && !l.restored() {
			return false
		}
	}
	return true
}

func (v *view) finishBack(d *model.Deployment) {
	c := v.progress
	v.leaveLost()
	v.finish(c.Final, c.Reason, c.Message)
	what := "RolloutFailed"
	if c.Final == windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED {
		what = "RolloutCancelled"
	}
	v.log(what, fmt.Sprintf("%s: %s; %s has every region to itself again", c.Reason, c.Message, v.versionOf(v.app.LiveDeploymentID)), d, "")
}
