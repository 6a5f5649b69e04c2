package plan

import (
	"fmt"
	"math"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	"github.com/windlass-run/windlass/pkg/plural"
)

// With size 0, a region cannot pass a step. A region that is scaled to 0 at a step stands still at the step:
//
//	scaled to 0       the new version's replicas stop, and the old version is wanted
//	at 0              no time and no figure counts; only people can take the region past the step
//	scaled up         the old version starts first; when it serves, the step begins again
//
// A region whose old version had no replicas when its turn came takes no steps, because there is nothing to compare
// with. If it gets replicas before the new version has any, it takes the steps.

// leadsTarget reports whether the region should run the target.
func leadsTarget(st model.RegionProgress) bool { return isForward(st.State) && !st.Emptied }

// beginSteps makes a region whose turn has come begin the first step, or skip all steps.
func (s *stager) beginSteps(st *model.RegionProgress) {
	c, older := s.progress, s.olderIn(st.RegionID)
	st.Emptied, st.PassedOver, st.Sized = false, false, c.Sizes[st.RegionID] > 0
	switch {
	case !s.isActive(older, st.RegionID):
		st.Step = Steps(c.Policy)
	case c.OldSizes[st.RegionID] == 0:
		st.Step, st.PassedOver = Steps(c.Policy), !st.Sized
	}
}

// takeStepsAfterAll makes a region take the steps that it skipped, once both versions should have replicas there and
// neither has any.
func (s *stager) takeStepsAfterAll(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress) (begins bool) {
	if !st.PassedOver || !st.Sized {
		return false
	}
	st.PassedOver = false
	n := s.progress.OldSizes[st.RegionID]
	if n == 0 || s.progress.CatchesUp || Steps(s.progress.Policy) == 0 || !s.isActive(s.olderIn(st.RegionID), st.RegionID) {
		return false
	}
	if w.State == waveDone {
		reopenWave(w)
	}
	s.rollRegion(st)
	st.StepWait, st.ClockStoppedSince, st.Emptied = model.StepWait{}, 0, true
	s.log("StepsBegun", fmt.Sprintf("it now gets %s in wave %s, and takes the steps that it had skipped", plural.Count(n, "replica"), w.Name), d, st.RegionID)
	return true
}

// standsEmpty notes that the region's size became 0 at a step, or that its old version serves
// again. It reports whether the region stands still.
func (s *stager) standsEmpty(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, l *regionPlan) bool {
	was, size := st.Emptied, s.progress.Sizes[st.RegionID]
	switch {
	case st.State != regionRolling:
		return false
	case st.Step >= Steps(s.progress.Policy) || s.progress.CatchesUp:
		st.Emptied = false
	case !was && size == 0:
		st.Emptied = true
		if st.PromotedBy == "" {
			st.StepWait.Depart() // the region begins the step again, without replicas
		}
		forgetClocks(st)
		s.log("StepEmptied", fmt.Sprintf("step %d of %d (%s) of wave %s: it has no replicas now, and begins again when it is scaled up; %s",
			st.Step+1, Steps(s.progress.Policy), stepsOf(s.progress.Policy)[st.Step], w.Name, s.figuresText(l)), d, st.RegionID)
	case was && size > 0 && (l.to == nil || l.Size == 0 || l.To.Ready > 0):
		st.Emptied = false
		st.StepWait.Reset()
		s.rollRegion(st)
		forgetClocks(st)
		s.log("StepBegunAnew", fmt.Sprintf("step %d of %d (%s) of wave %s: it has replicas again; %s",
			st.Step+1, Steps(s.progress.Policy), stepsOf(s.progress.Policy)[st.Step], w.Name, s.figuresText(l)), d, st.RegionID)
	}
	return was || st.Emptied
}

// withoutNewer returns the region plan of a region that stands still. In it, the new version counts as if it did not
// serve: it stops at once, and gets no traffic while the old version starts.
func (v *view) withoutNewer(l *regionPlan) strategy.RegionPlan {
	out := l.RegionPlan
	out.From = slices.Clone(out.From)
	for i, t := range l.from {
		if t.DeploymentID == v.newerVersion().ID {
			out.From[i].Ready, out.From[i].Serving = 0, 0
		}
	}
	return out
}

// forgetClocks resets the clocks and counts of the replicas that the region had.
func forgetClocks(st *model.RegionProgress) {
	st.CapacityWait.End()
	st.TroubleWatch.End()
	st.Score = math.MinInt32
	st.HealthWatch.Reset()
	st.RelapseCount.Reset()
}

// emptyMessage returns what a region without replicas waits for while it stands still.
func emptyMessage(c *model.Progress, st model.RegionProgress) string {
	text := "has no replicas, and begins again when it is scaled up"
	if c.Sizes[st.RegionID] > 0 {
		text = "begins again once the previous version serves again"
	}
	if missing := Missing(c, StepGate(c, st), st.Approvals); missing != "" {
		return text + ", or goes on with " + missing
	}
	if _, person := Waits(c, st); person {
		return text + ", or goes on when it is promoted"
	}
	return text
}

// showsNothing reports whether the region never had replicas that could be measured,
// because its size has been 0 since its turn came.
func showsNothing(c *model.Progress, st model.RegionProgress) bool {
	return c.Sizes[st.RegionID] == 0 && (!st.Sized || c.CatchesUp)
}

// emptyBake reports whether a region that was scaled to 0 keeps its wave's bake from ending: the region's analysis is
// not over, and there is nothing to measure.
func emptyBake(c *model.Progress, w *model.WaveProgress, st model.RegionProgress, now int64) bool {
	return c.Sizes[st.RegionID] == 0 && !showsNothing(c, st) && st.State == regionMoved && w.SkippedBy == "" && c.FullBy == "" &&
		BakeTime(c, *w) > 0 && now >= w.BakingSince+BakeTime(c, *w) && !hasConcluded(c, &st, w.BakingSince, false, now)
}
