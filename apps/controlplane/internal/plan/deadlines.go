package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// The deadlines of a policy limit how long something may keep a region from its new version. auto_rollback of a policy
// names the failures after which the rollout goes back automatically.

const (
	onCrash         = windlassv1.AutoRollback_CONDITION_CRASH
	onImage         = windlassv1.AutoRollback_CONDITION_IMAGE
	onUnschedulable = windlassv1.AutoRollback_CONDITION_UNSCHEDULABLE
	onProgress      = windlassv1.AutoRollback_CONDITION_PROGRESS
	onAnalysis      = windlassv1.AutoRollback_CONDITION_ANALYSIS
	onUnreachable   = windlassv1.AutoRollback_CONDITION_UNREACHABLE
	onHealth        = windlassv1.AutoRollback_CONDITION_HEALTH
)

// conditionOf returns the condition of auto_rollback to which a region's reason of failure belongs. Reasons of agents are
// in a table of package rollup.
func conditionOf(reason string) windlassv1.AutoRollback_Condition {
	switch reason {
	case rollup.ReasonDeadlineExceeded:
		return onProgress
	case ReasonAnalysisFailed, ReasonAnalysisInconclusive:
		return onAnalysis
	case rollup.ReasonRegionUnreachable:
		return onUnreachable
	case ReasonUnhealthy, ReasonUnstable:
		return onHealth
	}
	return rollup.MeaningOf(reason).Condition
}

// ConditionName returns the name of the condition in app files.
func ConditionName(c windlassv1.AutoRollback_Condition) string {
	return strings.ToLower(strings.TrimPrefix(c.String(), "CONDITION_"))
}

// rollsBack reports whether a rollout that fails for the reason goes back automatically under the
// policy. why is the cause if it does not.
func rollsBack(policy *windlassv1.RolloutPolicy, reason string) (goes bool, why string) {
	auto := policy.GetAutoRollback()
	switch {
	case auto == nil:
		return true, ""
	case auto.Enabled != nil && !auto.GetEnabled():
		return false, ", since auto_rollback is off"
	case len(auto.GetConditions()) > 0 && !slices.Contains(auto.GetConditions(), conditionOf(reason)):
		return false, fmt.Sprintf(", since %s is not among the conditions of auto_rollback", ConditionName(conditionOf(reason)))
	}
	return true, ""
}

// onFailure returns what the wave does when a region failed for the reason. stays says why the rollout does not go back
// although the wave's on_failure is rollback.
func onFailure(c *model.Progress, w *model.WaveProgress, reason string) (on windlassv1.Wave_OnFailure, stays string) {
	if goes, why := rollsBack(c.Policy, reason); !goes {
		return windlassv1.Wave_ON_FAILURE_PAUSE, why
	}
	return wavePolicy(c, *w).GetOnFailure(), ""
}

// saidOf returns the commands that people may use for a region that failed.
func saidOf(st *model.RegionProgress) string {
	if st.State == regionFailed && conditionOf(st.Reason) == onAnalysis {
		return "retry, promote or abort"
	}
	return "retry or abort"
}

// ProgressDeadline returns the maximum time between two steps of progress, ms. 0: no limit.
func ProgressDeadline(policy *windlassv1.RolloutPolicy, spec *windlassv1.DeploymentSpec) int64 {
	if d := policy.GetDeadlines().GetProgress(); d != nil {
		return d.AsDuration().Milliseconds()
	}
	return spec.GetProgressDeadline().AsDuration().Milliseconds()
}

// progressDeadline returns the progress deadline of the deployment under the policy in force.
func (f *facts) progressDeadline(d *model.Deployment) int64 {
	return ProgressDeadline(f.policyInFlight(), d.Spec)
}

// policyInFlight returns the policy of the rollout in flight. nil: the default policy.
func (f *facts) policyInFlight() *windlassv1.RolloutPolicy {
	switch {
	case f.isStaged():
		return f.progress.Policy
	case f.in.RolloutState != nil:
		return f.in.RolloutState.Policy
	}
	return nil
}

// patienceWith returns how long trouble of that kind may last, ms. set reports whether the policy has this limit.
func patienceWith(policy *windlassv1.RolloutPolicy, kind windlassv1.AutoRollback_Condition) (limit int64, set bool) {
	var d *durationpb.Duration
	switch kind {
	case onCrash:
		d = policy.GetDeadlines().GetCrash()
	case onImage:
		d = policy.GetDeadlines().GetImage()
	case onUnschedulable:
		d = policy.GetDeadlines().GetUnschedulable()
	default:
	}
	return d.AsDuration().Milliseconds(), d != nil
}

// trouble keeps a place from being ready, and has its own deadline. kind 0 means that there is no trouble. doomed means
// that more instances than the policy allows will never be ready. final means that waiting does not help.
type trouble struct {
	kind            windlassv1.AutoRollback_Condition
	reason, message string
	doomed, final   bool
}

func troubleOf(policy *windlassv1.RolloutPolicy, d *model.Deployment, pl rollup.Place) (t trouble) {
	if t.reason, t.message, t.doomed = pl.Doomed(); t.doomed {
		t.kind = onCrash
		t.final = pl.Heard() && pl.Observed.Phase == int32(agentv1.AppliedState_PHASE_REJECTED)
		t.doomed = t.final || pl.Observed.Doomed >= FailedLimit(policy, d, pl.Row)
		if text := failedText(policy, d, pl); text != "" && !t.final {
			t.message = text + ": " + t.message
		}
	} else if !pl.Ready() && !pl.Unreachable() && !pl.Resyncing() {
		t.reason, t.message = pl.Why()
	}
	switch {
	case rollup.MeaningOf(t.reason).Condition == onImage:
		t.kind = onImage
	case !t.doomed:
		t = trouble{}
	}
	return t
}

// isOver reports whether the trouble has lasted too long since the time.
func (t trouble) isOver(policy *windlassv1.RolloutPolicy, since, now int64) bool {
	limit, set := patienceWith(policy, t.kind)
	switch {
	case t.kind == 0:
		return false
	case t.final, t.doomed && !set:
		return true
	}
	return set && now >= since+limit
}

// isHopeless stores which trouble the region has, and reports whether the trouble has lasted too
// long.
func (s *stager) isHopeless(d *model.Deployment, st *model.RegionProgress, l *regionPlan) (reason, message string, hopeless bool) {
	var t trouble
	// A report from before the retry is about the earlier try. Guards are compared instead of times, because processes of
	// the control plane have different clocks.
	if l.row != nil && s.placeOf(l.row).Observed.Guard > st.Heard {
		t = troubleOf(s.progress.Policy, d, s.placeOf(l.row))
	}
	if l.inherited > 0 && l.To.Serving >= l.inherited && !t.final {
		t = trouble{} // the trouble is older than the version
	}
	if _, set := patienceWith(s.progress.Policy, t.kind); t.kind != 0 && !set && !t.doomed {
		t = trouble{} // only the progress deadline applies
	}
	if t.kind != st.Trouble {
		if limit, set := patienceWith(s.progress.Policy, st.Trouble); st.Trouble != 0 && set {
			stood := min(s.now-st.TroubleSince, max(0, limit-st.TroubleFor))
			st.ScoredAt, st.TroubleFor = st.ScoredAt+stood, st.TroubleFor+stood
		}
		if st.Trouble, st.TroubleSince = t.kind, s.now; t.kind == 0 {
			st.TroubleSince = 0
		}
		if limit, set := patienceWith(s.progress.Policy, t.kind); set && limit > 0 && !t.final {
			s.log("TroubleAwaited", fmt.Sprintf("%s: it may last for %s; %s: %s", t.reason,
				time.Duration(limit)*time.Millisecond, s.figuresText(l), t.message), d, st.RegionID)
		}
	}
	if !t.isOver(s.progress.Policy, st.TroubleSince, s.now) {
		return "", "", false
	}
	if lasted := s.now - st.TroubleSince; lasted > 0 {
		t.message = fmt.Sprintf("for %d s: %s", lasted/1000, t.message)
	}
	return t.reason, t.message, true
}

// RegionDeadline returns the time by which the region must make progress, unix ms. 0: no limit.
func RegionDeadline(c *model.Progress, spec *windlassv1.DeploymentSpec, st model.RegionProgress) int64 {
	limit := ProgressDeadline(c.Policy, spec)
	until, person := Waits(c, st)
	if st.StoppedAt != 0 && st.PromotedBy == "" && c.FullBy == "" && !hasConcluded(c, &st, st.StoppedAt, true, 0) {
		return 0 // the check that holds the region has its own limit
	}
	if st.Emptied || Shut(c, StepGate(c, st), st.Approvals) {
		return 0
	}
	if limit == 0 || st.State != regionRolling || st.ClockStoppedSince != 0 || person || c.PausedAt != 0 || c.Back {
		return 0
	}
	if own, set := patienceWith(c.Policy, st.Trouble); set && st.Trouble != 0 {
		// Several kinds of trouble in turn stop the clock for no longer than one kind may last.
		return min(st.TroubleSince+own, max(st.ScoredAt, until)+limit+max(0, own-st.TroubleFor))
	}
	if own, set := patienceWith(c.Policy, onUnschedulable); set && st.NoRoomSince != 0 {
		return st.NoRoomSince + max(0, own-st.NoRoomFor)
	}
	due := max(st.ScoredAt, until) + limit
	if st.NoRoomSince != 0 {
		due += max(0, WaitsForCapacity(c.Policy)-st.NoRoomFor)
	}
	return due
}

// hopelessAtStart is hopeless for a rollout that is not staged. Its regions do not take turns, so times count from the
// beginning of the rollout.
func (f *facts) hopelessAtStart(d *model.Deployment, pl rollup.Place) (reason, message string, hopeless bool) {
	policy, began := f.policyInFlight(), f.rollout.CreatedAt
	if t := troubleOf(policy, d, pl); t.isOver(policy, began, f.now) {
		return t.reason, t.message, true
	}
	if limit, set := patienceWith(policy, onUnschedulable); set && pl.LacksCapacity() && f.now >= began+limit {
		reason, message = pl.Why()
		return reason, message, true
	}
	return "", "", false
}

func deadlineOfRegions(c *model.Progress, spec *windlassv1.DeploymentSpec) (due int64) {
	for _, w := range c.Waves {
		for i := range w.Regions {
			if at := RegionDeadline(c, spec, w.Regions[i]); at != 0 && (due == 0 || at < due) {
				due = at
			}
		}
	}
	return due
}
