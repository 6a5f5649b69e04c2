package model

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RolloutState is an app's rollout policy, and the progress of its newest staged rollout. An app that never
// had a policy or a second version has none.
type RolloutState struct {
	AppID, WorkspaceID string
	// Policy is that of the next rollout, nil for the default one.
	Policy *windlassv1.RolloutPolicy
	// Progress is that of the newest staged rollout, nil before the first.
	Progress  *Progress
	UpdatedAt int64
}

// ActiveRollout is a rollout, its deployment, and the rollout state of their app, nil for none.
type ActiveRollout struct {
	Rollout      Rollout
	Deployment   Deployment
	RolloutState *RolloutState
}

// Clone returns a copy that shares nothing with s.
func (s RolloutState) Clone() RolloutState {
	s.Policy = proto.CloneOf(s.Policy)
	s.Progress = s.Progress.Clone()
	return s
}

// Progress is where a staged rollout is. While it is under way, the topology has the replicas that each region should
// have now, and Sizes has the replicas that it should have in the end.
type Progress struct {
	RolloutID string
	// Policy is the policy that the rollout began with.
	Policy *windlassv1.RolloutPolicy
	// Replicas is the number that was requested with the new version. -1: no number was requested, and each region
	// keeps its number.
	Replicas int32
	// RegionReplicas are requested for single regions, by id. They take precedence over Replicas.
	RegionReplicas map[string]int32 `json:",omitempty"`
	// DefaultReplicas is the number for regions that the app is new to.
	DefaultReplicas int32
	// OldSizes and Sizes are the replicas wanted in each region, by id, of the live version and of the new one.
	// Sizes are set when it starts.
	OldSizes, Sizes map[string]int32
	// Back is true while it goes back to the live version. It then ends as Final, for Reason.
	Back            bool
	Final           windlassv1.RolloutStatus
	Reason, Message string
	// PausedAt is when it was paused, 0 if it is not. Failed is true if a wave's on_failure paused it.
	PausedAt            int64
	PausedBy, PausedWhy string
	Failed              bool
	Waves               []WaveProgress
	// SkipsNew leaves out regions that are new to the app and that no agent has joined yet. It is set for
	// rollouts without a policy of the app's own.
	SkipsNew bool `json:",omitempty"`
	// RolledBack is true after the app went back, until a person promotes. PromotionPaused is true if RolledBack was
	// true for the rollout before. Then nothing is promoted automatically.
	RolledBack      bool
	PromotionPaused bool `json:"Held"`
	// FullBy is the person who promoted it in full, after which only gates stop it.
	FullBy string
	// DeployedBy is the name of the key that requested it, and DeployedByID is its id.
	DeployedBy, DeployedByID string
	// DeployedByFamily is the key's family. Empty: the key's own.
	DeployedByFamily string `json:",omitempty"`
	// BakeProtected means that a protection requires a bake time, so that only owners may skip it.
	BakeProtected bool `json:",omitempty"`
	// DoneAt is when it ended.
	DoneAt int64
	// RetainedID is the deployment that was live before, which a successful rollout keeps as it was until
	// RetainedUntil. It needs no new instance to be live again. Empty for none.
	RetainedID    string
	RetainedUntil int64
	// CatchesUp is true for the progress of a lagging region. No person promotes or approves in it, because the
	// version is already live.
	CatchesUp bool
	// Lagging are the regions that have yet to catch up, by id. storedProgress has their stored form.
	Lagging []LaggingRegion `json:"-"`
}

// LaggingRegion is a region that was out of reach when the app moved on. It stays as it was until it has
// returned and caught up with the live version.
type LaggingRegion struct {
	RegionID string
	// DeploymentID is the deployment that serves there until then, whatever else is live. Empty if nothing was there
	// before.
	DeploymentID string
	// Progress is of this region alone, with the policy of the rollout that left it behind. Back is set in it if the
	// region was lost while it went back to the live version. Then it only completes the way back.
	Progress *Progress
}

// WaveProgress is where a wave of a staged rollout is.
type WaveProgress struct {
	Name string
	// Policy is the index of its policy among the waves of Progress.Policy.
	Policy int
	State  windlassv1.WaveProgress_State
	// BakingSince is when the new version began to serve in all regions. A bake continues while a region is
	// Unacknowledged, although the state of the wave is then rolling.
	BakingSince int64
	// SkippedBy is the person who ended the bake time.
	SkippedBy string
	Regions   []RegionProgress
	// Approvals are for the gate at its end. They approve what has served since BakingSince.
	Approvals []Approval
}

// Approval is a person's approval at a gate: the key, its role, and the time.
type Approval struct {
	ByID, By string
	// Family is the key's family. Empty, as an earlier release stored it: the key's own.
	Family  string `json:",omitempty"`
	Role    windlassv1.Role
	At      int64
	Comment string
}

// Approver returns the family of the key that approved.
func (a Approval) Approver() string { return cmp.Or(a.Family, a.ByID) }

// RegionProgress is where a region of a wave is. Each embedded part is one thing that it waits for, and is
// reset as a whole. They are embedded, because the stored form has all fields on one level.
type RegionProgress struct {
	RegionID string
	State    windlassv1.RegionProgress_State
	Since    int64
	// Reason and Message say why it failed.
	Reason, Message string
	// Heard is the guard of the region's newest report about the version when the region began.
	Heard Guard `json:",omitempty"`
	ProgressClock
	StepWait
	CapacityWait
	TroubleWatch
	HealthWatch
	RelapseCount
	Absence
	EmptySteps
	// Inherited is how many replicas already served when the version took them over to keep them. 0: none did,
	// or it made its own.
	Inherited int32 `json:",omitempty"`
	// Checks are the analysis's checks, in the policy's order, at the region's current or last step or bake. nil
	// before the first.
	Checks []CheckProgress
}

// StartClocks continues the region's stopped clocks, as if no time had passed.
func (r *RegionProgress) StartClocks(now int64) {
	if r.ClockStoppedSince == 0 {
		return
	}
	stood := now - r.ClockStoppedSince
	r.ScoredAt, r.ClockStoppedSince = r.ScoredAt+stood, 0
	if r.NoRoomSince != 0 {
		r.NoRoomSince += stood
	}
	if r.TroubleSince != 0 {
		r.TroubleSince += stood
	}
}

// ProgressClock measures the time since a region last came closer to its version.
type ProgressClock struct {
	// Score is the highest score that the region reached, and ScoredAt is when it reached that. A deadline runs from
	// then, unless the clock is stopped.
	Score    int32
	ScoredAt int64
	// ClockStoppedSince is when the clock was stopped, 0 while it runs.
	ClockStoppedSince int64 `json:"HeldSince"`
}

// Reset starts the clock now, with that score.
func (c *ProgressClock) Reset(score int32, now int64) {
	*c = ProgressClock{Score: score, ScoredAt: now}
}

// Stop stops the clock if it runs.
func (c *ProgressClock) Stop(now int64) {
	if c.ClockStoppedSince == 0 {
		c.ClockStoppedSince = now
	}
}

// StepWait is where a region is among the steps of its strategy.
type StepWait struct {
	// Step is how many steps are taken. StoppedAt is when the region reached the next one, 0 before that.
	// PromotedBy is the person who ended the wait at this step, or at the step before.
	Step       int
	StoppedAt  int64
	PromotedBy string
	// Approvals are for the gate of this step, or of the step before.
	Approvals []Approval
}

// Reset makes the region wait for its step again from the beginning.
func (s *StepWait) Reset() { *s = StepWait{Step: s.Step} }

// Depart ends the stop at a step.
func (s *StepWait) Depart() { s.StoppedAt = 0 }

// CapacityWait is a region's wait for capacity, which stops its progress clock for as long as the
// policy says.
type CapacityWait struct {
	// NoRoomSince is when it began to wait, 0 if it does not. NoRoomFor is how long it waited before, in ms.
	NoRoomSince, NoRoomFor int64
}

// Reset forgets the wait.
func (w *CapacityWait) Reset() { *w = CapacityWait{} }

// End ends the present wait without counting its time.
func (w *CapacityWait) End() { w.NoRoomSince = 0 }

// TroubleWatch is trouble that keeps a region from its version and that has a deadline of its own.
type TroubleWatch struct {
	// Trouble is its kind, and TroubleSince is when it began. 0: none.
	Trouble      windlassv1.AutoRollback_Condition
	TroubleSince int64
	// TroubleFor is how long such trouble has stopped the clock since the last progress, in ms.
	TroubleFor int64 `json:",omitempty"`
}

// Reset forgets the trouble.
func (w *TroubleWatch) Reset() { *w = TroubleWatch{} }

// End ends the present trouble without counting its time.
func (w *TroubleWatch) End() { w.Trouble, w.TroubleSince = 0, 0 }

// HealthWatch watches the replicas of the new version that were ready.
type HealthWatch struct {
	// MostReady is the highest number of replicas that were ready here. UnhealthySince is when too many of these
	// replicas ceased to be ready, 0 if they did not. HealthGeneration and HealthAssigned are the row's generation and
	// replicas at that time.
	MostReady        int32 `json:",omitempty"`
	UnhealthySince   int64 `json:",omitempty"`
	HealthGeneration int64 `json:",omitempty"`
	HealthAssigned   int32 `json:"HealthTold,omitempty"`
}

// Reset makes replicas count only once they are ready again.
func (w *HealthWatch) Reset() { *w = HealthWatch{} }

// Recover ends a time in which too few replicas were ready.
func (w *HealthWatch) Recover() { w.UnhealthySince = 0 }

// RelapseCount counts how often a region served its new version and then stopped serving it.
type RelapseCount struct {
	// Relapses is the number of relapses at this step, or since the new version began to serve alone. ServingSince is
	// when the region first served so. ServingGeneration is the row's generation when the region last served so.
	Relapses          int32 `json:",omitempty"`
	ServingSince      int64 `json:",omitempty"`
	ServingGeneration int64 `json:",omitempty"`
	// Unacknowledged is true while it serves alone, but has yet to acknowledge the route again.
	Unacknowledged bool `json:",omitempty"`
}

// Reset counts from 0 again.
func (w *RelapseCount) Reset() { *w = RelapseCount{} }

// Absence is how far a region was when it was left out.
type Absence struct {
	// HalfWay is true if the region had begun. It continues its step when it returns. StoppedBefore is the StoppedAt
	// of the time when it was left out.
	HalfWay       bool  `json:",omitempty"`
	StoppedBefore int64 `json:",omitempty"`
}

// EmptySteps separates steps that were taken with replicas from steps without.
type EmptySteps struct {
	// Emptied is true if its size became 0 at a step that it has not passed. Its old version is wanted there
	// until it serves again at another size. Then the step begins again.
	Emptied bool `json:",omitempty"`
	// PassedOver is true if its old version had size 0 when its turn came, so that it took no steps, and its
	// size has been 0 since.
	PassedOver bool `json:",omitempty"`
	// Sized is true if its size was above 0 at some time since its turn came.
	Sized bool `json:",omitempty"`
}

// CheckProgress is where a check of the analysis is in a region.
type CheckProgress struct {
	Name string
	// Since is when the step or bake began over which it is measured. It separates its measurements from late
	// ones of another step or bake.
	Since int64
	State windlassv1.CheckProgress_State
	// DueAt is when it is measured next, and MeasuredAt when it was last measured. 0: never.
	DueAt, MeasuredAt int64
	// Taken counts the measurements.
	Taken int32
	// These are the figures of the last measurement, nil if it had none.
	New, NewSamples, Old, OldSamples *float64
	Failures                         int32
	// InconclusiveSince is when measurements began to be inconclusive, 0 if the last was conclusive. InconclusiveFor is
	// for how long they have been inconclusive, in ms, without the time in which nothing was measured.
	InconclusiveSince int64 `json:"HeldSince"`
	InconclusiveFor   int64 `json:"HeldFor"`
	Message           string
}

// Clone returns a copy that shares nothing with c, nil for nil.
func (c *Progress) Clone() *Progress {
	if c == nil {
		return nil
	}
	out := *c
	out.Policy = proto.CloneOf(c.Policy)
	out.OldSizes, out.Sizes = maps.Clone(c.OldSizes), maps.Clone(c.Sizes)
	out.RegionReplicas = maps.Clone(c.RegionReplicas)
	out.Waves = slices.Clone(c.Waves)
	for i := range out.Waves {
		// Approvals are never changed in place.
		out.Waves[i].Regions = slices.Clone(out.Waves[i].Regions)
		for j := range out.Waves[i].Regions {
			// Figures are never changed in place.
			out.Waves[i].Regions[j].Checks = slices.Clone(out.Waves[i].Regions[j].Checks)
		}
	}
	out.Lagging = slices.Clone(c.Lagging)
	for i := range out.Lagging {
		out.Lagging[i].Progress = c.Lagging[i].Progress.Clone()
	}
	return &out
}

// LaggingIn returns the entry of a lagging region, nil if the region is not lagging.
func (c *Progress) LaggingIn(region string) *LaggingRegion {
	if c == nil {
		return nil
	}
	for i := range c.Lagging {
		if c.Lagging[i].RegionID == region {
			return &c.Lagging[i]
		}
	}
	return nil
}

// Active reports whether c is the progress of this rollout, which has not ended.
func (c *Progress) Active(rolloutID string) bool {
	return c != nil && rolloutID != "" && c.RolloutID == rolloutID && c.DoneAt == 0
}

// Retained returns the deployment that is retained to go back to, empty for none.
func (c *Progress) Retained() string {
	if c == nil {
		return ""
	}
	return c.RetainedID
}

// storedProgress is the stored form of a Progress. Fields are only ever added, because a progress outlives
// the program that began it.
type storedProgress struct {
	progress
	PolicyProto []byte
	Lagging     []storedLagging `json:"Behind,omitempty"`
}

type storedLagging struct {
	RegionID, DeploymentID string
	Progress               json.RawMessage `json:"Course"`
}

type progress Progress

// EncodeProgress returns the progress in its stored form, which is empty for nil.
func EncodeProgress(c *Progress) ([]byte, error) {
	if c == nil {
		return []byte{}, nil
	}
	s := storedProgress{progress: progress(*c)}
	var err error
	if s.PolicyProto, err = proto.Marshal(c.Policy); err != nil {
		return nil, fmt.Errorf("encode policy of rollout %s: %w", c.RolloutID, err)
	}
	s.Policy, s.progress.Lagging = nil, nil
	for _, behind := range c.Lagging {
		b, err := EncodeProgress(behind.Progress)
		if err != nil {
			return nil, err
		}
		s.Lagging = append(s.Lagging, storedLagging{behind.RegionID, behind.DeploymentID, b})
	}
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode progress of rollout %s: %w", c.RolloutID, err)
	}
	return b, nil
}

// DecodeProgress reads what EncodeProgress wrote.
func DecodeProgress(b []byte) (*Progress, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var s storedProgress
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("decode progress: %w", err)
	}
	c := Progress(s.progress)
	c.Policy = &windlassv1.RolloutPolicy{}
	if err := proto.Unmarshal(s.PolicyProto, c.Policy); err != nil {
		return nil, fmt.Errorf("decode policy of rollout %s: %w", c.RolloutID, err)
	}
	for _, behind := range s.Lagging {
		of, err := DecodeProgress(behind.Progress)
		if err != nil {
			return nil, fmt.Errorf("region %s: %w", behind.RegionID, err)
		}
		c.Lagging = append(c.Lagging, LaggingRegion{behind.RegionID, behind.DeploymentID, of})
	}
	return &c, nil
}
