package model

import (
	"slices"

	"google.golang.org/protobuf/proto"
)

// Equal reports whether both have the same values. It names every field, because the planner compares
// progress after each phase and reflection is slow. A test changes each field in turn.
func (c *Progress) Equal(other *Progress) bool {
	if c == nil || other == nil || c == other {
		return c == other
	}
	return c.RolloutID == other.RolloutID &&
		c.Replicas == other.Replicas && sameMap(c.RegionReplicas, other.RegionReplicas) && c.DefaultReplicas == other.DefaultReplicas &&
		sameMap(c.OldSizes, other.OldSizes) && sameMap(c.Sizes, other.Sizes) &&
		c.Back == other.Back && c.Final == other.Final && c.Reason == other.Reason && c.Message == other.Message &&
		c.PausedAt == other.PausedAt && c.PausedBy == other.PausedBy && c.PausedWhy == other.PausedWhy && c.Failed == other.Failed &&
		c.SkipsNew == other.SkipsNew && c.RolledBack == other.RolledBack && c.PromotionPaused == other.PromotionPaused && c.FullBy == other.FullBy &&
		c.DeployedBy == other.DeployedBy && c.DeployedByID == other.DeployedByID && c.DeployedByFamily == other.DeployedByFamily &&
		c.BakeProtected == other.BakeProtected && c.DoneAt == other.DoneAt &&
		c.RetainedID == other.RetainedID && c.RetainedUntil == other.RetainedUntil && c.CatchesUp == other.CatchesUp &&
		sameItems(c.Waves, other.Waves, (*WaveProgress).equal) &&
		slices.EqualFunc(c.Lagging, other.Lagging, LaggingRegion.equal) &&
		proto.Equal(c.Policy, other.Policy)
}

func (b LaggingRegion) equal(other LaggingRegion) bool {
	return b.RegionID == other.RegionID && b.DeploymentID == other.DeploymentID && b.Progress.Equal(other.Progress)
}

func (w *WaveProgress) equal(other *WaveProgress) bool {
	return w.Name == other.Name && w.Policy == other.Policy && w.State == other.State &&
		w.BakingSince == other.BakingSince && w.SkippedBy == other.SkippedBy &&
		sameItems(w.Regions, other.Regions, (*RegionProgress).equal) &&
		sameItems(w.Approvals, other.Approvals, samePointee[Approval])
}

func (r *RegionProgress) equal(other *RegionProgress) bool {
	return r.RegionID == other.RegionID && r.State == other.State && r.Since == other.Since &&
		r.Reason == other.Reason && r.Message == other.Message && r.Heard == other.Heard &&
		r.ProgressClock == other.ProgressClock && r.StepWait.equal(&other.StepWait) && r.CapacityWait == other.CapacityWait &&
		r.TroubleWatch == other.TroubleWatch && r.HealthWatch == other.HealthWatch && r.RelapseCount == other.RelapseCount &&
		r.Absence == other.Absence && r.EmptySteps == other.EmptySteps && r.Inherited == other.Inherited &&
		sameItems(r.Checks, other.Checks, (*CheckProgress).equal)
}

func (s *StepWait) equal(other *StepWait) bool {
	return s.Step == other.Step && s.StoppedAt == other.StoppedAt && s.PromotedBy == other.PromotedBy &&
		sameItems(s.Approvals, other.Approvals, samePointee[Approval])
}

func (c *CheckProgress) equal(other *CheckProgress) bool {
	return c.Name == other.Name && c.Since == other.Since && c.State == other.State &&
		c.DueAt == other.DueAt && c.MeasuredAt == other.MeasuredAt && c.Taken == other.Taken &&
		sameFigure(c.New, other.New) && sameFigure(c.NewSamples, other.NewSamples) &&
		sameFigure(c.Old, other.Old) && sameFigure(c.OldSamples, other.OldSamples) &&
		c.Failures == other.Failures && c.InconclusiveSince == other.InconclusiveSince && c.InconclusiveFor == other.InconclusiveFor && c.Message == other.Message
}

// sameFigure compares two figures, nil for a missing one.
func sameFigure(a, b *float64) bool { return a == b || a != nil && b != nil && *a == *b }

func samePointee[T comparable](a, b *T) bool { return *a == *b }

// sameItems compares in place, because the items are large. nil and empty differ, as they do in the stored
// form.
func sameItems[T any](a, b []T, equal func(a, b *T) bool) bool {
	if len(a) != len(b) || (a == nil) != (b == nil) {
		return false
	}
	for i := range a {
		if !equal(&a[i], &b[i]) {
			return false
		}
	}
	return true
}

// sameMap compares two maps. nil and empty differ, as they do in the stored form.
func sameMap(a, b map[string]int32) bool {
	if len(a) != len(b) || (a == nil) != (b == nil) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}
