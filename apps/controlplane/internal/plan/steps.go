package plan

import (
	"fmt"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// stop is a point on a region's way at which it waits with both versions, or none for a
// strategy that has none.
type stop struct {
	// weight of the new version; replicas of it where that is 0, and with all of them,
	// where no part of the weight is for a part of the replicas.
	weight, replicas int32
	all              bool
	// manual: until somebody promotes; else for as long as pause.
	manual bool
	pause  time.Duration
	// approval that it takes besides, nil for none.
	approval *windlassv1.Approval
}

// Manual is the text of a pause that a person ends.
const Manual = "manual"

// ParsePause reads a step's pause.
func ParsePause(text string) (pause time.Duration, manual bool, err error) {
	if text == "" || text == Manual {
		return 0, text == Manual, nil
	}
	pause, err = time.ParseDuration(text)
	if err != nil || pause < 0 {
		return 0, false, fmt.Errorf("%q is neither a duration nor %q", text, Manual)
	}
	return pause, false, nil
}

// ParsePromotion reads what ends a blue-green region's wait with both versions.
func ParsePromotion(text string) (after time.Duration, manual bool, err error) {
	if text == "" || text == "auto" || text == Manual {
		return 0, text == Manual, nil
	}
	delay, ok := strings.CutPrefix(text, "auto after ")
	if ok {
		after, err = time.ParseDuration(delay)
	}
	if !ok || err != nil || after < 0 {
		return 0, false, fmt.Errorf("%q is neither \"auto\" nor \"auto after\" a duration nor %q", text, Manual)
	}
	return after, false, nil
}

// stops of the policy, which the API has checked.
func stops(policy *windlassv1.RolloutPolicy) (out []stop) {
	switch policy.GetStrategy() {
	case windlassv1.RolloutPolicy_STRATEGY_CANARY:
		for _, s := range policy.GetSteps() {
			pause, manual, err := ParsePause(s.GetPause())
			out = append(out, stop{weight: s.GetWeight(), replicas: s.GetReplicas(), manual: manual || err != nil, pause: pause, approval: s.GetApproval()})
		}
	case windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN:
		after, manual, err := ParsePromotion(policy.GetPromotion())
		out = append(out, stop{
			weight: policy.GetInitialWeight(), all: true, manual: manual || err != nil, pause: after, approval: policy.GetApproval(),
		})
	default:
	}
	return out
}

// Steps is how many the policy's strategy takes in each region.
func Steps(policy *windlassv1.RolloutPolicy) int { return len(stops(policy)) }

// wait tells whether a person ends the region's wait at the stop, and if not, for how
// long it is. Where somebody has to approve, nothing is promoted by itself. Where nothing
// runs, time and analysis show nothing.
func (s stop) wait(c *model.Course, st model.CourseRegion) (pause time.Duration, person bool) {
	switch {
	case c.FullBy != "", c.CatchesUp && s.manual:
		return 0, false
	case c.CatchesUp:
		return s.pause, false
	}
	shows := s.pause > 0 || len(c.Policy.GetAnalysis()) > 0
	return s.pause, s.manual || c.Held && s.approval == nil && (s.all || s.pause > 0) || st.Emptied && shows
}

// Waits tells until when the region waits at its step, or that it does for a person;
// neither when it is on its way.
func Waits(c *model.Course, st model.CourseRegion) (until int64, person bool) {
	all := stops(c.Policy)
	if st.StoppedAt == 0 || st.PromotedBy != "" || st.Step >= len(all) {
		return 0, false
	}
	pause, person := all[st.Step].wait(c, st)
	if person {
		return 0, true
	}
	return st.StoppedAt + pause.Milliseconds(), false
}

// stopOf is where the region is to stay for now; nil: it goes all the way by what is
// ready.
func stopOf(c *model.Course, st model.CourseRegion, size int32) *strategy.Stop {
	all := stops(c.Policy)
	if len(all) == 0 || size == 0 {
		return nil
	}
	whole := all[len(all)-1].all
	if st.Step >= len(all) {
		return &strategy.Stop{Replicas: size, Weight: strategy.Full, Whole: whole}
	}
	if whole {
		return &strategy.Stop{Replicas: size, Weight: all[st.Step].weight, Whole: true}
	}
	s := &strategy.Stop{Weight: all[st.Step].weight, Share: all[st.Step].weight == 0}
	surge, _ := bounds(c, st.RegionID, size)
	_, ceiling := oldBounds(c, st.RegionID)
	ceiling = max(ceiling, size+surge)
	for _, at := range all[:st.Step+1] {
		n := min(at.replicas, size)
		if at.weight > 0 {
			n = (at.weight*size + strategy.Full - 1) / strategy.Full
		}
		if at.weight > 0 && at.weight < strategy.Full {
			n = max(1, min(n, ceiling-1)) // another replica has to serve the rest
		}
		s.Replicas = max(s.Replicas, n)
	}
	return s
}

// judgeStep takes the region from step to step, and tells whether it failed there.
func (v *view) judgeStep(d *model.Deployment, w *model.CourseWave, st *model.CourseRegion, l *lane) (failed bool) {
	all := stops(v.course.Policy)
	if st.Step >= len(all) {
		return false
	}
	if l.Size == 0 && v.course.CatchesUp {
		st.Step = len(all) // nothing is to run there, and the version is live elsewhere
		return false
	}
	if v.skipSteps(d, st, all) {
		return false // the lane is of the step that it was at
	}
	now := all[st.Step]
	at := fmt.Sprintf("step %d of %d (%s) of wave %s", st.Step+1, len(all), now, w.Name)
	pause, person := now.wait(v.course, *st)
	stopped := st.Emptied || l.Stopped()
	switch {
	case stopped && st.StoppedAt == 0:
		st.StoppedAt, st.PromotedBy, st.Approvals = v.now, "", nil
		v.noteServing(st, l)
		what := "goes on"
		switch {
		case now.manual:
			what = "waits for promotion"
		case person && st.Emptied:
			what = "waits for promotion"
		case person:
			what = "waits for promotion, since the app went back before"
		case pause > 0:
			what = fmt.Sprintf("waits %s", pause)
		}
		if gate := StepGate(v.course, *st); gate != nil {
			if what == "goes on" {
				what = "waits"
			} else {
				what += " and"
			}
			what += " for " + Missing(v.course, gate, nil)
		}
		if st.Emptied {
			what += ", with no replicas"
		}
		v.log("StepReached", fmt.Sprintf("%s: %s; at route generation %d; %s", at, what, v.routes[st.RegionID].Generation, v.figures(l)), d, st.RegionID)
	case !stopped && !l.Serves() && st.StoppedAt != 0:
		// What comes and goes of the old version restarts no pause.
		st.StoppedAt, st.PromotedBy, st.Approvals, st.ScoredAt, st.Score, st.TroubleFor = 0, "", nil, v.now, l.score(), 0
		relapse, message := v.relapse(st, l)
		v.log("StepUnsettled", fmt.Sprintf("%s: it no longer serves so%s; %s", at, relapse, v.figures(l)), d, st.RegionID)
		if message != "" {
			v.failRegion(d, w, st, ReasonUnstable, message)
			return true
		}
	}
	if st.StoppedAt != 0 && st.PromotedBy == "" && v.course.FullBy == "" && !st.Emptied && v.analyse(d, w, st, st.StoppedAt, !l.keeps) {
		return true
	}
	over := st.PromotedBy != "" || v.course.FullBy != "" ||
		!person && v.now >= st.StoppedAt+pause.Milliseconds() && (st.Emptied || concluded(v.course, st, st.StoppedAt, !l.keeps, v.now))
	if st.StoppedAt == 0 || !stopped || !over || Shut(v.course, now.approval, st.Approvals) {
		return false
	}
	why := fmt.Sprintf("it served for %d s", (v.now-st.StoppedAt)/1000)
	if st.Emptied {
		why = fmt.Sprintf("it stood still for %d s with no replicas", (v.now-st.StoppedAt)/1000)
	}
	switch {
	case st.PromotedBy != "":
		why += "; " + st.PromotedBy + " promoted it"
	case v.course.FullBy != "":
		why += "; " + v.course.FullBy + " promoted it in full"
	}
	why += approvedBy(now.approval, st.Approvals)
	st.Step++
	st.StoppedAt, st.ScoredAt, st.Score = 0, v.now, l.score()
	forgetRelapses(st)
	v.log("StepDone", at+": "+why, d, st.RegionID)
	return false
}

// skipSteps takes a region past steps that nobody has to approve, once the rollout was
// promoted in full.
func (v *view) skipSteps(d *model.Deployment, st *model.CourseRegion, all []stop) (skipped bool) {
	from := st.Step
	for v.course.FullBy != "" && st.Step < len(all) && all[st.Step].approval == nil {
		st.Step++
	}
	if st.Step == from {
		return false
	}
	st.StoppedAt, st.PromotedBy, st.ScoredAt = 0, "", v.now
	what := fmt.Sprintf("steps %d to %d", from+1, st.Step)
	if st.Step == from+1 {
		what = fmt.Sprintf("step %d", st.Step)
	}
	v.log("StepsSkipped", fmt.Sprintf("%s of %d: %s promoted it in full", what, len(all), v.course.FullBy), d, st.RegionID)
	return true
}

// String is the stop's text: "10 %", "2 replicas".
func (s stop) String() string {
	if s.weight > 0 || s.all {
		return fmt.Sprintf("%d %%", s.weight)
	}
	if s.replicas == 1 {
		return "1 replica"
	}
	return fmt.Sprintf("%d replicas", s.replicas)
}

// stepMessage is where the region is among its steps, empty for nowhere.
func stepMessage(c *model.Course, w *model.CourseWave, st model.CourseRegion, now int64) string {
	all := stops(c.Policy)
	if st.Step >= len(all) {
		return ""
	}
	text := fmt.Sprintf("step %d of %d (%s)", st.Step+1, len(all), all[st.Step])
	until, person := Waits(c, st)
	held := Held(c, w, &st, now)
	switch {
	case st.Emptied:
		text += " " + emptyMessage(c, st)
	case held != nil:
		text += fmt.Sprintf(" is held by %s: %s", held.Name, checkMessage(held))
	case person:
		text += " waits for promotion"
	case until <= now && Shut(c, StepGate(c, st), st.Approvals):
		text += " waits for " + Missing(c, StepGate(c, st), st.Approvals)
	case until > 0:
		text += fmt.Sprintf(" waits %s", all[st.Step].pause)
	}
	return text + ", "
}
