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

// RolloutState is how an app's rollouts go: its policy, and the progress of the newest
// rollout under one. Apps that had neither a policy nor a second version have none.
type RolloutState struct {
	AppID, WorkspaceID string
	// Policy of the next rollout, nil for the one by default.
	Policy *windlassv1.RolloutPolicy
	// Progress of the newest staged rollout, nil before the first.
	Progress  *Progress
	UpdatedAt int64
}

// ActiveRollout is a rollout, the deployment that it is of, and the rollout state of their app, nil for
// none.
type ActiveRollout struct {
	Rollout      Rollout
	Deployment   Deployment
	RolloutState *RolloutState
}

// Clone shares nothing with s.
func (s RolloutState) Clone() RolloutState {
	s.Policy = proto.CloneOf(s.Policy)
	s.Progress = s.Progress.Clone()
	return s
}

// Progress is where a staged rollout is. While it is under way, the replicas of the
// app's topology are what its regions are told for now; what they are to come to is
// kept here.
type Progress struct {
	RolloutID string
	// Policy that the rollout began with.
	Policy *windlassv1.RolloutPolicy
	// Replicas that were asked for with the new version, -1 for none: each region then
	// keeps the number that it has.
	Replicas int32
	// RegionReplicas are those that were asked for in some regions, by id; they win.
	RegionReplicas map[string]int32 `json:",omitempty"`
	// DefaultReplicas are for regions that the app is new to.
	DefaultReplicas int32
	// OldSizes and Sizes are the replicas wanted in each region, by id, of the version
	// that is live and of the new one. Sizes are set when it starts.
	OldSizes, Sizes map[string]int32
	// Back: it goes back to the version that is live, to end as Final for Reason.
	Back            bool
	Final           windlassv1.RolloutStatus
	Reason, Message string
	// Paused at, unix ms; 0 for not. Failed tells that a wave's on_failure did it.
	PausedAt            int64
	PausedBy, PausedWhy string
	Failed              bool
	Waves               []WaveProgress
	// SkipsNew: regions are left out that are new to the app and that no agent has joined
	// yet. So it is without a policy of the app's own.
	SkipsNew bool `json:",omitempty"`
	// RolledBack remembers that the app went back, until somebody promotes; Held is that
	// of the rollout before: nothing is promoted by itself.
	RolledBack, Held bool
	// FullBy promoted it in full: only gates hold it from then on.
	FullBy string
	// DeployedBy is the name of the key that asked for it, DeployedByID its id.
	DeployedBy, DeployedByID string
	// DeployedByFamily is the key's family; empty: its own.
	DeployedByFamily string `json:",omitempty"`
	// BakeProtected: a protection asked for a bake time, so that only owners skip it.
	BakeProtected bool `json:",omitempty"`
	// DoneAt is when it was over.
	DoneAt int64
	// RetainedID is the deployment that was live before and is kept as it was until
	// RetainedUntil, once the rollout has succeeded: to be live again it needs no new
	// instance. Empty for none.
	RetainedID    string
	RetainedUntil int64
	// CatchesUp: it is the progress of a region that is behind. What people would have to
	// promote, or to approve, is live already.
	CatchesUp bool
	// Lagging are the regions that have yet to catch up, by id. Their stored form is that of storedProgress.
	Lagging []LaggingRegion `json:"-"`
}

// LaggingRegion is a region that was out of reach when the app moved on. It is as it was, until
// it has returned and caught up with the version that is live.
type LaggingRegion struct {
	RegionID string
	// DeploymentID is what is to serve there until then, whatever else is live; empty if
	// nothing was there before.
	DeploymentID string
	// Progress of the region alone, by the policy of the rollout that left it behind. Back:
	// it was lost on the way back to what is live, and has only to come to that again.
	Progress *Progress
}

// WaveProgress is where a wave of it is.
type WaveProgress struct {
	Name string
	// Policy is its index among those of the policy.
	Policy int
	State  windlassv1.WaveProgress_State
	// BakingSince is when the new version began to serve in all regions. A bake goes on while a
	// region is Unacknowledged, although the wave rolls then.
	BakingSince int64
	// SkippedBy ended the bake time.
	SkippedBy string
	Regions   []RegionProgress
	// Approvals at its end, of what serves since BakingSince.
	Approvals []Approval
}

// Approval is a person's at a gate: of which key, with which role, when.
type Approval struct {
	ByID, By string
	// Family of the key; empty, as in what a release before stored: its own.
	Family  string `json:",omitempty"`
	Role    windlassv1.Role
	At      int64
	Comment string
}

// Approver identifies the approver: the family of the key.
func (a Approval) Approver() string { return cmp.Or(a.Family, a.ByID) }

// RegionProgress is where a region of a wave is. What it waits for is in parts, each of which begins
// anew as a whole. They are embedded, since the stored form has their fields side by side.
type RegionProgress struct {
	RegionID string
	State    windlassv1.RegionProgress_State
	Since    int64
	// Reason and Message say why it failed.
	Reason, Message string
	// Heard is the guard of what it had reported of the version when it began.
	Heard Guard `json:",omitempty"`
	ProgressClock
	StepWait
	CapacityWait
	TroubleWatch
	HealthWatch
	RelapseCount
	Absence
	EmptySteps
	// Inherited is how many replicas served when the version took them over to keep them; 0:
	// none did, or it made its own.
	Inherited int32 `json:",omitempty"`
	// Checks of the analysis, in the policy's order, at the step or in the bake that the
	// region is at or was at last; nil before the first.
	Checks []CheckProgress
}

// StartClocks runs the region's clocks again that were stopped, as if no time had passed.
func (r *RegionProgress) StartClocks(now int64) {
	if r.HeldSince == 0 {
		return
	}
	stood := now - r.HeldSince
	r.ScoredAt, r.HeldSince = r.ScoredAt+stood, 0
	if r.NoRoomSince != 0 {
		r.NoRoomSince += stood
	}
	if r.TroubleSince != 0 {
		r.TroubleSince += stood
	}
}

// ProgressClock measures the time since a region last came closer to its version.
type ProgressClock struct {
	// Score is the most that was reached, ScoredAt when: a deadline runs from then,
	// while nothing holds it.
	Score    int32
	ScoredAt int64
	// HeldSince is when the clock was stopped; 0: it runs.
	HeldSince int64
}

// Reset starts the clock now, from that score.
func (c *ProgressClock) Reset(score int32, now int64) {
	*c = ProgressClock{Score: score, ScoredAt: now}
}

// Stop stops the clock, if it runs.
func (c *ProgressClock) Stop(now int64) {
	if c.HeldSince == 0 {
		c.HeldSince = now
	}
}

// StepWait is where a region is among the steps of its strategy.
type StepWait struct {
	// Step is how many steps are taken. StoppedAt is when it came to serve as the next one
	// says; 0: it is on its way there. PromotedBy ended the wait at this step, or at the one
	// before.
	Step       int
	StoppedAt  int64
	PromotedBy string
	// Approvals of this step, or of the one before.
	Approvals []Approval
}

// Reset makes the region come to its step anew.
func (s *StepWait) Reset() { *s = StepWait{Step: s.Step} }

// CapacityWait is a region's wait for capacity, which stops its progress clock for as long as the
// policy says.
type CapacityWait struct {
	// NoRoomSince is when it began to wait, 0: it does not; NoRoomFor is for how long it did
	// before, ms.
	NoRoomSince, NoRoomFor int64
}

// Reset forgets the wait.
func (w *CapacityWait) Reset() { *w = CapacityWait{} }

// TroubleWatch is what keeps a region from its version, of what has a deadline of its own.
type TroubleWatch struct {
	// Trouble is its kind, and TroubleSince is when it began. 0: there is none.
	Trouble      windlassv1.AutoRollback_Condition
	TroubleSince int64
	// TroubleFor is for how long such trouble has stopped the clock since the last progress, ms.
	TroubleFor int64 `json:",omitempty"`
}

// Reset forgets the trouble.
func (w *TroubleWatch) Reset() { *w = TroubleWatch{} }

// HealthWatch follows the replicas of the new version that were ready.
type HealthWatch struct {
	// MostReady are the most that were ready here, and UnhealthySince is when too many of them
	// ceased to be; 0: they have not. HealthGeneration and HealthAssigned are the row's generation
	// and replicas that this was seen of.
	MostReady        int32 `json:",omitempty"`
	UnhealthySince   int64 `json:",omitempty"`
	HealthGeneration int64 `json:",omitempty"`
	HealthAssigned   int32 `json:"HealthTold,omitempty"`
}

// Reset makes replicas count only once they are ready again.
func (w *HealthWatch) Reset() { *w = HealthWatch{} }

// RelapseCount counts how often a region served its new version and then did not any more.
type RelapseCount struct {
	// Relapses at this step, or since it served alone. ServingSince is when it first served so,
	// and ServingGeneration the row's generation when it last did.
	Relapses          int32 `json:",omitempty"`
	ServingSince      int64 `json:",omitempty"`
	ServingGeneration int64 `json:",omitempty"`
	// Unacknowledged: it serves alone, but has yet to acknowledge the route again.
	Unacknowledged bool `json:",omitempty"`
}

// Reset counts from 0 again.
func (w *RelapseCount) Reset() { *w = RelapseCount{} }

// Absence remembers how far a region was when it was left out.
type Absence struct {
	// HalfWay: it had begun, and continues its step when it returns. StoppedBefore is what
	// StoppedAt was then.
	HalfWay       bool  `json:",omitempty"`
	StoppedBefore int64 `json:",omitempty"`
}

// EmptySteps tells steps that were taken with replicas from those without.
type EmptySteps struct {
	// Emptied: its size became 0 at a step that it has not passed. Its old version is wanted
	// there, until that serves again at another size and the step begins anew.
	Emptied bool `json:",omitempty"`
	// PassedOver: its old version had size 0 when its turn came, so that it took no steps, and
	// its size has been 0 since.
	PassedOver bool `json:",omitempty"`
	// Sized: its size has been above 0 at some time since its turn came.
	Sized bool `json:",omitempty"`
}

// CheckProgress is where a check of the analysis is in a region.
type CheckProgress struct {
	Name string
	// Since is when what it is measured over began: the step, or the bake. It tells
	// measurements of this one from late ones of another.
	Since int64
	State windlassv1.CheckProgress_State
	// DueAt is when it is measured next, MeasuredAt when it was last; 0: never.
	DueAt, MeasuredAt int64
	// Taken counts the measurements.
	Taken int32
	// Figures of the last measurement, nil for those that there were not.
	New, NewSamples, Old, OldSamples *float64
	Failures                         int32
	// HeldSince is when measurements began to be inconclusive; 0: the last was not. HeldFor is
	// how long they have been since, in ms, without the time in which there was no measurement.
	HeldSince, HeldFor int64
	Message            string
}

// Clone shares nothing with c; nil for nil.
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

// LaggingIn finds what the region is behind with; nil: it is not.
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

// Active reports whether the progress is that of the rollout, and not over.
func (c *Progress) Active(rolloutID string) bool {
	return c != nil && rolloutID != "" && c.RolloutID == rolloutID && c.DoneAt == 0
}

// Retained is the deployment that is kept as a way back, empty for none.
func (c *Progress) Retained() string {
	if c == nil {
		return ""
	}
	return c.RetainedID
}

// storedProgress is a Progress as it is kept. Fields are only ever added: a progress outlives
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

// EncodeProgress returns the progress as it is kept; nothing for nil.
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
