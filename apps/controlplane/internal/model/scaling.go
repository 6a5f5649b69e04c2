package model

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Scaling is an app's scaling policy and its holds. It is not part of a version.
type Scaling struct {
	AppID, WorkspaceID string
	// Policy is nil for an app that is not scaled.
	Policy    *windlassv1.ScalingPolicy
	Holds     []ScalingHold
	UpdatedAt int64
}

// ScalingHold keeps a number that a person set, of an app's replicas or of the instances of one role of a pool.
type ScalingHold struct {
	// RegionID is empty for a hold in all regions.
	RegionID string
	// Role is empty for a hold of the app's replicas.
	Role     string
	Replicas int32
	Until    int64
	Who      string
}

// Clone returns a copy that shares nothing with s.
func (s *Scaling) Clone() Scaling {
	out := *s
	out.Policy, out.Holds = proto.CloneOf(s.Policy), slices.Clone(s.Holds)
	return out
}

// Active reports whether the policy sets replicas.
func (s *Scaling) Active() bool {
	return s.Policy != nil && s.Policy.GetMode() != windlassv1.ScalingPolicy_MODE_ADVISE
}

// Scales reports whether the policy sets the instances of the role of a pool, or the app's replicas if role is empty.
func (s *Scaling) Scales(role string) bool {
	if roles := s.Policy.GetRoles(); len(roles) > 0 || role != "" {
		return s.Active() && slices.ContainsFunc(roles, func(r *windlassv1.RoleScaling) bool { return r.GetRole() == role })
	}
	return s.Active()
}

// HeldUntil returns when the hold in the region ends, 0 without one. role is empty for the app's replicas.
func (s *Scaling) HeldUntil(regionID, role string, now int64) (until int64) {
	for _, h := range s.Holds {
		if (h.RegionID == "" || h.RegionID == regionID) && h.Role == role && h.Until > now {
			until = max(until, h.Until)
		}
	}
	return until
}

// HoldInAll returns the hold that is in force in all regions, nil for none. role is empty for the app's replicas.
func (s *Scaling) HoldInAll(role string, now int64) *ScalingHold {
	for i, h := range s.Holds {
		if h.RegionID == "" && h.Role == role && h.Until > now {
			return &s.Holds[i]
		}
	}
	return nil
}

// Hold adds a hold. It drops holds that the new one replaces, and holds that have ended.
func (s *Scaling) Hold(h ScalingHold, now int64) {
	s.EndHold(h.RegionID, h.Role, now)
	s.Holds = append(s.Holds, h)
}

// EndHold drops the role's hold in the region, or all holds of the role if regionID is empty. It reports whether one of
// them was in force. It also drops all holds that have ended. role is empty for holds of the app's replicas.
func (s *Scaling) EndHold(regionID, role string, now int64) (ended bool) {
	s.Holds = slices.DeleteFunc(slices.Clone(s.Holds), func(h ScalingHold) bool {
		about := h.Role == role && (regionID == "" || h.RegionID == regionID)
		ended = ended || about && h.Until > now
		return about || h.Until <= now
	})
	return ended
}

// EncodeHolds returns the holds in their stored form, which is empty for none.
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

// AloneFacts decide whether a region that is cut off may raise an app's replicas by itself.
type AloneFacts struct {
	Holds []ScalingHold
	// Instances and GPUs are the workspace's own limits, which may be Inherit. Ceiling has its instances and GPUs.
	Instances, GPUs int64
	Ceiling         Ceiling
	// Closed means that the workspace may no longer use the region.
	Closed bool
}

// ScalingDecision is an app's newest decision in a region that differed from the one before it.
type ScalingDecision struct {
	AppID, RegionID, WorkspaceID string
	Decision                     *windlassv1.RegionScaling
	DecidedAt                    int64
}

// Clone returns a copy that shares nothing with d.
func (d ScalingDecision) Clone() ScalingDecision {
	d.Decision = proto.CloneOf(d.Decision)
	return d
}

// ScaledApp is what the scaler reads of an app that has a policy and a live version.
type ScaledApp struct {
	AppID, WorkspaceID, Name string
	Version                  int32
	Scaling                  Scaling
	// Deployments has the ids of the deployments whose load counts: all deployments that are not pinned.
	Deployments   map[string]bool
	StartupBudget time.Duration
	// EngineMetrics are the metrics of the live version's engine that its preset names.
	EngineMetrics []*windlassv1.EngineMetric
	// Regions are by id.
	Regions map[string]ScaledRegion
}

// ScaledRegion is the state of an app in a region.
type ScaledRegion struct {
	Name string
	// Replicas is the number that was sent to the region, or that a rollout will bring.
	Replicas int32
	// Counted is how many replicas count against quotas: Replicas, or what a request starts if there are none. That is 1,
	// or the whole of a pool.
	Counted int32
	// Generation is that of the live version's row.
	Generation int64
	// CanWake reports whether a request starts the app if it has no replicas: the live version, and the version of the
	// rollout in flight, have coldStart.
	CanWake bool
	// Moving is true while a staged rollout is under way.
	Moving bool
	// Instances and GPUs are the numbers of instances and GPUs of one replica.
	Instances, GPUs int64
	// MadeFor are the ids of the deployments for which the app's instances in the region were made, without pinned
	// deployments. The live deployment is first.
	MadeFor []string
	// Roles are the counts of the roles of a pool, by name. RoleCosts are the costs of one instance of each role, by
	// name. Both are empty for other layouts.
	Roles     RoleCounts
	RoleCosts map[string]RoleCost
}

// RoleCost is what one instance of a role counts against quotas.
type RoleCost struct{ Instances, GPUs int64 }

// RescaledRole is a decision about the instances of one role of a pool. From is the number of instances on which the
// decision is based.
type RescaledRole struct {
	Role         string
	From, Wanted int32
}

// Rescale is a decision of the scaler, and the state on which it is based.
type Rescale struct {
	AppID, WorkspaceID, RegionID string
	// From, Generation and ScalingAt are that state: the replicas, the generation of the live version's row, and
	// Scaling.UpdatedAt.
	From                  int32
	Generation, ScalingAt int64
	// Writes is true if the replicas, or the instances of Roles, or Pool, are written. Otherwise only the decision is stored.
	Writes bool
	// Renews is true if the live version gets a new generation in the region, even if its replicas stay. The new
	// generation answers a region that raised its replicas by itself.
	Renews bool
	// Roles are the roles of a pool whose instances change.
	Roles []RescaledRole
	// Pool is the number of replicas of a pool that goes to zero or comes back: 0 or pool.Whole. Nil means that it
	// does neither.
	Pool *int32
	// Entries are the entries for the app's history.
	Entries  []ScalingEntry
	Decision *windlassv1.RegionScaling
}

// NoRoomError says that a region has no room for what a decision of the scaler adds.
type NoRoomError struct {
	// Fits is how many replicas the region has room for, with the key "". For a pool, it is how many instances the
	// region has room for, by the name of each role that should grow. The numbers include Rescale.From or
	// RescaledRole.From.
	Fits map[string]int32
	Why  string
}

// Error returns why there is no room.
func (e *NoRoomError) Error() string { return e.Why }

// ScalingEntry is what a history entry about a decision says.
type ScalingEntry struct{ What, Why string }

// LoadChunk is the load of an app in a region, or of a role of its pool there, from a time on.
type LoadChunk struct {
	AppID, RegionID, Role, WorkspaceID string
	// BeganAt is the time of the first sample, Unix ms.
	BeganAt int64
	// Samples are encoded by EncodeLoads.
	Samples []byte
}

// Clone returns a copy that shares nothing with c.
func (c LoadChunk) Clone() LoadChunk {
	c.Samples = bytes.Clone(c.Samples)
	return c
}

// LoadsFor is how long chunks are kept. The proto documents it.
const LoadsFor = 72 * time.Hour

// maxLoadBytes bounds the decoded samples of a chunk.
const maxLoadBytes = 1 << 20

// EncodeLoads encodes samples as they are stored: a serialised, compressed windlass.v1.ListLoadResponse.
func EncodeLoads(samples []*windlassv1.LoadSample) ([]byte, error) {
	b, err := proto.Marshal(&windlassv1.ListLoadResponse{Samples: samples})
	if err != nil {
		return nil, fmt.Errorf("encode loads: %w", err)
	}
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestSpeed)
	if err != nil {
		return nil, fmt.Errorf("encode loads: %w", err)
	}
	_, err = w.Write(b)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, fmt.Errorf("encode loads: %w", err)
	}
	return out.Bytes(), nil
}

// DecodeLoads decodes samples of EncodeLoads.
func DecodeLoads(b []byte) ([]*windlassv1.LoadSample, error) {
	r := flate.NewReader(bytes.NewReader(b))
	raw, err := io.ReadAll(io.LimitReader(r, maxLoadBytes))
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, fmt.Errorf("decode loads: %w", err)
	}
	out := &windlassv1.ListLoadResponse{}
	if err := proto.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("decode loads: %w", err)
	}
	return out.GetSamples(), nil
}
