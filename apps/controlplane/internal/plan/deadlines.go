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

// How long what keeps a region from its version may last, as the policy's deadlines say,
// and after which of the failures that follow the rollout goes back by itself, as its
// auto_rollback says.

const (
	onCrash         = windlassv1.AutoRollback_CONDITION_CRASH
	onImage         = windlassv1.AutoRollback_CONDITION_IMAGE
	onUnschedulable = windlassv1.AutoRollback_CONDITION_UNSCHEDULABLE
	onProgress      = windlassv1.AutoRollback_CONDITION_PROGRESS
	onAnalysis      = windlassv1.AutoRollback_CONDITION_ANALYSIS
	onUnreachable   = windlassv1.AutoRollback_CONDITION_UNREACHABLE
	onHealth        = windlassv1.AutoRollback_CONDITION_HEALTH
)

// condition that a region's reason for failing is of. What is none of the others is the
// version's own doing: it crashed, or was refused.
func condition(reason string) windlassv1.AutoRollback_Condition {
	switch reason {
	case ReasonImagePullError:
		return onImage
	case "Unschedulable", "QuotaExceeded":
		return onUnschedulable
	case rollup.ReasonDeadlineExceeded, "SecretUnavailable":
		return onProgress
	case ReasonAnalysisFailed, ReasonAnalysisInconclusive:
		return onAnalysis
	case rollup.ReasonRegionUnreachable:
		return onUnreachable
	case ReasonUnhealthy, ReasonUnstable:
		return onHealth
	}
	return onCrash
}

// ConditionName is as people write it.
func ConditionName(c windlassv1.AutoRollback_Condition) string {
	return strings.ToLower(strings.TrimPrefix(c.String(), "CONDITION_"))
}

// rollsBack reports whether the policy has a rollout go back by itself that fails for the
// reason, and if not, why.
func rollsBack(policy *windlassv1.RolloutPolicy, reason string) (goes bool, why string) {
	auto := policy.GetAutoRollback()
	switch {
	case auto == nil:
		return true, ""
	case auto.Enabled != nil && !auto.GetEnabled():
		return false, ", since auto_rollback is off"
	case len(auto.GetConditions()) > 0 && !slices.Contains(auto.GetConditions(), condition(reason)):
		return false, fmt.Sprintf(", since %s is not among the conditions of auto_rollback", ConditionName(condition(reason)))
	}
	return true, ""
}

// onFailure is what the wave does of a region that failed for the reason; stays says why
// it does not go back although its on_failure says so.
func onFailure(c *model.Progress, w *model.WaveProgress, reason string) (on windlassv1.Wave_OnFailure, stays string) {
	if goes, why := rollsBack(c.Policy, reason); !goes {
		return windlassv1.Wave_ON_FAILURE_PAUSE, why
	}
	return wavePolicy(c, *w).GetOnFailure(), ""
}

// saidOf is what people may say of a region that failed.
func saidOf(st *model.RegionProgress) string {
	if st.State == regionFailed && condition(st.Reason) == onAnalysis {
		return "retry, promote or abort"
	}
	return "retry or abort"
}

// ProgressDeadline is how long it may take from one step of progress to the next, ms; 0
// for no limit.
func ProgressDeadline(policy *windlassv1.RolloutPolicy, spec *windlassv1.DeploymentSpec) int64 {
	if d := policy.GetDeadlines().GetProgress(); d != nil {
		return d.AsDuration().Milliseconds()
	}
	return spec.GetProgressDeadline().AsDuration().Milliseconds()
}

// progressDeadline is that of the deployment under the policy in force.
func (f *facts) progressDeadline(d *model.Deployment) int64 {
	return ProgressDeadline(f.policy(), d.Spec)
}

// policy of the rollout in flight; nil: the one by default.
func (f *facts) policy() *windlassv1.RolloutPolicy {
	switch {
	case f.staged():
		return f.progress.Policy
	case f.in.RolloutState != nil:
		return f.in.RolloutState.Policy
	}
	return nil
}

// patience is how long trouble of that kind may last, ms. set: the policy says so.
func patience(policy *windlassv1.RolloutPolicy, kind windlassv1.AutoRollback_Condition) (limit int64, set bool) {
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

// trouble is what keeps the place from being ready that has a deadline of its own; kind 0 for
// nothing. doomed: as many of its instances as fail it will not be ready; final: no time
// mends it.
type trouble struct {
	kind            windlassv1.AutoRollback_Condition
	reason, message string
	doomed, final   bool
}

func troubleOf(policy *windlassv1.RolloutPolicy, d *model.Deployment, pl rollup.Place) (t trouble) {
	if t.reason, t.message, t.doomed = pl.Doomed(); t.doomed {
		t.kind = onCrash
		t.final = pl.Heard() && pl.Observed.Phase == int32(agentv1.AppliedState_PHASE_REJECTED)
		t.doomed = t.final || pl.Observed.Doomed >= FailedLimit(policy, d, pl.Row.Replicas)
		if text := failedText(policy, d, pl); text != "" && !t.final {
			t.message = text + ": " + t.message
		}
	} else if !pl.Ready() && !pl.Unreachable() && !pl.Resyncing() {
		t.reason, t.message = pl.Why()
	}
	switch {
	case t.reason == ReasonImagePullError:
		t.kind = onImage
	case !t.doomed:
		t = trouble{}
	}
	return t
}

// over reports whether the trouble has lasted for too long, since then.
func (t trouble) over(policy *windlassv1.RolloutPolicy, since, now int64) bool {
	limit, set := patience(policy, t.kind)
	switch {
	case t.kind == 0:
		return false
	case t.final, t.doomed && !set:
		return true
	}
	return set && now >= since+limit
}

// hopeless notes what trouble the region is in, and reports whether waiting for it to pass is
// pointless.
func (s *stager) hopeless(d *model.Deployment, st *model.RegionProgress, l *regionPlan) (reason, message string, hopeless bool) {
	var t trouble
	// What was said before it was tried again is of the try before. Replicas of the control plane
	// have a clock each, so that times do not tell.
	if l.row != nil && s.place(l.row).Observed.Guard > st.Heard {
		t = troubleOf(s.progress.Policy, d, s.place(l.row))
	}
	if l.inherited > 0 && l.To.Serving >= l.inherited && !t.final {
		t = trouble{} // it was there before the version
	}
	if _, set := patience(s.progress.Policy, t.kind); t.kind != 0 && !set && !t.doomed {
		t = trouble{} // the progress deadline is its own
	}
	if t.kind != st.Trouble {
		if limit, set := patience(s.progress.Policy, st.Trouble); st.Trouble != 0 && set {
			stood := min(s.now-st.TroubleSince, max(0, limit-st.TroubleFor))
			st.ScoredAt, st.TroubleFor = st.ScoredAt+stood, st.TroubleFor+stood
		}
		if st.Trouble, st.TroubleSince = t.kind, s.now; t.kind == 0 {
			st.TroubleSince = 0
		}
		if limit, set := patience(s.progress.Policy, t.kind); set && limit > 0 && !t.final {
			s.log("TroubleAwaited", fmt.Sprintf("%s: it may last for %s; %s: %s", t.reason,
				time.Duration(limit)*time.Millisecond, s.figures(l), t.message), d, st.RegionID)
		}
	}
	if !t.over(s.progress.Policy, st.TroubleSince, s.now) {
		return "", "", false
	}
	if lasted := s.now - st.TroubleSince; lasted > 0 {
		t.message = fmt.Sprintf("for %d s: %s", lasted/1000, t.message)
	}
	return t.reason, t.message, true
}

// RegionDeadline is when the region has to have progressed, 0 for no time.
func RegionDeadline(c *model.Progress, spec *windlassv1.DeploymentSpec, st model.RegionProgress) int64 {
	limit := ProgressDeadline(c.Policy, spec)
	until, person := Waits(c, st)
	if st.StoppedAt != 0 && st.PromotedBy == "" && c.FullBy == "" && !concluded(c, &st, st.StoppedAt, true, 0) {
		return 0 // what holds it has a limit of its own
	}
	if st.Emptied || Shut(c, StepGate(c, st), st.Approvals) {
		return 0
	}
	if limit == 0 || st.State != regionRolling || st.HeldSince != 0 || person || c.PausedAt != 0 || c.Back {
		return 0
	}
	if own, set := patience(c.Policy, st.Trouble); set && st.Trouble != 0 {
		// Trouble of several kinds in turn stops the clock for no longer than one may last.
		return min(st.TroubleSince+own, max(st.ScoredAt, until)+limit+max(0, own-st.TroubleFor))
	}
	if own, set := patience(c.Policy, onUnschedulable); set && st.NoRoomSince != 0 {
		return st.NoRoomSince + max(0, own-st.NoRoomFor)
	}
	due := max(st.ScoredAt, until) + limit
	if st.NoRoomSince != 0 {
		due += max(0, WaitsForCapacity(c.Policy)-st.NoRoomFor)
	}
	return due
}

// hopelessAtStart is hopeless for a rollout that is not staged, whose regions take no turns:
// its times run from when it began.
func (f *facts) hopelessAtStart(d *model.Deployment, pl rollup.Place) (reason, message string, hopeless bool) {
	policy, began := f.policy(), f.rollout.CreatedAt
	if t := troubleOf(policy, d, pl); t.over(policy, began, f.now) {
		return t.reason, t.message, true
	}
	if limit, set := patience(policy, onUnschedulable); set && pl.LacksRoom() && f.now >= began+limit {
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
