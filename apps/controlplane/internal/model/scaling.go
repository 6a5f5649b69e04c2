package model

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Scaling is how an app's replicas follow the load. It is no part of a version.
type Scaling struct {
	AppID, WorkspaceID string
	// Policy is nil for an app that is not scaled.
	Policy    *windlassv1.ScalingPolicy
	Holds     []ScalingHold
	UpdatedAt int64
}

// ScalingHold keeps the replicas that a person set.
type ScalingHold struct {
	// RegionID is empty for a hold in all regions.
	RegionID string
	Replicas int32
	Until    int64
	Who      string
}

// Clone shares nothing with s.
func (s *Scaling) Clone() Scaling {
	out := *s
	out.Policy, out.Holds = proto.CloneOf(s.Policy), slices.Clone(s.Holds)
	return out
}

// Active reports whether the policy sets replicas.
func (s *Scaling) Active() bool {
	return s.Policy != nil && s.Policy.GetMode() != windlassv1.ScalingPolicy_MODE_ADVISE
}

// HeldUntil returns when the hold in the region ends; 0: there is none.
func (s *Scaling) HeldUntil(regionID string, now int64) (until int64) {
	for _, h := range s.Holds {
		if (h.RegionID == "" || h.RegionID == regionID) && h.Until > now {
			until = max(until, h.Until)
		}
	}
	return until
}

// HoldInAll returns the hold in all regions that is in force; nil: there is none.
func (s *Scaling) HoldInAll(now int64) *ScalingHold {
	for i, h := range s.Holds {
		if h.RegionID == "" && h.Until > now {
			return &s.Holds[i]
		}
	}
	return nil
}

// Hold adds a hold, and drops those that it replaces and that have ended.
func (s *Scaling) Hold(h ScalingHold, now int64) {
	s.EndHold(h.RegionID, now)
	s.Holds = append(s.Holds, h)
}

// EndHold drops the hold of the region, or all of them if it is empty, and those that have ended. It reports
// whether one was in force.
func (s *Scaling) EndHold(regionID string, now int64) (ended bool) {
	s.Holds = slices.DeleteFunc(slices.Clone(s.Holds), func(h ScalingHold) bool {
		about := regionID == "" || h.RegionID == regionID
		ended = ended || about && h.Until > now
		return about || h.Until <= now
	})
	return ended
}

// EncodeHolds returns holds as they are kept; nothing for none.
func EncodeHolds(holds []ScalingHold) ([]byte, error) {
	if len(holds) == 0 {
		return []byte{}, nil
	}
	return json.Marshal(holds)
}

// DecodeHolds reads what EncodeHolds wrote.
func DecodeHolds(b []byte) (holds []ScalingHold, err error) {
	if len(b) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(b, &holds); err != nil {
		return nil, fmt.Errorf("decode holds: %w", err)
	}
	return holds, nil
}

// ScalingDecision is the newest decision for an app in a region that differed from the one before it.
type ScalingDecision struct {
	AppID, RegionID, WorkspaceID string
	Decision                     *windlassv1.RegionScaling
	DecidedAt                    int64
}

// Clone shares nothing with d.
func (d ScalingDecision) Clone() ScalingDecision {
	d.Decision = proto.CloneOf(d.Decision)
	return d
}

// ScaledApp is what the scaler reads of an app that has a policy and a live version.
type ScaledApp struct {
	AppID, WorkspaceID, Name string
	Version                  int32
	Scaling                  Scaling
	// Deployments whose load counts, as a set of ids: those that are not pinned.
	Deployments   map[string]bool
	StartupBudget time.Duration
	// Regions by id.
	Regions map[string]ScaledRegion
}

// ScaledRegion is what an app has in a region.
type ScaledRegion struct {
	Name string
	// Replicas that the region has been told, or is to come to by a rollout.
	Replicas int32
	// Generation of the live version's row.
	Generation int64
	// Moving: a staged rollout is under way.
	Moving bool
	// Instances and GPUs of a replica.
	Instances, GPUs int64
}

// Rescale is a decision of the scaler, and what it was made on.
type Rescale struct {
	AppID, WorkspaceID, RegionID string
	// From, Generation and ScalingAt are the replicas, the generation of the live version's row, and Scaling.UpdatedAt
	// that the decision was made on.
	From                  int32
	Generation, ScalingAt int64
	// Writes: the replicas are written. Otherwise the decision is only kept.
	Writes bool
	// What is the entry of the history, empty for none.
	What     string
	Decision *windlassv1.RegionScaling
}
