package plan

import (
	"fmt"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A staged rollout follows a policy. All rollouts are staged, except an app's first rollout, and rollouts of apps without
// a policy that began before there was a default policy. Two things are decided separately:
//
//	judge        which regions have their turn, by waves, and whether the rollout goes back
//	moveRegions  in each region, the next step towards the version that is wanted there
//
// The live pointer moves when the last wave is done. Until then, the live version keeps its rows
// in all regions, with fewer replicas or none. So going back only changes which version is wanted in which region.

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

// isForward reports whether a region in that state should run the target.
func isForward(s windlassv1.RegionProgress_State) bool {
	return s == regionRolling || s == regionMoved || s == regionFailed
}

// isStaged reports whether the rollout in flight follows a policy.
func (f *facts) isStaged() bool {
	return f.progress != nil && f.targetDeployment() != nil && f.progress.Active(f.rollout.ID) && f.app.DeletingSince == 0
}

// progressIn returns the region's wave and progress, nil if it has none.
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

// advanceStages moves a staged rollout as far as the facts allow, once in a call.
func (s *stager) advanceStages(d *model.Deployment) bool {
	c := s.progress
	done := false
	if !c.Back && c.PausedAt == 0 && len(c.Waves) > 0 {
		done = s.judgeWaves(d)
	}
	s.noteBack()
	switch {
	case done:
		s.p.rollout.Deadline = 0
		s.p.moveTo(d, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_NETWORK)
		s.p.goLive(d)
		return true
	case c.Back && s.isRestored():
		s.finishBack(d)
		return true
	}
	s.moveRegions()
	if len(c.Waves) > 0 {
		s.p.rollout.Deadline = deadlineOfRegions(c, d.Spec)
	}
	return false
}

// judgeWaves begins regions and waves whose turn has come, and reports whether all waves are done.
func (s *stager) judgeWaves(d *model.Deployment) (done bool) {
	for i := range s.progress.Waves {
		w := &s.progress.Waves[i]
		for j := range w.Regions {
			if s.judgeRegion(d, w, &w.Regions[j]) {
				return false
			}
		}
	}
	for i := range s.progress.Waves {
		w := &s.progress.Waves[i]
		if w.State == waveWaiting {
			w.State = waveRolling
			s.log("WaveBegun", fmt.Sprintf("wave %s, %d of %d: %s", w.Name, i+1, len(s.progress.Waves), s.regionNames(w)), d, "")
		}
		if w.State != waveDone {
			if !s.beginRegions(d, w) {
				return false
			}
			if allSkipped(s.progress, w) {
				continue // all regions of the wave are left out; the wave stays open until one of them returns
			}
			if !s.hasBaked(d, w) {
				return false
			}
		}
		done = true
	}
	if done && skippedEverywhere(s.progress) {
		awaitSkipped(s.progress)
		return false
	}
	return done
}

// judgeRegion decides about a region whose turn has come, and reports whether the region stopped the
// rollout.
func (s *stager) judgeRegion(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress) (stopped bool) {
	if !isForward(st.State) {
		return false
	}
	l := s.regionPlan(st.RegionID)
	if w.State == waveDone && st.State == regionMoved && l.To.Assigned == 0 && l.Size > 0 {
		s.startAgain(d, w, st, l)
	}
	st.Sized = st.Sized || s.progress.Sizes[st.RegionID] > 0
	if s.takeStepsAfterAll(d, w, st) {
		l = s.regionPlan(st.RegionID)
	}
	if l.lost {
		st.HealthWatch.Recover()
		if wavePolicy(s.progress, *w).GetOnUnreachable() == windlassv1.Wave_ON_UNREACHABLE_FAIL && w.State != waveDone {
			s.failRegion(d, w, st, rollup.ReasonRegionUnreachable, "it is out of reach")
			return true
		}
		if s.skipsUnreachable(w) && w.State != waveDone && st.State == regionRolling {
			s.skipRegion(d, w, st, "it is out of reach")
			return false
		}
		if st.State == regionRolling {
			st.ProgressClock.Stop(s.now)
		}
		return false
	}
	if s.in.Closed[st.RegionID] && st.State == regionRolling {
		return s.judgeClosed(d, w, st, l)
	}
	st.StartClocks(s.now)
	if s.standsEmpty(d, w, st, l) {
		return st.Emptied && s.judgeStep(d, w, st, l)
	}
	if s.lacksRoomForBoth(d, w, st, l) {
		return true
	}
	if s.failsByHealth(d, w, st, l) {
		return true
	}
	s.noteCapacity(d, st, l)
	step := st.Step
	if st.State == regionRolling && s.judgeStep(d, w, st, l) {
		return true
	}
	if st.Step != step {
		l = s.regionPlan(st.RegionID) // with the targets of the new step
	}
	serves := st.Step >= Steps(s.progress.Policy) && l.Serves() && l.Alone()
	switch {
	case st.State != regionMoved && serves:
		st.State, st.Since, st.Reason, st.Message, st.Unacknowledged = regionMoved, s.now, "", "", false
		s.noteServing(st, l)
		s.log("RegionMoved", fmt.Sprintf("it serves alone at route generation %d; %s", s.routes[st.RegionID].Generation, s.figuresText(l)), d, st.RegionID)
	case st.State == regionMoved && !serves && w.State != waveDone, st.Unacknowledged && !serves && !l.lacksAcknowledgement():
		if s.rollAgain(d, w, st, l) {
			return true
		}
	}
	return st.State == regionRolling && s.regionLate(d, w, st, l)
}

// rollRegion makes the region move from now on.
func (s *stager) rollRegion(st *model.RegionProgress) {
	st.State, st.Since, st.ScoredAt, st.Heard, st.TroubleFor = regionRolling, s.now, s.now, 0, 0
	if l := s.regionPlan(st.RegionID); l.row != nil {
		st.Heard = s.placeOf(l.row).Observed.Guard
	}
}

// reopenWave makes the wave move, bake and pass its gate once more.
func reopenWave(w *model.WaveProgress) {
	w.State, w.BakingSince, w.SkippedBy, w.Approvals = waveRolling, 0, "", nil
}

// startAgain reopens the wave of a region that moved without replicas and should have some now, because the region has
// not shown yet that it serves.
func (s *stager) startAgain(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, l *regionPlan) {
	reopenWave(w)
	s.rollRegion(st)
	st.RelapseCount.Reset()
	st.Score, st.ClockStoppedSince = l.progressScore(), 0
	s.log("WaveReopened", fmt.Sprintf("wave %s was done with no replicas in %s, which has %d now",
		w.Name, s.regionName(st.RegionID), l.Size), d, st.RegionID)
}

// regionLate records the region's progress, and fails a region that makes none.
func (s *stager) regionLate(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, l *regionPlan) bool {
	if score := l.progressScore(); score > st.Score || st.ScoredAt == 0 {
		if st.NoRoomSince != 0 {
			s.endCapacityWait(st)
			st.NoRoomSince = s.now
		}
		st.Score, st.ScoredAt, st.TroubleFor = score, s.now, 0
	}
	due := RegionDeadline(s.progress, d.Spec, *st)
	if due == 0 || s.now < due {
		return false
	}
	if l.row != nil {
		if pl := s.placeOf(l.row); pl.Resyncing() || s.now-pl.Region.LastReportAt > freshFor {
			s.p.stale = true
			return false
		}
	}
	reason, message := rollup.ReasonDeadlineExceeded, ""
	if l.row != nil {
		why, text := s.placeOf(l.row).Why()
		if rollup.MeaningOf(why).Waits {
			reason = why
		}
		message = strings.TrimSpace(why + " " + text)
	}
	late := fmt.Sprintf("no progress for %d s", (s.now-st.ScoredAt)/1000)
	if !l.Acknowledged {
		late += fmt.Sprintf(", route generation %d is not acknowledged", s.routes[st.RegionID].Generation)
	}
	if message != "" {
		late += ": " + message
	}
	s.failRegion(d, w, st, reason, late)
	return true
}

// progressScore grows with the results of steps, and not with the steps: with replicas that are ready,
// and with old replicas that have ended.
func (l *regionPlan) progressScore() int32 {
	n := l.To.Ready - l.reportedReplicas
	if l.Acknowledged && l.To.Weight == 100 {
		n++
	}
	return n
}

// beginRegions begins as many regions of the wave as may move at once, and reports whether all
// regions have moved.
func (s *stager) beginRegions(d *model.Deployment, w *model.WaveProgress) (all bool) {
	policy := wavePolicy(s.progress, *w)
	atOnce := max(1, int(policy.GetMaxParallel())) - s.othersCatchingUp()
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
		if l := s.regionPlan(st.RegionID); l.lost {
			switch {
			case s.skipsUnreachable(w):
				if st.State == regionWaiting {
					s.skipRegion(d, w, st, "it is out of reach, and its turn has come")
				}
				continue
			case st.State == regionWaiting && s.skipsNew(st.RegionID):
				s.skipRegion(d, w, st, "no agent has joined it yet, and its turn has come")
				continue
			}
			if policy.GetOnUnreachable() == windlassv1.Wave_ON_UNREACHABLE_FAIL {
				s.failRegion(d, w, st, rollup.ReasonRegionUnreachable, "it is out of reach, and its turn has come")
				return false
			}
			continue
		}
		if s.in.Closed[st.RegionID] {
			continue
		}
		turn := "its turn has come"
		if st.State == regionSkipped || s.lagging != nil {
			turn = "it is in reach again, and follows"
			if !s.isActive(s.olderIn(st.RegionID), st.RegionID) {
				turn = "it is in reach, and follows"
			}
		}
		atOnce--
		all = false
		if st.State == regionSkipped && st.HalfWay {
			s.goOn(st)
		} else {
			s.beginRegion(st)
		}
		s.log("RegionBegun", fmt.Sprintf("%s in wave %s; %s", turn, w.Name, s.figuresText(s.regionPlan(st.RegionID))), d, st.RegionID)
		if s.lacksRoomForBoth(d, w, st, s.regionPlan(st.RegionID)) {
			return false
		}
	}
	return all
}

// beginRegion starts a region whose turn has come.
func (s *stager) beginRegion(st *model.RegionProgress) {
	*st = model.RegionProgress{RegionID: st.RegionID, Checks: st.Checks}
	s.rollRegion(st)
	s.beginSteps(st)
	st.Score = s.regionPlan(st.RegionID).progressScore()
}

// hasBaked reports whether a wave in which all regions have moved has served long enough.
func (s *stager) hasBaked(d *model.Deployment, w *model.WaveProgress) bool {
	w.State = waveBaking
	if w.BakingSince == 0 {
		w.BakingSince = s.now
		gate, bake := WaveGate(s.progress, *w), BakeTime(s.progress, *w)
		if bake > 0 {
			s.log("WaveBaking", fmt.Sprintf("wave %s serves in %s, and must serve for %d s", w.Name, s.regionNames(w), bake/1000), d, "")
		}
		if gate != nil {
			s.log("WaveNeedsApproval", fmt.Sprintf("wave %s serves in %s, and needs %s", w.Name, s.regionNames(w), Missing(s.progress, gate, nil)), d, "")
		}
	}
	if w.SkippedBy == "" && s.progress.FullBy == "" {
		all, failed := s.analysedWave(d, w)
		if failed || !all || s.now < w.BakingSince+BakeTime(s.progress, *w) {
			return false
		}
	}
	gate := WaveGate(s.progress, *w)
	if Shut(s.progress, gate, w.Approvals) || !s.inReach(w) {
		return false
	}
	w.State = waveDone
	why := fmt.Sprintf("it served for %d s", (s.now-w.BakingSince)/1000)
	switch {
	case w.SkippedBy != "":
		why += "; " + w.SkippedBy + " ended its bake time"
	case s.progress.FullBy != "":
		why += "; " + s.progress.FullBy + " promoted it in full"
	}
	why += approvedBy(gate, w.Approvals)
	s.log("WaveDone", "wave "+w.Name+": "+why, d, "")
	return true
}

// BakeTime returns the wave's bake time, ms.
func BakeTime(c *model.Progress, w model.WaveProgress) int64 {
	return wavePolicy(c, w).GetBakeTime().AsDuration().Milliseconds()
}

// failRegion handles a failed region in the way that the wave's policy says.
func (s *stager) failRegion(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, reason, message string) {
	text := fmt.Sprintf("%s, in wave %s: %s", s.regionName(st.RegionID), w.Name, message)
	if l := s.regionPlan(st.RegionID); l.row != nil {
		text = fmt.Sprintf("%s, in wave %s (%s): %s", s.regionName(st.RegionID), w.Name, s.figuresText(l), message)
	}
	st.Reason, st.Message, st.Since = reason, message, s.now
	st.StepWait.Reset()
	on, stays := onFailure(s.progress, w, reason)
	if s.lagging != nil {
		s.failLagging(d, st, on, reason, text)
		return
	}
	switch on {
	case windlassv1.Wave_ON_FAILURE_PAUSE, windlassv1.Wave_ON_FAILURE_ROLLBACK_REGION:
		st.State = regionFailed
		what := "it stays as it is"
		if on == windlassv1.Wave_ON_FAILURE_ROLLBACK_REGION {
			st.State = regionGoingBack
			what = "it goes back to " + s.versionOf(s.app.LiveDeploymentID)
		}
		s.log("RegionFailed", fmt.Sprintf("%s: %s; %s, and the rollout is paused%s: %s it", reason, text, what, stays, saidOf(st)), d, st.RegionID)
		s.pauseRollout(fmt.Sprintf("%s failed (%s)%s", s.regionName(st.RegionID), reason, stays))
	default:
		s.goBack(d, windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED, reason, text, Who)
	}
}

func (s *stager) pauseRollout(why string) {
	c := s.progress
	c.PausedAt, c.PausedBy, c.PausedWhy, c.Failed = s.now, Who, why, true
	stopClocks(c, s.now)
}

// goBack moves every region to the live version. The deployment's status is final at once for
// the requests that wait for it. The rollout ends when all regions have gone back.
func (s *stager) goBack(d *model.Deployment, final windlassv1.RolloutStatus, reason, message, who string) {
	c := s.progress
	was := d.Status
	c.Back, c.Final, c.Reason, c.Message = true, final, reason, message
	c.PausedAt, c.PausedBy, c.PausedWhy, c.Failed = 0, "", "", false
	s.p.resolve = ""
	end := windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED
	if final == windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED {
		end = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_STOPPED
	}
	s.p.moveTo(d, end)
	d.Reason, d.Message = reason, message
	s.p.rollout.Reason, s.p.rollout.Message, s.p.rollout.Deadline = reason, message, 0
	for i := range c.Waves {
		for j := range c.Waves[i].Regions {
			st := &c.Waves[i].Regions[j]
			if isForward(st.State) || st.State == regionSkipped && s.isActive(d.ID, st.RegionID) {
				st.State, st.Since, st.ClockStoppedSince = regionGoingBack, s.now, 0
				st.StepWait.Reset()
				c.RolledBack = true
			}
		}
	}
	s.log("RolloutGoingBack", fmt.Sprintf("%s, while %s: %s; every region goes back to %s",
		reason, statusName(was), message, s.versionOf(s.app.LiveDeploymentID)), d, "")
	s.p.history[len(s.p.history)-1].Who = who
}

// noteBack marks the regions that have gone back.
func (s *stager) noteBack() {
	for i := range s.progress.Waves {
		for j := range s.progress.Waves[i].Regions {
			st := &s.progress.Waves[i].Regions[j]
			if st.State != regionGoingBack {
				continue
			}
			if l := s.regionPlan(st.RegionID); l.isRestored() {
				st.State, st.Since = regionBack, s.now
				s.log("RegionBack", "nothing is left of "+s.versionOf(s.newerVersion().ID)+"; "+s.figuresText(l), s.deps[s.olderIn(st.RegionID)], st.RegionID)
			}
		}
	}
}

func (v *view) isRestored() bool {
	for _, l := range v.makeRegionPlans() {
		w, _ := progressIn(v.progress, l.region)
		if left := l.lost && w != nil && v.skipsUnreachable(w); !left && !l.isRestored() {
			return false
		}
	}
	return true
}

func (s *stager) finishBack(d *model.Deployment) {
	c := s.progress
	s.leaveLost()
	s.p.finishRollout(c.Final, c.Reason, c.Message)
	what := "RolloutFailed"
	if c.Final == windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED {
		what = "RolloutCancelled"
	}
	s.log(what, fmt.Sprintf("%s: %s; %s has every region to itself again", c.Reason, c.Message, s.versionOf(s.app.LiveDeploymentID)), d, "")
}
