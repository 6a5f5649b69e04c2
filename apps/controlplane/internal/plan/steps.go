package plan

import (
	"fmt"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// stepsOf returns the points at which a region waits with both versions.
func stepsOf(policy *windlassv1.RolloutPolicy) []strategy.Step {
	return strategy.Of(policy).Steps(policy)
}

// Steps returns how many steps the policy's strategy takes in each region.
func Steps(policy *windlassv1.RolloutPolicy) int { return len(stepsOf(policy)) }

// wait reports whether a person ends the region's wait at the step, and if not, how long the
// wait is. After the app went back, a step without a gate waits for a person. So does a step without
// replicas, because its time and analysis show nothing.
func wait(s strategy.Step, c *model.Progress, st model.RegionProgress) (pause time.Duration, person bool) {
	switch {
	case c.FullBy != "", c.CatchesUp && s.Manual:
		return 0, false
	case c.CatchesUp:
		return s.Pause, false
	}
	shows := s.Pause > 0 || len(c.Policy.GetAnalysis()) > 0
	return s.Pause, s.Manual || c.PromotionPaused && s.Approval == nil && (s.Whole || s.Pause > 0) || st.Emptied && shows
}

// Waits returns until when the region waits at its step, unix ms, or that it waits for a person.
// Both are zero while the region is moving.
func Waits(c *model.Progress, st model.RegionProgress) (until int64, person bool) {
	all := stepsOf(c.Policy)
	if st.StoppedAt == 0 || st.PromotedBy != "" || st.Step >= len(all) {
		return 0, false
	}
	pause, person := wait(all[st.Step], c, st)
	if person {
		return 0, true
	}
	return st.StoppedAt + pause.Milliseconds(), false
}

// stopOf returns the stop at which the region should stay for now. nil: the region moves to the end, as replicas
// become ready.
func stopOf(c *model.Progress, st model.RegionProgress, size int32) *strategy.Stop {
	all := stepsOf(c.Policy)
	if len(all) == 0 || size == 0 {
		return nil
	}
	whole := all[len(all)-1].Whole
	if st.Step >= len(all) {
		return &strategy.Stop{Replicas: size, Weight: strategy.Full, Whole: whole}
	}
	if whole {
		return &strategy.Stop{Replicas: size, Weight: all[st.Step].Weight, Whole: true}
	}
	s := &strategy.Stop{Weight: all[st.Step].Weight, Share: all[st.Step].Weight == 0}
	surge, _ := regionBounds(c, st.RegionID, size)
	_, ceiling := oldBounds(c, st.RegionID)
	ceiling = max(ceiling, size+surge)
	for _, at := range all[:st.Step+1] {
		n := min(at.Replicas, size)
		if at.Weight > 0 {
			n = (at.Weight*size + strategy.Full - 1) / strategy.Full
		}
		if at.Weight > 0 && at.Weight < strategy.Full {
			n = max(1, min(n, ceiling-1)) // the old version needs a replica for the other traffic
		}
		s.Replicas = max(s.Replicas, n)
	}
	return s
}

// judgeStep moves the region from step to step, and reports whether it failed at a step.
func (s *stager) judgeStep(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, l *regionPlan) (failed bool) {
	all := stepsOf(s.progress.Policy)
	if st.Step >= len(all) {
		return false
	}
	if l.Size == 0 && s.progress.CatchesUp {
		st.Step = len(all) // the region should have no replicas, and the version is live in other regions
		return false
	}
	if s.skipSteps(d, st, all) {
		return false // the region plan still has the region's last step
	}
	now := all[st.Step]
	at := fmt.Sprintf("step %d of %d (%s) of wave %s", st.Step+1, len(all), now, w.Name)
	pause, person := wait(now, s.progress, *st)
	stopped := st.Emptied || l.Stopped()
	switch {
	case stopped && st.StoppedAt == 0:
		st.StepWait = model.StepWait{Step: st.Step, StoppedAt: s.now}
		s.noteServing(st, l)
		what := "goes on"
		switch {
		case now.Manual:
			what = "waits for promotion"
		case person && st.Emptied:
			what = "waits for promotion"
		case person:
			what = "waits for promotion, because the app went back before"
		case pause > 0:
			what = fmt.Sprintf("waits %s", pause)
		}
		if gate := StepGate(s.progress, *st); gate != nil {
			if what == "goes on" {
				what = "waits"
			} else {
				what += " and"
			}
			what += " for " + Missing(s.progress, gate, nil)
		}
		if st.Emptied {
			what += ", with no replicas"
		}
		s.log("StepReached", fmt.Sprintf("%s: %s; at route generation %d; %s", at, what, s.routes[st.RegionID].Generation, s.figuresText(l)), d, st.RegionID)
	case !stopped && !l.Serves() && st.StoppedAt != 0:
		// Replicas of the old version that come and go do not restart a pause.
		st.StepWait.Reset()
		st.ScoredAt, st.Score, st.TroubleFor = s.now, l.progressScore(), 0
		relapse, message := s.noteRelapse(st, l)
		s.log("StepUnsettled", fmt.Sprintf("%s: it no longer serves as the step needs%s; %s", at, relapse, s.figuresText(l)), d, st.RegionID)
		if message != "" {
			s.failRegion(d, w, st, ReasonUnstable, message)
			return true
		}
	}
	if st.StoppedAt != 0 && st.PromotedBy == "" && s.progress.FullBy == "" && !st.Emptied && s.analyseRegion(d, w, st, st.StoppedAt, !l.keeps) {
		return true
	}
	over := st.PromotedBy != "" || s.progress.FullBy != "" ||
		!person && s.now >= st.StoppedAt+pause.Milliseconds() && (st.Emptied || hasConcluded(s.progress, st, st.StoppedAt, !l.keeps, s.now))
	if st.StoppedAt == 0 || !stopped || !over || Shut(s.progress, now.Approval, st.Approvals) {
		return false
	}
	why := fmt.Sprintf("it served for %d s", (s.now-st.StoppedAt)/1000)
	if st.Emptied {
		why = fmt.Sprintf("it stood still for %d s with no replicas", (s.now-st.StoppedAt)/1000)
	}
	switch {
	case st.PromotedBy != "":
		why += "; " + st.PromotedBy + " promoted it"
	case s.progress.FullBy != "":
		why += "; " + s.progress.FullBy + " promoted it in full"
	}
	why += approvedBy(now.Approval, st.Approvals)
	st.Step++
	st.StepWait.Depart()
	st.ScoredAt, st.Score = s.now, l.progressScore()
	st.RelapseCount.Reset()
	s.log("StepDone", at+": "+why, d, st.RegionID)
	return false
}

// skipSteps moves a region past the steps that need no approval, after the rollout was promoted
// in full.
func (s *stager) skipSteps(d *model.Deployment, st *model.RegionProgress, all []strategy.Step) (skipped bool) {
	from := st.Step
	for s.progress.FullBy != "" && st.Step < len(all) && all[st.Step].Approval == nil {
		st.Step++
	}
	if st.Step == from {
		return false
	}
	st.StepWait.Depart()
	st.PromotedBy, st.ScoredAt = "", s.now
	what := fmt.Sprintf("steps %d to %d", from+1, st.Step)
	if st.Step == from+1 {
		what = fmt.Sprintf("step %d", st.Step)
	}
	s.log("StepsSkipped", fmt.Sprintf("%s of %d: %s promoted it in full", what, len(all), s.progress.FullBy), d, st.RegionID)
	return true
}

// stepMessage says at which of its steps the region is, empty for none.
func stepMessage(c *model.Progress, w *model.WaveProgress, st model.RegionProgress, now int64) string {
	all := stepsOf(c.Policy)
	if st.Step >= len(all) {
		return ""
	}
	text := fmt.Sprintf("step %d of %d (%s)", st.Step+1, len(all), all[st.Step])
	until, person := Waits(c, st)
	inconclusive := InconclusiveCheck(c, w, &st, now)
	switch {
	case st.Emptied:
		text += " " + emptyMessage(c, st)
	case inconclusive != nil:
		text += fmt.Sprintf(" is held by %s: %s", inconclusive.Name, checkMessage(inconclusive))
	case person:
		text += " waits for promotion"
	case until <= now && Shut(c, StepGate(c, st), st.Approvals):
		text += " waits for " + Missing(c, StepGate(c, st), st.Approvals)
	case until > 0:
		text += fmt.Sprintf(" waits %s", all[st.Step].Pause)
	}
	return text + ", "
}
