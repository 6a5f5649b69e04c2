package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// The analysis of a staged rollout measures checks at the steps and bakes of regions. The planner returns the checks
// that are due, and is called again with their measurements.
//
//	waiting -> passed | failed | inconclusive, set again by each measurement
//
// A region leaves a step, and a wave leaves its bake, when the last measurement of each check passed. A check that fails
// too often fails the region. An inconclusive check holds the region until a measurement is conclusive, a person
// decides, or the check's hold_limit ends.

// Reasons of regions that failed by their analysis.
const (
	ReasonAnalysisFailed       = "AnalysisFailed"       // a check failed more often than its failure_limit
	ReasonAnalysisInconclusive = "AnalysisInconclusive" // a check had no conclusive measurement for as long as its hold_limit
)

// MaxMeasure is the maximum number of checks in one Output. Further checks are due in the next step. With four queries
// each, a Prometheus can answer this number of checks in a second or two.
const MaxMeasure = 64

// Measure is a request to measure a check that is due.
type Measure struct {
	WorkspaceID, RegionID, Check string
	// Since is when the new version began to serve at this step or in this bake.
	Since   int64
	Queries analysis.Queries
	// Traffic is the question for gateways, if the check is measured there, else nil.
	Traffic *analysis.Traffic
	// Hook is the webhook to call, if the check has one, else nil.
	Hook *analysis.Hook
}

// Measurement is the result of a Measure.
type Measurement struct {
	RegionID, Check string
	Since           int64
	// At is the time of the measurement, unix ms.
	At      int64
	Figures analysis.Figures
}

const (
	checkWaiting      = windlassv1.CheckProgress_STATE_WAITING
	checkPassed       = windlassv1.CheckProgress_STATE_PASSED
	checkFailed       = windlassv1.CheckProgress_STATE_FAILED
	checkInconclusive = windlassv1.CheckProgress_STATE_HELD
)

// checksOf returns the policy's checks that apply. compares means that the old version serves next to
// the new one.
func checksOf(policy *windlassv1.RolloutPolicy, compares bool) (out []*windlassv1.AnalysisCheck) {
	for _, c := range policy.GetAnalysis() {
		if analysis.Absolute(c) || compares && analysis.Compares(c) {
			out = append(out, c)
		}
	}
	return out
}

// analyseRegion requests measurements of the region's checks since a time, and stores the measurements that arrived. It
// reports whether these failed the region. compares means that the old version serves next to the new one.
func (s *stager) analyseRegion(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, since int64, compares bool) (failed bool) {
	checks := checksOf(s.progress.Policy, compares)
	if len(checks) == 0 {
		return false
	}
	if !measuredSince(st, since) {
		st.Checks = nil
		for _, c := range checks {
			st.Checks = append(st.Checks, model.CheckProgress{
				Name: analysis.Name(c), Since: since, State: checkWaiting, DueAt: since + analysis.Interval(c).Milliseconds(),
			})
		}
	}
	for i, c := range checks {
		check := &st.Checks[i]
		if s.now < check.DueAt {
			continue
		}
		m := s.newestMeasurement(st.RegionID, check)
		if m == nil {
			s.requestMeasurement(d, w, st, c, check, compares)
			continue
		}
		if s.takeIn(d, w, st, c, check, m, compares) {
			return true
		}
	}
	return false
}

// measuredSince reports whether the region's checks began at that time.
func measuredSince(st *model.RegionProgress, since int64) bool {
	return len(st.Checks) > 0 && st.Checks[0].Since == since
}

// newestMeasurement returns the newest measurement that the check does not have yet, nil for none.
func (f *facts) newestMeasurement(region string, check *model.CheckProgress) (found *Measurement) {
	for i := range f.in.Measurements {
		m := &f.in.Measurements[i]
		if m.RegionID == region && m.Check == check.Name && m.Since == check.Since && m.At >= check.DueAt &&
			(found == nil || m.At > found.At) {
			found = m
		}
	}
	return found
}

// requestMeasurement requests a measurement.
func (s *stager) requestMeasurement(
	d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, c *windlassv1.AnalysisCheck,
	check *model.CheckProgress, compares bool,
) {
	if slices.ContainsFunc(s.measures, func(m Measure) bool { return m.RegionID == st.RegionID && m.Check == check.Name }) {
		return
	}
	if len(s.measures) == MaxMeasure {
		s.p.deferred = true
		return
	}
	m := Measure{WorkspaceID: s.in.App.WorkspaceID, RegionID: st.RegionID, Check: check.Name, Since: check.Since}
	if c.GetWebhook() != nil {
		m.Hook = s.hookOf(d, w, st, c, check)
		s.p.measures = append(s.p.measures, m)
		return
	}
	fresh := s.subjectOf(d, st.RegionID, min(analysis.Window(c), time.Duration(s.now-check.Since)*time.Millisecond))
	var old *analysis.Subject
	if live := s.deps[s.olderIn(st.RegionID)]; compares && live != nil {
		of := s.subjectOf(live, st.RegionID, fresh.Window)
		old = &of
	}
	// The API has checked that queries expand. A query that does not expand gives no figure.
	m.Queries, _ = analysis.Ask(c, fresh, old)
	m.Traffic = analysis.AskGateways(c, fresh, old)
	s.p.measures = append(s.p.measures, m)
}

// hookOf returns the call that requests the check's next measurement. The call stays the same until
// that measurement is stored.
func (v *view) hookOf(
	d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, c *windlassv1.AnalysisCheck,
	check *model.CheckProgress,
) *analysis.Hook {
	call := analysis.Call{
		ID:      analysis.CallID(v.progress.RolloutID, st.RegionID, check.Name, check.Since, check.Taken+1),
		Attempt: check.Taken + 1, Check: check.Name,
		Workspace: analysis.Named{ID: v.app.WorkspaceID}, Project: analysis.Named{ID: v.app.ProjectID},
		Environment: analysis.Named{ID: v.app.EnvironmentID}, App: analysis.Named{ID: v.app.ID, Name: v.app.Name},
		RolloutID: v.progress.RolloutID, Deployment: analysis.Release{ID: d.ID, Version: d.Version},
		Region: v.regionName(st.RegionID), Wave: w.Name, Stage: analysis.StageBake, Since: check.Since,
	}
	if live := v.deps[v.olderIn(st.RegionID)]; live != nil && live.ID != d.ID {
		call.OldDeployment = &analysis.Release{ID: live.ID, Version: live.Version}
	}
	if st.State == regionRolling {
		call.Stage, call.Step = analysis.StageStep, st.Step+1
	}
	h := c.GetWebhook()
	return &analysis.Hook{URL: h.GetUrl(), Timeout: analysis.Timeout(h), SigningSecret: h.GetSigningSecret(), Call: call}
}

func (f *facts) subjectOf(d *model.Deployment, region string, window time.Duration) analysis.Subject {
	return analysis.Subject{
		App: f.app.Name, AppID: f.app.ID, Deployment: d.ID, Version: d.Version, Region: f.regionName(region), Window: window,
		MadeFor: f.madeFor(d, region),
	}
}

// takeIn stores a measurement and its verdict, and reports whether it failed the region.
func (s *stager) takeIn(
	d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, c *windlassv1.AnalysisCheck,
	check *model.CheckProgress, m *Measurement, compares bool,
) (failed bool) {
	verdict, text := analysis.Judge(c, m.Figures, compares)
	text = cleanText(text)
	check.Taken++
	was, apart := check.State, s.now-check.MeasuredAt
	check.New, check.NewSamples, check.Old, check.OldSamples = m.Figures.New, m.Figures.NewSamples, m.Figures.Old, m.Figures.OldSamples
	// The times count from this step and not from the answer, so that checks that were measured together are due together
	// again. They are jittered, so that the checks of many apps are not due at the same time.
	check.MeasuredAt, check.Message = s.now, text
	check.DueAt = s.now + int64(float64(analysis.Interval(c).Milliseconds())*(0.95+0.1*s.in.Jitter))
	say := func(what, text string) {
		s.log(what, fmt.Sprintf("%s in wave %s: %s", check.Name, w.Name, text), d, st.RegionID)
	}
	switch verdict {
	case analysis.Passed:
		check.State, check.InconclusiveSince, check.InconclusiveFor = checkPassed, 0, 0
		if was != checkPassed {
			say("CheckPassed", text)
		}
	case analysis.Failed:
		check.State, check.InconclusiveSince, check.InconclusiveFor = checkFailed, 0, 0
		check.Failures++
		text = fmt.Sprintf("%s; failures: %d, limit %d", text, check.Failures, c.GetFailureLimit())
		say("CheckFailed", text)
		if check.Failures > c.GetFailureLimit() {
			s.failRegion(d, w, st, ReasonAnalysisFailed, check.Name+": "+text)
			return true
		}
	default:
		if check.State = checkInconclusive; was != checkInconclusive {
			check.InconclusiveSince, check.InconclusiveFor = s.now, 0
			say("CheckHeld", text)
		} else {
			// The time is limited, so that a pause, an unreachable region or an outage of the control plane fails no check.
			check.InconclusiveFor += min(apart, 2*analysis.Interval(c).Milliseconds())
		}
		limit := c.GetHoldLimit().AsDuration()
		if held := time.Duration(check.InconclusiveFor) * time.Millisecond; c.GetHoldLimit() != nil && held >= limit {
			s.failRegion(d, w, st, ReasonAnalysisInconclusive, fmt.Sprintf("%s: inconclusive for %d s, of at most %s: %s",
				check.Name, int64(held/time.Second), limit, text))
			return true
		}
	}
	return false
}

// maxSaid bounds the text of a source's problem, in bytes, because every check of every region stores one.
const maxSaid = 500

// cleanText returns the part of another program's text that may be stored.
func cleanText(text string) string {
	if len(text) > maxSaid {
		text = text[:maxSaid] + "..."
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// hasConcluded reports whether the last measurement of each of the region's checks since that time passed, and no check
// is due.
func hasConcluded(c *model.Progress, st *model.RegionProgress, since int64, compares bool, now int64) bool {
	checks := checksOf(c.Policy, compares)
	if len(checks) == 0 {
		return true
	}
	return measuredSince(st, since) && len(st.Checks) == len(checks) && !slices.ContainsFunc(st.Checks, func(check model.CheckProgress) bool {
		return check.State != checkPassed || check.DueAt <= now
	})
}

// InconclusiveCheck returns the first check that has not passed and holds the region at a step or bake whose time is
// over, nil for none.
func InconclusiveCheck(c *model.Progress, w *model.WaveProgress, st *model.RegionProgress, now int64) *model.CheckProgress {
	var over bool
	switch {
	case c.FullBy != "":
	case st.StoppedAt != 0 && st.PromotedBy == "":
		until, person := Waits(c, *st)
		over = !person && now >= until
	case w.State == waveBaking && w.SkippedBy == "":
		over = now >= w.BakingSince+BakeTime(c, *w)
	}
	if !over {
		return nil
	}
	for i := range st.Checks {
		if st.Checks[i].State != checkPassed {
			return &st.Checks[i]
		}
	}
	return nil
}

// nextCheck returns when the region's next check is due, unix ms. 0: never.
func nextCheck(c *model.Progress, w *model.WaveProgress, st *model.RegionProgress) (due int64) {
	if !Measuring(w, st) || c.Sizes[st.RegionID] == 0 {
		return 0
	}
	for _, check := range st.Checks {
		if due == 0 || check.DueAt < due {
			due = check.DueAt
		}
	}
	return due
}

// Measuring reports whether the region's checks belong to its current step or bake.
func Measuring(w *model.WaveProgress, st *model.RegionProgress) bool {
	switch {
	case st.State == regionRolling && st.StoppedAt != 0:
		return measuredSince(st, st.StoppedAt)
	case st.State == regionMoved && w.State == waveBaking:
		return measuredSince(st, w.BakingSince)
	}
	return false
}

// analysedWave reports whether all checks of the wave's bake have concluded, and whether one of
// the checks failed a region.
func (s *stager) analysedWave(d *model.Deployment, w *model.WaveProgress) (all, failed bool) {
	all = true
	for i := range w.Regions {
		st := &w.Regions[i]
		if BakeTime(s.progress, *w) == 0 || showsNothing(s.progress, *st) || s.regionPlan(st.RegionID).lost {
			continue
		}
		if s.progress.Sizes[st.RegionID] > 0 && s.analyseRegion(d, w, st, w.BakingSince, false) {
			return false, true
		}
		all = all && hasConcluded(s.progress, st, w.BakingSince, false, s.now)
	}
	return all, false
}

// checkMessage returns what the check waits for.
func checkMessage(check *model.CheckProgress) string {
	if check.State == checkWaiting {
		return "it is not measured yet"
	}
	return check.Message
}
