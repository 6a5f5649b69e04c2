package plan

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// DefaultPolicy returns the policy of apps without their own policy: region by region,
// replica by replica, with a small surge, and with automatic rollback.
func DefaultPolicy() *windlassv1.RolloutPolicy {
	return &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_ROLLING}
}

// NextProgress returns the progress with which a new rollout of the app begins. rows are the app's rows. The result is
// nil if no live version needs protection. An app without a policy gets DefaultPolicy. A region that a superseded
// rollout left unfinished keeps that rollout's policy until the region has moved or gone back, even if the app has no
// policy any more. The same is true for lagging regions. asked has the replicas that the request sets for the new version.
func NextProgress(s model.RolloutState, app model.App, rows []model.Topology, rolloutID string, asked Asked) *model.Progress {
	if app.LiveDeploymentID == "" {
		return nil
	}
	policy := s.Policy
	c := &model.Progress{
		RolloutID: rolloutID, Replicas: -1, DefaultReplicas: app.Replicas, OldSizes: map[string]int32{},
	}
	asked.noteIn(c)
	if s.Progress != nil {
		c.PromotionPaused, c.RolledBack = s.Progress.RolledBack, s.Progress.RolledBack
	}
	unfinished := s.Progress != nil && (s.Progress.DoneAt == 0 || len(s.Progress.Lagging) > 0)
	for _, t := range rows {
		if isRowActive(&t) && t.DeploymentID == app.LiveDeploymentID {
			c.OldSizes[t.RegionID] = t.Replicas
		}
	}
	if unfinished {
		if policy == nil {
			policy, c.SkipsNew = proto.CloneOf(s.Progress.Policy), s.Progress.SkipsNew
			policy.StartApproval = nil // a protection added it, and adds it again if it is still in force
		}
		if s.Progress.DoneAt == 0 {
			maps.Copy(c.OldSizes, s.Progress.OldSizes)
		}
		takeAlong(c, s.Progress)
	}
	if policy == nil {
		policy, c.SkipsNew = DefaultPolicy(), true
	}
	c.Policy = policy
	return c
}

// Refusal says why a person's command about a rollout is refused now, and how to fix that.
type Refusal struct{ Message, Fix string }

func (r *Refusal) Error() string { return r.Message }

var errGoingBack = &Refusal{"the rollout is going back already", "Wait until it is back, or deploy another version."}

// Pause pauses the rollout. Like the functions below, it reports whether the rollout changes.
func Pause(c *model.Progress, who, why string, now int64) (changed bool, err error) {
	switch {
	case c.Back:
		return false, errGoingBack
	case c.PausedAt != 0:
		return false, nil
	}
	c.PausedAt, c.PausedBy, c.PausedWhy = now, who, why
	stopClocks(c, now)
	return true, nil
}

// Resume makes the rollout continue after a person's pause.
func Resume(c *model.Progress) (changed bool, err error) {
	switch {
	case c.Back:
		return false, errGoingBack
	case c.PausedAt == 0:
		return false, nil
	case c.Failed:
		return false, &Refusal{
			"the rollout is paused because " + c.PausedWhy + ": to resume it would not change that",
			"Retry it with `windlass rollout retry`, or abort it with `windlass rollout abort`.",
		}
	}
	c.PausedAt, c.PausedBy, c.PausedWhy = 0, "", ""
	return true, nil
}

// Retry restarts the regions that failed. heard has the guard of each region's last report
// about the version.
func Retry(c *model.Progress, heard map[string]model.Guard, now int64) (changed bool, err error) {
	if c.Back {
		return false, errGoingBack
	}
	for i := range c.Waves {
		for j := range c.Waves[i].Regions {
			st := &c.Waves[i].Regions[j]
			switch st.State {
			case regionFailed:
				st.State = regionRolling
			case regionGoingBack, regionBack:
				st.State = regionWaiting
			default:
				continue
			}
			st.Since, st.Reason, st.Message, st.Heard = now, "", "", heard[st.RegionID]
			st.ProgressClock.Reset(math.MinInt32, now)
			st.StepWait.Reset()
			st.CapacityWait.Reset()
			st.TroubleWatch.Reset()
			st.HealthWatch.Reset()
			st.RelapseCount.Reset()
			reopenWave(&c.Waves[i])
			changed = true
		}
	}
	if c.Failed {
		c.PausedAt, c.PausedBy, c.PausedWhy, c.Failed = 0, "", "", false
		changed = true
	}
	return changed, nil
}

// SkipBake ends the bake time of the wave that is baking.
func SkipBake(c *model.Progress, who string) (wave string, err error) {
	if c.Back {
		return "", errGoingBack
	}
	for i := range c.Waves {
		if w := &c.Waves[i]; w.State == waveBaking {
			w.SkippedBy = who
			return w.Name, nil
		}
	}
	return "", &Refusal{"no wave of the rollout is baking now", "`windlass rollout status` shows what it waits for."}
}

// Promote makes regions that wait at a step continue, unless their gate is shut. After it, timed steps end automatically
// again, even if the app went back before. Regions that failed only by their analysis are accepted. full means that from
// now on, no pause, analysis or bake time holds any region.
func Promote(c *model.Progress, who string, full bool, now int64) (waves []string, err error) {
	if c.Back {
		return nil, errGoingBack
	}
	if waves, err = acceptFailed(c, who, now); err != nil {
		return nil, err
	}
	said := c.PromotionPaused || len(waves) > 0 || full
	c.PromotionPaused, c.RolledBack = false, false
	if full && c.FullBy == "" {
		c.FullBy = who
	}
	for i := range c.Waves {
		w := &c.Waves[i]
		for j := range w.Regions {
			st := &w.Regions[j]
			if st.State != regionRolling {
				continue
			}
			if Shut(c, StepGate(c, *st), st.Approvals) {
				continue
			}
			if st.StoppedAt != 0 && st.PromotedBy == "" {
				st.PromotedBy, st.ScoredAt = who, now
				if !slices.Contains(waves, w.Name) {
					waves = append(waves, w.Name)
				}
			}
			said = said || st.PromotedBy != ""
		}
	}
	if !said {
		if err := shutBefore(c); err != nil {
			return nil, err
		}
		return nil, &Refusal{"no region of the rollout waits at a step now", "`windlass rollout status` shows what it waits for."}
	}
	return waves, nil
}

// acceptFailed makes regions that failed by their analysis continue after their step or bake, and returns their waves.
// If a region failed for another reason, it accepts none.
func acceptFailed(c *model.Progress, who string, now int64) (waves []string, err error) {
	if !c.Failed {
		return nil, nil
	}
	all := stepsOf(c.Policy)
	for _, w := range c.Waves {
		for _, st := range w.Regions {
			fix := "Retry it with `windlass rollout retry`, or abort it with `windlass rollout abort`."
			switch {
			case st.Reason == "" || st.State != regionFailed && st.State != regionGoingBack && st.State != regionBack:
			case st.State != regionFailed || conditionOf(st.Reason) != onAnalysis:
				return nil, &Refusal{"a region failed (" + st.Reason + "), and nothing serves there that could be accepted", fix}
			case w.State != waveBaking && st.Step < len(all) && all[st.Step].Approval != nil:
				return nil, &GateRefusal{Message: fmt.Sprintf("step %d failed and needs an approval: a promotion is not enough", st.Step+1), Fix: fix}
			}
		}
	}
	for i := range c.Waves {
		w := &c.Waves[i]
		for j := range w.Regions {
			st := &w.Regions[j]
			if st.State != regionFailed {
				continue
			}
			if w.State == waveBaking {
				st.State, w.SkippedBy = regionMoved, who
			} else {
				st.State, st.Step = regionRolling, min(st.Step+1, len(all))
			}
			st.Since, st.Reason, st.Message = now, "", ""
			st.ProgressClock.Reset(math.MinInt32, now)
			if !slices.Contains(waves, w.Name) {
				waves = append(waves, w.Name)
			}
		}
	}
	c.PausedAt, c.PausedBy, c.PausedWhy, c.Failed = 0, "", "", false
	return waves, nil
}

func stopClocks(c *model.Progress, now int64) {
	for i := range c.Waves {
		for j := range c.Waves[i].Regions {
			st := &c.Waves[i].Regions[j]
			st.HealthWatch.Recover()
			if st.State == regionRolling {
				st.ProgressClock.Stop(now)
			}
		}
	}
}
