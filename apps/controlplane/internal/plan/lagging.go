package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A wave whose on_unreachable is skip leaves out unreachable regions. An app without its own policy leaves out regions
// that are new to the app and that no agent has joined yet. Nothing serves there that needs protection, and an agent
// may never join, so the other regions would wait for ever. The rollout waits for any other region.
//
//	its wave is still moving  the region joins the wave when it returns
//	its wave has moved        the region is held as it is, until the rollout is over
//	the rollout is over       the region lags: the version that it had stays wanted there, and when
//	                          the region returns, it catches up with the live version
//
// Catching up is a rollout of one region, from the version that the region has to the live version, with the policy of
// the rollout that left the region behind. It has its own progress and follows the rules of staged rollouts. Two things
// differ: the versions between which it moves, and that its failure does not affect other regions.

// newerVersion returns the version that the progress leads to.
func (v *view) newerVersion() *model.Deployment {
	if v.lagging != nil {
		return v.liveDeployment()
	}
	return v.targetDeployment()
}

// olderIn returns the deployment that the region has until it has moved, and to which it goes back;
// empty for none.
func (v *view) olderIn(region string) string {
	switch b := v.facts.progress.LaggingIn(region); {
	case v.lagging != nil && !v.progress.Back:
		return v.lagging.DeploymentID
	case b == nil || b.DeploymentID == "" || v.lagging != nil:
		return v.app.LiveDeploymentID
	default:
		return b.DeploymentID
	}
}

// isLagging reports whether the region has yet to catch up.
func (f *facts) isLagging(region string) bool {
	return f.app.DeletingSince == 0 && f.progress.LaggingIn(region) != nil
}

// isKept reports whether the row must stay, because its deployment is wanted or because a lagging
// region still has it.
func (f *facts) isKept(t *model.Topology) bool {
	return f.isWanted(t.DeploymentID) || f.isLagging(t.RegionID) && f.progress.LaggingIn(t.RegionID).DeploymentID == t.DeploymentID
}

// mustCatchUp reports whether regions must catch up, and no rollout is in flight, which would
// move these regions itself.
func (f *facts) mustCatchUp() bool {
	return f.progress != nil && len(f.progress.Lagging) > 0 && f.targetDeployment() == nil && f.liveDeployment() != nil && f.app.DeletingSince == 0
}

// skipsUnreachable reports whether the wave leaves out unreachable regions. A region that catches up is
// never left out, because no other region waits for it.
func (v *view) skipsUnreachable(w *model.WaveProgress) bool {
	return v.lagging == nil && wavePolicy(v.progress, *w).GetOnUnreachable() == windlassv1.Wave_ON_UNREACHABLE_SKIP
}

// skipsNew reports whether the region, whose turn has come, is left out because the app was never there. Once an agent
// has joined, the rollout waits for the region as for any other region.
func (v *view) skipsNew(region string) bool {
	return v.lagging == nil && v.progress.SkipsNew && !v.isActive(v.olderIn(region), region) &&
		v.regions[region].Status == windlassv1.RegionStatus_REGION_STATUS_PENDING
}

// absenceText says why the region gets nothing new.
func (f *facts) absenceText(region string) string {
	if f.regions[region].Status == windlassv1.RegionStatus_REGION_STATUS_PENDING {
		return "has no agent yet"
	}
	return "is out of reach"
}

// skipRegion leaves the region out.
func (s *stager) skipRegion(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, why string) {
	st.HalfWay, st.StoppedBefore = st.State == regionRolling, st.StoppedAt
	if st.HalfWay {
		st.ProgressClock.Stop(s.now)
	}
	st.State, st.Since, st.Reason, st.Message = regionSkipped, s.now, "", ""
	st.StepWait.Depart()
	st.Unacknowledged = false
	when := "when it returns"
	if s.regions[st.RegionID].Status == windlassv1.RegionStatus_REGION_STATUS_PENDING {
		when = "once an agent has joined"
	}
	left := "goes on without it"
	if gate := wavePolicy(s.progress, *w).GetApproval(); gate != nil && allSkipped(s.progress, w) {
		left += ", and without " + Missing(s.progress, gate, nil) + ", because nothing is left to approve"
	}
	s.log("RegionSkipped", fmt.Sprintf("%s; wave %s %s, and it follows %s; %s",
		why, w.Name, left, when, s.figuresText(s.regionPlan(st.RegionID))), d, st.RegionID)
}

// goOn makes a region that was left out during its move, and is in reach again, continue its step and its clocks as if
// the rollout had waited for it. Otherwise a region that comes and goes would restart each time, and never end.
func (s *stager) goOn(st *model.RegionProgress) {
	st.State, st.Since = regionRolling, s.now
	st.HalfWay, st.StoppedAt, st.StoppedBefore = false, st.StoppedBefore, 0
}

// allSkipped reports whether regions of the wave are skipped and no other region of the wave gets
// replicas, so that the version was not seen there yet. A region that has moved without replicas has
// come to the wave's gate, if there is one.
func allSkipped(c *model.Progress, w *model.WaveProgress) bool {
	skipped, gate := 0, wavePolicy(c, *w).GetApproval()
	for _, st := range w.Regions {
		switch {
		case st.State == regionSkipped:
			skipped++
		case st.State != regionMoved || c.Sizes[st.RegionID] > 0 || gate != nil && !c.CatchesUp:
			return false
		}
	}
	return skipped > 0
}

// skippedEverywhere reports whether all regions in which the version should have replicas were
// skipped.
func skippedEverywhere(c *model.Progress) bool {
	skipped := false
	for _, w := range c.Waves {
		for _, st := range w.Regions {
			switch {
			case c.Sizes[st.RegionID] == 0:
			case st.State != regionSkipped:
				return false
			default:
				skipped = true
			}
		}
	}
	return skipped
}

// awaitSkipped reopens ended waves in which a region that should have replicas was skipped. Such a region must
// return.
func awaitSkipped(c *model.Progress) {
	for i := range c.Waves {
		w := &c.Waves[i]
		if w.State == waveDone && slices.ContainsFunc(w.Regions, func(st model.RegionProgress) bool {
			return st.State == regionSkipped && c.Sizes[st.RegionID] > 0
		}) {
			reopenWave(w)
		}
	}
}

// inReach reports whether the regions of the wave report how they serve. Regions that were left out do not count. If the
// wave skips unreachable regions, one region is enough.
func (v *view) inReach(w *model.WaveProgress) bool {
	reporting := 0
	for _, st := range w.Regions {
		switch {
		case !v.regionPlan(st.RegionID).lost:
			reporting++
		case st.State != regionSkipped && !v.skipsUnreachable(w):
			return false
		}
	}
	return reporting > 0
}

// noteLagging records which regions lag at the end of a rollout.
func (s *stager) noteLagging(d *model.Deployment) {
	c := s.progress
	var behind []model.LaggingRegion
	for i := range c.Waves {
		for _, st := range c.Waves[i].Regions {
			if st.State != regionSkipped {
				continue
			}
			older, has := s.olderIn(st.RegionID), "it keeps what it has"
			if !s.isActive(older, st.RegionID) {
				older, has = "", "it has nothing"
			}
			behind = append(behind, model.LaggingRegion{RegionID: st.RegionID, DeploymentID: older, Progress: s.progressOf(&c.Waves[i], st.RegionID)})
			s.log("RegionLeftBehind", fmt.Sprintf("it is out of reach or came too late for its wave; %s until it has caught up with %s",
				has, s.versionOf(d.ID)), d, st.RegionID)
		}
	}
	c.Lagging = sortedLagging(behind)
}

// leaveLost records which regions lag after a rollout that has gone back: the regions that were lost during their
// move. A region that lagged before catches up from the beginning.
func (s *stager) leaveLost() {
	c := s.progress
	for i := range c.Lagging {
		restartRegion(c.Lagging[i].Progress, s.now)
	}
	for _, l := range s.makeRegionPlans() {
		if l.isRestored() || s.isLagging(l.region) || !s.isActive(s.app.LiveDeploymentID, l.region) {
			continue
		}
		w, _ := progressIn(c, l.region)
		of := s.progressOf(w, l.region)
		of.Back = true
		c.Lagging = sortedLagging(append(c.Lagging, model.LaggingRegion{RegionID: l.region, Progress: of}))
		s.log("RegionLeftBehind", fmt.Sprintf("it is out of reach, and comes back to %s when it returns; %s",
			s.versionOf(s.app.LiveDeploymentID), s.figuresText(l)), s.liveDeployment(), l.region)
	}
}

func sortedLagging(behind []model.LaggingRegion) []model.LaggingRegion {
	slices.SortFunc(behind, func(a, b model.LaggingRegion) int { return strings.Compare(a.RegionID, b.RegionID) })
	return behind
}

// progressOf returns a progress of which the region is the only one.
func (v *view) progressOf(w *model.WaveProgress, region string) *model.Progress {
	c := v.progress.Clone()
	of := &model.Progress{
		RolloutID: c.RolloutID, Policy: c.Policy, Replicas: -1, DefaultReplicas: c.DefaultReplicas,
		Sizes: map[string]int32{}, OldSizes: map[string]int32{}, CatchesUp: true,
		Waves: []model.WaveProgress{{Name: w.Name, Policy: w.Policy, SkippedBy: w.SkippedBy, Regions: []model.RegionProgress{{RegionID: region}}}},
	}
	if n, ok := c.Sizes[region]; ok {
		of.Sizes[region] = n
	}
	if n, ok := c.OldSizes[region]; ok {
		of.OldSizes[region] = n
	}
	restartRegion(of, v.now)
	return of
}

// restartRegion makes the only region of the progress begin again.
func restartRegion(c *model.Progress, now int64) {
	w := &c.Waves[0]
	w.State, w.BakingSince = waveRolling, 0
	w.Regions[0] = model.RegionProgress{RegionID: w.Regions[0].RegionID, State: regionWaiting, Since: now}
	c.PausedAt, c.PausedBy, c.PausedWhy, c.Failed = 0, "", "", false
}

// catchUp moves the lagging regions as far as the facts allow, once in a call.
func (p *planner) catchUp() {
	var left []model.LaggingRegion
	for i := range p.progress.Lagging {
		b := &p.progress.Lagging[i]
		if !p.stagerOf(b).catchUpRegion(b) {
			left = append(left, *b)
			continue
		}
		// The region is now like any other region, which other versions leave in the usual way.
		if _, st := progressIn(p.progress, b.RegionID); st != nil && p.progress.RolloutID == b.Progress.RolloutID {
			if st.State = regionMoved; b.Progress.Back {
				st.State = regionBack
			}
			st.Since = p.now
		}
	}
	p.progress.Lagging = left
}

func (s *stager) catchUpRegion(b *model.LaggingRegion) (done bool) {
	c, d := s.progress, s.liveDeployment()
	switch {
	case c.Back:
		l := s.regionPlan(b.RegionID)
		if done = l.isRestored(); done {
			s.log("RegionCaughtUp", fmt.Sprintf("%s has the region to itself again; %s", s.versionOf(d.ID), s.figuresText(l)), d, b.RegionID)
		}
	case c.PausedAt == 0:
		if done = s.judgeWaves(d); done {
			s.log("RegionCaughtUp", fmt.Sprintf("it serves %s, as the other regions do; %s", s.versionOf(d.ID), s.figuresText(s.regionPlan(b.RegionID))), d, b.RegionID)
		}
	}
	if done {
		return true
	}
	s.noteBack()
	if l := s.regionPlan(b.RegionID); !l.lost {
		s.moveRegion(l)
	}
	return false
}

// failLagging is failRegion for a region that catches up. The other regions have the version already.
func (s *stager) failLagging(d *model.Deployment, st *model.RegionProgress, onFailure windlassv1.Wave_OnFailure, reason, text string) {
	what := "it goes back to what it had"
	st.State = regionGoingBack
	if onFailure == windlassv1.Wave_ON_FAILURE_PAUSE {
		st.State, what = regionFailed, "it stays as it is"
	}
	s.log("RegionFailed", fmt.Sprintf("%s: %s; %s: a retry or the next version tries again", reason, text, what), d, st.RegionID)
	s.pauseRollout(fmt.Sprintf("%s failed (%s)", s.regionName(st.RegionID), reason))
}

// othersCatchingUp returns the number of other regions of the same wave that are catching up.
func (v *view) othersCatchingUp() (n int) {
	if v.lagging == nil {
		return 0
	}
	for _, b := range v.facts.progress.Lagging {
		w := b.Progress.Waves[0]
		same := b.Progress.RolloutID == v.progress.RolloutID && w.Policy == v.progress.Waves[0].Policy
		if same && b.RegionID != v.lagging.RegionID && w.Regions[0].State == regionRolling && w.Regions[0].ClockStoppedSince == 0 {
			n++
		}
	}
	return n
}

// laggingMessage describes in one line which regions lag, empty for none. moving reports whether
// any of them is moving.
func laggingMessage(f *facts) (text string, moving bool) {
	if !f.mustCatchUp() {
		return "", false
	}
	var parts []string
	for i := range f.progress.Lagging {
		b := &f.progress.Lagging[i]
		l, name, live := laggingView(f, b).regionPlan(b.RegionID), f.regionName(b.RegionID), f.versionOf(f.app.LiveDeploymentID)
		st := b.Progress.Waves[0].Regions[0]
		switch {
		case f.in.Closed[b.RegionID]:
			parts = append(parts, name+" "+closedText)
		case l.lost:
			parts = append(parts, fmt.Sprintf("%s %s and has yet to catch up with %s", name, f.absenceText(b.RegionID), live))
		case b.Progress.Failed:
			parts = append(parts, fmt.Sprintf("%s did not catch up with %s: %s: %s", name, live, st.Reason, st.Message))
		default:
			moving = true
			parts = append(parts, fmt.Sprintf("%s catches up with %s: %s", name, live, model.ReadyText(l.isPooled(), l.To.Serving, l.Size)))
		}
	}
	return strings.Join(parts, "; "), moving
}

// RetryLagging restarts regions that failed to catch up, and returns their number.
func RetryLagging(c *model.Progress, now int64) (retried int) {
	for _, b := range c.Lagging {
		if b.Progress.Failed {
			restartRegion(b.Progress, now)
			retried++
		}
	}
	return retried
}

// takeAlong copies the lagging regions into a new progress.
func takeAlong(c *model.Progress, before *model.Progress) {
	c.Lagging = before.Clone().Lagging
	for _, b := range c.Lagging {
		of := b.Progress
		size, had := of.OldSizes[b.RegionID]
		if _, partly := c.OldSizes[b.RegionID]; !had && partly {
			size, had = of.Sizes[b.RegionID], true
		}
		if had {
			c.OldSizes[b.RegionID] = size
		}
	}
}
