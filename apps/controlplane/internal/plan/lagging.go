package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A wave whose on_unreachable is skip leaves out the regions that are unreachable. An app
// without a policy of its own leaves out the regions that are new to it and that no agent has
// joined yet. Nothing serves there that needs protection, and an agent may never join: the
// other regions would wait for good. The rollout waits for any other region.
//
//	its wave moves still      it joins the wave when it returns
//	its wave has moved        it is held as it is, until the rollout is over
//	the rollout is over       it lags: what it had stays wanted there, and when it
//	                          returns it catches up with what is live
//
// To catch up is a rollout of one region, from the version that it has to the live one, by the
// policy under which it was left behind. It has a progress of its own and follows the rules of
// staged rollouts. Two things differ: which versions it moves between, and that its failure
// does not affect other regions.

// newer returns the version that the progress leads to.
func (v *view) newer() *model.Deployment {
	if v.lagging != nil {
		return v.live()
	}
	return v.target()
}

// olderIn returns the deployment that the region has until it has moved, and goes back to;
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

// isKept reports whether the row is wanted, because its deployment is or because a lagging
// region still has it.
func (f *facts) isKept(t *model.Topology) bool {
	return f.isWanted(t.DeploymentID) || f.isLagging(t.RegionID) && f.progress.LaggingIn(t.RegionID).DeploymentID == t.DeploymentID
}

// catching reports whether regions have to catch up and no rollout is in flight, which would
// take them along.
func (f *facts) catching() bool {
	return f.progress != nil && len(f.progress.Lagging) > 0 && f.target() == nil && f.live() != nil && f.app.DeletingSince == 0
}

// skips reports whether the wave leaves out unreachable regions. A region that catches up is
// never left out, because no other region waits for it.
func (v *view) skips(w *model.WaveProgress) bool {
	return v.lagging == nil && wavePolicy(v.progress, *w).GetOnUnreachable() == windlassv1.Wave_ON_UNREACHABLE_SKIP
}

// skipsNew reports whether the region, whose turn has come, is left out because nothing was ever there. Once an agent
// has joined, the rollout waits for it as for any other region.
func (v *view) skipsNew(region string) bool {
	return v.lagging == nil && v.progress.SkipsNew && !v.isActive(v.olderIn(region), region) &&
		v.regions[region].Status == windlassv1.RegionStatus_REGION_STATUS_PENDING
}

// absence describes why the region gets nothing new.
func (f *facts) absence(region string) string {
	if f.regions[region].Status == windlassv1.RegionStatus_REGION_STATUS_PENDING {
		return "has no agent yet"
	}
	return "is out of reach"
}

// skip leaves the region out.
func (s *stager) skip(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, why string) {
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
		left += " and, because nothing of it is left to approve, without " + Missing(s.progress, gate, nil)
	}
	s.log("RegionSkipped", fmt.Sprintf("%s; wave %s %s, and it follows %s; %s",
		why, w.Name, left, when, s.figures(s.regionPlan(st.RegionID))), d, st.RegionID)
}

// goOn lets a region that was left out half way, and is in reach again, continue its step and its clocks as if the
// rollout had waited for it. Otherwise a region that comes and goes would begin anew each time, and never end.
func (s *stager) goOn(st *model.RegionProgress) {
	st.State, st.Since = regionRolling, s.now
	st.HalfWay, st.StoppedAt, st.StoppedBefore = false, st.StoppedBefore, 0
}

// allSkipped reports whether regions of the wave are skipped and no other region of it gets
// replicas: the version was not seen there yet. A region that has moved with no replicas has
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

// nowhere reports whether all regions in which the version should have replicas were
// skipped.
func nowhere(c *model.Progress) bool {
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

// awaitSkipped reopens the waves that ended while a region that should have replicas was skipped. Such a region has to
// return.
func awaitSkipped(c *model.Progress) {
	for i := range c.Waves {
		w := &c.Waves[i]
		if w.State == waveDone && slices.ContainsFunc(w.Regions, func(st model.RegionProgress) bool {
			return st.State == regionSkipped && c.Sizes[st.RegionID] > 0
		}) {
			reopen(w)
		}
	}
}

// inReach reports whether regions report how the wave serves: all its regions except those that were left out. If the
// wave skips unreachable regions, one region is enough.
func (v *view) inReach(w *model.WaveProgress) bool {
	reporting := 0
	for _, st := range w.Regions {
		switch {
		case !v.regionPlan(st.RegionID).lost:
			reporting++
		case st.State != regionSkipped && !v.skips(w):
			return false
		}
	}
	return reporting > 0
}

// noteLagging notes which regions lag at the end of a rollout.
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

// leaveLost notes which regions a rollout that has gone back leaves behind: those that it
// lost half way. A region that was behind before catches up anew.
func (s *stager) leaveLost() {
	c := s.progress
	for i := range c.Lagging {
		restart(c.Lagging[i].Progress, s.now)
	}
	for _, l := range s.makeRegionPlans() {
		if l.restored() || s.isLagging(l.region) || !s.isActive(s.app.LiveDeploymentID, l.region) {
			continue
		}
		w, _ := progressIn(c, l.region)
		of := s.progressOf(w, l.region)
		of.Back = true
		c.Lagging = sortedLagging(append(c.Lagging, model.LaggingRegion{RegionID: l.region, Progress: of}))
		s.log("RegionLeftBehind", fmt.Sprintf("it is out of reach, and comes back to %s when it returns; %s",
			s.versionOf(s.app.LiveDeploymentID), s.figures(l)), s.live(), l.region)
	}
}

func sortedLagging(behind []model.LaggingRegion) []model.LaggingRegion {
	slices.SortFunc(behind, func(a, b model.LaggingRegion) int { return strings.Compare(a.RegionID, b.RegionID) })
	return behind
}

// progressOf returns a progress with one region of the wave.
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
	restart(of, v.now)
	return of
}

// restart makes the one region of the progress begin anew.
func restart(c *model.Progress, now int64) {
	w := &c.Waves[0]
	w.State, w.BakingSince = waveRolling, 0
	w.Regions[0] = model.RegionProgress{RegionID: w.Regions[0].RegionID, State: regionWaiting, Since: now}
	c.PausedAt, c.PausedBy, c.PausedWhy, c.Failed = 0, "", "", false
}

// catchUp takes the regions that are behind as far as the facts allow, once in a call.
func (p *planner) catchUp() {
	var left []model.LaggingRegion
	for i := range p.progress.Lagging {
		b := &p.progress.Lagging[i]
		if !p.lagging(b).catchUpRegion(b) {
			left = append(left, *b)
			continue
		}
		// The region is like any other now: other versions leave it as they do elsewhere.
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
	c, d := s.progress, s.live()
	switch {
	case c.Back:
		l := s.regionPlan(b.RegionID)
		if done = l.restored(); done {
			s.log("RegionCaughtUp", fmt.Sprintf("%s has it to itself again; %s", s.versionOf(d.ID), s.figures(l)), d, b.RegionID)
		}
	case c.PausedAt == 0:
		if done = s.judge(d); done {
			s.log("RegionCaughtUp", fmt.Sprintf("it serves %s, as the other regions do; %s", s.versionOf(d.ID), s.figures(s.regionPlan(b.RegionID))), d, b.RegionID)
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
	s.pause(fmt.Sprintf("%s failed (%s)", s.regionName(st.RegionID), reason))
}

// othersCatchingUp counts the other regions of the same wave that catch up now.
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

// laggingMessage returns in one line which regions are behind, empty for none, and whether
// any of them is on its way.
func laggingMessage(f *facts) (text string, moving bool) {
	if !f.catching() {
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
			parts = append(parts, fmt.Sprintf("%s %s and has yet to catch up with %s", name, f.absence(b.RegionID), live))
		case b.Progress.Failed:
			parts = append(parts, fmt.Sprintf("%s did not catch up with %s: %s: %s", name, live, st.Reason, st.Message))
		default:
			moving = true
			parts = append(parts, fmt.Sprintf("%s catches up with %s: %s", name, live, model.ReadyText(l.pooled(), l.To.Serving, l.Size)))
		}
	}
	return strings.Join(parts, "; "), moving
}

// RetryLagging lets regions that failed to catch up begin again, and returns how many.
func RetryLagging(c *model.Progress, now int64) (retried int) {
	for _, b := range c.Lagging {
		if b.Progress.Failed {
			restart(b.Progress, now)
			retried++
		}
	}
	return retried
}

// takeAlong copies the regions that are behind into a new progress.
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
