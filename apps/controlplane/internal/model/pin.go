package model

import (
	"encoding/json"
	"fmt"
	"slices"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Pin keeps a deployment in service next to the live one, until a person removes the pin. Only pins change the
// deployment's topology rows.
type Pin struct {
	WorkspaceID, AppID, DeploymentID string
	Version                          int32
	// Weight is its share of the traffic, in percent, in each region in which it serves.
	Weight int32
	// Removing is true once a person removed it. The pin is deleted when nothing is left of it.
	Removing bool
	By, Why  string
	// Regions are sorted by id. They are never changed in place.
	Regions              []PinRegion
	CreatedAt, UpdatedAt int64
	// ResourceVersion changes with each change that a caller makes: see Changed.
	ResourceVersion int64
}

// Changed returns the pin with a change that a caller made at now, in unix ms. A pin that was deleted and set again
// gets a newer version than before, because versions are times.
func (p Pin) Changed(by, why string, now int64) Pin {
	p.By, p.Why, p.UpdatedAt = by, why, now
	p.ResourceVersion = max(p.ResourceVersion+1, now)
	return p
}

// PinRegion is the progress of a pin in a region. It is stored as JSON: fields are only ever added.
type PinRegion struct {
	RegionID string
	Replicas int32
	State    windlassv1.PinRegion_State
	// Since is when it entered that state. The deadline of a start runs from then.
	Since int64
	// Heard is the guard of the region's newest report about the version at that time.
	Heard Guard `json:",omitempty"`
	// Lost is true while the region is out of reach. The deadline begins again when it returns.
	Lost bool `json:",omitempty"`
	// Below is the generation of the route's last change that no pin made. 0: the newest generation.
	Below int64 `json:",omitempty"`
	// Again is true if the pin starts again once its replicas have stopped.
	Again           bool   `json:",omitempty"`
	Reason, Message string `json:",omitempty"`
}

// Equal reports whether p and other have the same values.
func (p Pin) Equal(other Pin) bool {
	if !slices.Equal(p.Regions, other.Regions) {
		return false
	}
	return p.WorkspaceID == other.WorkspaceID && p.AppID == other.AppID && p.DeploymentID == other.DeploymentID &&
		p.Version == other.Version && p.Weight == other.Weight && p.Removing == other.Removing && p.By == other.By &&
		p.Why == other.Why && p.CreatedAt == other.CreatedAt && p.UpdatedAt == other.UpdatedAt &&
		p.ResourceVersion == other.ResourceVersion
}

// Clone returns a copy that shares nothing with p.
func (p Pin) Clone() Pin {
	p.Regions = slices.Clone(p.Regions)
	return p
}

// In returns the pin's progress in the region, nil for none.
func (p Pin) In(region string) *PinRegion {
	if i := slices.IndexFunc(p.Regions, func(r PinRegion) bool { return r.RegionID == region }); i >= 0 {
		return &p.Regions[i]
	}
	return nil
}

// Stays reports whether the pin remains in the region: it does not leave, or it starts again.
func (p Pin) Stays(r PinRegion) bool {
	return !p.Removing && (r.State != windlassv1.PinRegion_STATE_LEAVING || r.Again)
}

// EncodePinRegions returns the regions in their stored form.
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

// whole is all of a region's traffic, in percent.
const whole = 100

// Shares returns a route's targets with weights that are shares of their sum. Without pins, the
// weights stay as they are. With pins, weights are in hundredths of a percent, so that nothing is rounded. Each
// pinned target has its percent of all traffic, and the other targets divide the rest by their weights, whose
// sum is 100. If no other target has a weight, the pinned targets divide all traffic by their weights.
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
