package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A region without room for an instance reports so, and keeps trying. By default the progress deadline ends that. With
// wait_for_capacity, the deadline stops for that time in total, and the status shows what the region waits for. With
// deadlines.unschedulable, the deadline stops, too, and the region fails when that time is over. With
// update.when_full REPLACE_IN_PLACE, the old version of a pool makes room: see poolYield.

// WaitsForCapacity returns how long the policy waits for room, ms.
func WaitsForCapacity(policy *windlassv1.RolloutPolicy) int64 {
	return policy.GetWaitForCapacity().AsDuration().Milliseconds()
}

// capacityLimit returns how long a region may lack room while its progress deadline does not run, ms.
func capacityLimit(policy *windlassv1.RolloutPolicy) int64 {
	own, _ := patienceWith(policy, onUnschedulable)
	return max(own, WaitsForCapacity(policy))
}

// poolYield returns how many percent of the row's pool may be out of service while there is no room for its version's
// share: a whole set of roles (model.PercentOfSet). It is 0 if the version waits for room. It is also 0 if instances are
// replaced in their places, because the region's agent then makes room.
func poolYield(f *facts, policy *windlassv1.RolloutPolicy, t *model.Topology) (percent int32) {
	if t == nil {
		return 0
	}
	d := f.deps[t.DeploymentID]
	if d == nil || !model.IsPooled(d.Spec) || !model.ReplacesWhenFull(d.Spec) || strategy.Of(policy) != strategy.Of(nil) || f.hasTaken(t) {
		return 0
	}
	return model.PercentOfSet(t.In(d.Spec))
}

func (f *facts) lacksCapacity(t *model.Topology) bool { return f.placeOf(t).LacksCapacity() }

// noteCapacity begins or ends the region's wait for room.
func (s *stager) noteCapacity(d *model.Deployment, st *model.RegionProgress, l *regionPlan) {
	limit := capacityLimit(s.progress.Policy)
	lacks := st.State == regionRolling && l.row != nil && s.lacksCapacity(l.row)
	switch {
	case lacks && st.NoRoomSince == 0 && st.NoRoomFor < limit:
		st.NoRoomSince = s.now
		_, message := s.placeOf(l.row).Why()
		s.log("CapacityAwaited", fmt.Sprintf("there is no room; the rollout waits for it, for %s at most; %s: %s",
			(time.Duration(limit-st.NoRoomFor)*time.Millisecond).Round(time.Second), s.figuresText(l), message), d, st.RegionID)
	case !lacks && st.NoRoomSince != 0:
		s.endCapacityWait(st)
		s.log("CapacityFound", fmt.Sprintf("nothing waits for room any more, after %d s in all; %s", st.NoRoomFor/1000, s.figuresText(l)), d, st.RegionID)
	}
}

// endCapacityWait lets the clock of the region's deadline run again.
func (s *stager) endCapacityWait(st *model.RegionProgress) {
	waited := min(s.now-st.NoRoomSince, max(0, capacityLimit(s.progress.Policy)-st.NoRoomFor))
	st.ScoredAt += waited
	st.NoRoomFor += waited
	st.NoRoomSince = 0
}

// awaitsCapacity reports whether a rollout that is not staged waits for room now, and until when
// it may wait, unix ms.
func (f *facts) awaitsCapacity(d *model.Deployment) (until int64, waits bool) {
	if f.in.RolloutState == nil || f.isStaged() || d.Status != windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_DEPLOYING {
		return 0, false
	}
	until = f.rollout.CreatedAt + capacityLimit(f.in.RolloutState.Policy)
	return until, f.now < until && slices.ContainsFunc(f.activeRows(d.ID), f.lacksCapacity)
}

// postponeDeadline moves the deadline of a rollout that is not staged while the rollout waits for room. It moves the deadline in
// large steps, so that not every plan writes.
func (p *planner) postponeDeadline(d *model.Deployment) {
	until, waits := p.awaitsCapacity(d)
	if !waits || p.rollout.Deadline == 0 {
		return
	}
	limit := p.progressDeadline(d)
	due := p.now + limit
	first := p.rollout.Deadline <= p.rollout.CreatedAt+limit
	if due <= p.rollout.Deadline || !first && due-p.rollout.Deadline <= limit/8 {
		return
	}
	if first {
		p.log("CapacityAwaited", fmt.Sprintf("there is no room; the rollout waits for it, for %s at most: %s",
			(time.Duration(until-p.now)*time.Millisecond).Round(time.Second), rollup.Describe(p.placesOf(p.activeRows(d.ID)), func(pl rollup.Place) bool { return !pl.Ready() })), d, "")
	}
	p.rollout.Deadline = due
}
