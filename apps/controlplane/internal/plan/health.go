package plan

import (
	"cmp"
	"fmt"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// The policy's auto_rollback says how many instances of the new version must fail until the
// region fails, and how many replicas may lose their readiness.

// ReasonUnhealthy means that too many replicas of a region lost their readiness.
const ReasonUnhealthy = "Unhealthy"

// defaultUnhealthyFor is longer than it takes to replace an instance that starts quickly, ms.
const defaultUnhealthyFor = 60_000

// limitOf returns the amount that the text states, a number or a percentage of n: at least 1, and at most n.
func limitOf(text string, n int32) int32 {
	return max(1, min(strategy.Amount(text, n), n))
}

// FailedLimit returns how many instances of the row must fail for good until the row fails in its region. d is the row's
// deployment.
func FailedLimit(policy *windlassv1.RolloutPolicy, d *model.Deployment, t model.Topology) int32 {
	return limitOf(policy.GetAutoRollback().GetFailedInstances(), instancesOf(d, t))
}

// failedText returns how many instances failed, and the limit. It is empty for a policy that
// sets no limit.
func failedText(policy *windlassv1.RolloutPolicy, d *model.Deployment, pl rollup.Place) string {
	if policy.GetAutoRollback().GetFailedInstances() == "" {
		return ""
	}
	return fmt.Sprintf("%d of %d instances failed, limit %d",
		pl.Observed.Doomed, instancesOf(d, pl.Row), FailedLimit(policy, d, pl.Row))
}

// unhealthyFor returns how long too many replicas may have lost their readiness, ms.
func unhealthyFor(policy *windlassv1.RolloutPolicy) int64 {
	if d := policy.GetAutoRollback().GetUnhealthyFor(); d != nil {
		return d.AsDuration().Milliseconds()
	}
	return defaultUnhealthyFor
}

// UnhealthyUntil returns the time by which the region's replicas must be ready again, unix ms. 0:
// there is no such time.
func UnhealthyUntil(c *model.Progress, st model.RegionProgress) int64 {
	if st.UnhealthySince == 0 || c.Back || c.PausedAt != 0 || !isForward(st.State) {
		return 0
	}
	return st.UnhealthySince + unhealthyFor(c.Policy)
}

// isUnhealthy notes the largest number of replicas of the new version that were ready in the region. It reports whether
// too many of these replicas have not been ready for too long.
func (s *stager) isUnhealthy(d *model.Deployment, st *model.RegionProgress, l *regionPlan) (message string, over bool) {
	text := s.progress.Policy.GetAutoRollback().GetUnhealthy()
	if text == "" || l.row == nil {
		return "", false
	}
	if l.row.Generation != st.HealthGeneration {
		if l.To.Assigned == st.HealthAssigned {
			// The region will replace its instances, for example because a secret changed. None of the new instances was ready.
			st.HealthWatch.Reset()
		}
		st.HealthGeneration, st.HealthAssigned = l.row.Generation, l.To.Assigned
	}
	st.MostReady = min(max(st.MostReady, l.To.Ready), l.To.Assigned)
	gone, limit := st.MostReady-l.To.Serving, limitOf(text, st.MostReady)
	if gone < limit {
		if st.UnhealthySince != 0 {
			s.log("HealthRegained", s.figuresText(l), d, st.RegionID)
		}
		st.HealthWatch.Recover()
		return "", false
	}
	lasts := time.Duration(unhealthyFor(s.progress.Policy)) * time.Millisecond
	figures := fmt.Sprintf("%d of %d replicas that were ready are no longer ready, limit %d", gone, st.MostReady, limit)
	if l.isPooled() {
		figures = fmt.Sprintf("%d%% of the pool, of %d%% that were ready, are no longer ready, limit %d%%", gone, st.MostReady, limit)
	}
	if st.UnhealthySince == 0 {
		st.UnhealthySince = s.now
		s.log("HealthLost", fmt.Sprintf("%s: it may last for %s; %s", figures, lasts, s.figuresText(l)), d, st.RegionID)
	}
	if s.now < UnhealthyUntil(s.progress, *st) {
		return "", false
	}
	pl := s.placeOf(l.row)
	if pl.Resyncing() || s.now-pl.Region.LastReportAt > freshFor {
		s.p.stale = true
		return "", false
	}
	message = fmt.Sprintf("for %d s, of at most %s: %s", (s.now-st.UnhealthySince)/1000, lasts, figures)
	if why, said := pl.Why(); why != "" {
		message += ": " + why + " " + said
	}
	return message, true
}

// failsByHealth fails a region whose instances cannot start or do not stay ready. It reports whether
// the region failed.
func (s *stager) failsByHealth(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, l *regionPlan) (failed bool) {
	if reason, message, hopeless := s.isHopeless(d, st, l); hopeless {
		s.failRegion(d, w, st, cmp.Or(reason, rollup.ReasonInstancesFailed), cmp.Or(message, "no detail was reported"))
		return true
	}
	if message, over := s.isUnhealthy(d, st, l); over {
		s.failRegion(d, w, st, ReasonUnhealthy, message)
		return true
	}
	return false
}
