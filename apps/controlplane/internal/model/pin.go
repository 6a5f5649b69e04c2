package model

import (
	"encoding/json"
	"fmt"
	"slices"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Pin keeps a deployment live next to the one that rollouts move, until it is taken away.
// The rows of its regions are its own: nothing else moves them.
type Pin struct {
	WorkspaceID, AppID, DeploymentID string
	Version                          int32
	// Weight is percent of the traffic of each region in which it serves.
	Weight int32
	// Removing: it was taken away, and is forgotten when nothing is left of it.
	Removing bool
	By, Why  string
	// Regions by id. Never changed in place.
	Regions              []PinRegion
	CreatedAt, UpdatedAt int64
}

// PinRegion is where a pin is in a region. It is kept as JSON: fields are only ever added.
type PinRegion struct {
	RegionID string
	Replicas int32
	State    windlassv1.PinRegion_State
	// Since is when it came to be in that state; while it starts, its deadline runs from then.
	Since int64
	// Heard is the guard of what the region had reported of the version by then.
	Heard Guard `json:",omitempty"`
	// Lost: the region is out of reach, and the deadline runs anew when it returns.
	Lost bool `json:",omitempty"`
	// Below is the generation with which the region's route was last changed by what is not
	// pinned, while all later ones were changed by pins alone; 0: the newest.
	Below int64 `json:",omitempty"`
	// Again: it starts anew once its replicas have stopped.
	Again           bool   `json:",omitempty"`
	Reason, Message string `json:",omitempty"`
}

// Equal reports whether the two say the same.
func (p Pin) Equal(other Pin) bool {
	if !slices.Equal(p.Regions, other.Regions) {
		return false
	}
	return p.WorkspaceID == other.WorkspaceID && p.AppID == other.AppID && p.DeploymentID == other.DeploymentID &&
		p.Version == other.Version && p.Weight == other.Weight && p.Removing == other.Removing && p.By == other.By &&
		p.Why == other.Why && p.CreatedAt == other.CreatedAt && p.UpdatedAt == other.UpdatedAt
}

// Clone shares nothing with p.
func (p Pin) Clone() Pin {
	p.Regions = slices.Clone(p.Regions)
	return p
}

// In finds the pin in a region, nil for none.
func (p Pin) In(region string) *PinRegion {
	if i := slices.IndexFunc(p.Regions, func(r PinRegion) bool { return r.RegionID == region }); i >= 0 {
		return &p.Regions[i]
	}
	return nil
}

// Stays reports whether the region keeps the pin: it is not leaving for good.
func (p Pin) Stays(r PinRegion) bool {
	return !p.Removing && (r.State != windlassv1.PinRegion_STATE_LEAVING || r.Again)
}

// EncodePinRegions returns the regions as they are kept.
func EncodePinRegions(regions []PinRegion) ([]byte, error) {
	if regions == nil {
		regions = []PinRegion{}
	}
	b, err := json.Marshal(regions)
	if err != nil {
		return nil, fmt.Errorf("encode regions of a pin: %w", err)
	}
	return b, nil
}

// DecodePinRegions reads what EncodePinRegions wrote.
func DecodePinRegions(b []byte) (regions []PinRegion, err error) {
	if err := json.Unmarshal(b, &regions); err != nil {
		return nil, fmt.Errorf("decode regions of a pin: %w", err)
	}
	if len(regions) == 0 {
		return nil, nil
	}
	return regions, nil
}

// whole is a region's traffic in percent.
const whole = 100

// Shares of a route's targets, of a common whole. Without pins they are the weights. With
// them, what is pinned has its percent of all, and the weights of the others, which add up to
// 100 as if they were alone, are of what is left: in hundredths of a percent, so that nothing
// is rounded. Where the others have nothing, the pins share all in the ratio of their weights.
func Shares(targets []RouteTarget) []RouteTarget {
	var pinned int32
	for _, t := range targets {
		if t.Pinned {
			pinned += t.Weight
		}
	}
	out := slices.Clone(targets)
	if pinned == 0 {
		return out
	}
	rest := max(0, whole-pinned)
	for i := range out {
		if out[i].Pinned {
			out[i].Weight *= whole
		} else {
			out[i].Weight *= rest
		}
	}
	return out
}
