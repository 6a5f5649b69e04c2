package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// SetPin gives the pin its weight in percent and its replicas per region id, and removes it
// from all other regions. A region where it failed tries again. It reports whether that changes
// anything. now is unix ms.
func SetPin(p *model.Pin, weight int32, sizes map[string]int32, now int64) (changed bool) {
	was := p.Clone()
	p.Weight, p.Removing = weight, false
	p.Regions = nil
	for _, r := range was.Regions {
		n, stays := sizes[r.RegionID]
		switch {
		case !stays:
			leavePin(&r, now)
		case r.State == pinFailed || r.State == pinLeaving:
			r.Replicas, r.Again = n, true
		default:
			r.Replicas = n
		}
		p.Regions = append(p.Regions, r)
	}
	for _, region := range sortedKeys(sizes) {
		if was.In(region) == nil {
			p.Regions = append(p.Regions, model.PinRegion{RegionID: region, Replicas: sizes[region], State: pinStarting, Since: now})
		}
	}
	slices.SortFunc(p.Regions, func(a, b model.PinRegion) int { return cmp.Compare(a.RegionID, b.RegionID) })
	return !p.Equal(was)
}

// RemovePin has nothing be left of the pin, and reports whether that changes anything.
func RemovePin(p *model.Pin, now int64) (changed bool) {
	if p.Removing {
		return false
	}
	p.Removing = true
	p.Regions = slices.Clone(p.Regions)
	for i := range p.Regions {
		leavePin(&p.Regions[i], now)
	}
	return true
}

// RemovePinIn has nothing be left of the pin in the region, and reports whether that changes
// anything.
func RemovePinIn(p *model.Pin, region string, now int64) (changed bool) {
	if r := p.In(region); r == nil || !p.Stays(*r) {
		return false
	}
	p.Regions = slices.Clone(p.Regions)
	leavePin(p.In(region), now)
	p.Removing = !slices.ContainsFunc(p.Regions, p.Stays)
	return true
}

func leavePin(r *model.PinRegion, now int64) {
	if r.State != pinLeaving {
		r.State, r.Since, r.Lost = pinLeaving, now, false
	}
	r.Again = false
}

// MayPin tells why the version cannot be pinned now: regions have it because of a rollout, or
// because they are behind; nil if it can. rows are the app's that are not of pins.
func MayPin(c *model.Progress, app model.App, d model.Deployment, rows []model.Topology) *Refusal {
	if c != nil {
		for _, b := range c.Behind {
			if b.DeploymentID == d.ID {
				return &Refusal{
					fmt.Sprintf("v%d is what a region has that was out of reach, until it has caught up", d.Version),
					"Pin it when that is done: `windlass rollout status` shows it.",
				}
			}
		}
	}
	for _, t := range rows {
		if t.DeploymentID != d.ID || t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED || app.RolloutID == "" && t.Weight == 0 {
			continue
		}
		return &Refusal{
			fmt.Sprintf("v%d is still being replaced by a rollout", d.Version),
			"Pin it when the rollout is over, or abort that first.",
		}
	}
	return nil
}

// TakeRetained has what is retained be so no longer, because it is pinned from now on.
func TakeRetained(c *model.Progress, d *model.Deployment, now int64) {
	c.RetainedID, c.RetainedUntil = "", 0
	d.Status, d.EndedAt = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED, now
	d.Reason, d.Message = ReasonSuperseded, "another version is live, and it is pinned beside it"
}

// FailedPins tells which versions failed where they are pinned, empty for none. name is a
// region's, by its id.
func FailedPins(pins []model.Pin, name func(id string) string) string {
	var parts []string
	for _, p := range pins {
		for _, r := range p.Regions {
			if r.State == pinFailed {
				parts = append(parts, fmt.Sprintf("v%d, which is pinned, failed in %s (%s)", p.Version, name(r.RegionID), r.Reason))
			}
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}
