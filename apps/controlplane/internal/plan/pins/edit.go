package pins

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// Set gives the pin its weight in percent and its replicas by region id, and removes the pin from all other regions. A
// region in which the pin failed tries again. Set reports whether the pin changes. now is unix ms.
func Set(p *model.Pin, weight int32, sizes map[string]int32, now int64) (changed bool) {
	was := p.Clone()
	p.Weight, p.Removing = weight, false
	p.Regions = nil
	for _, r := range was.Regions {
		n, stays := sizes[r.RegionID]
		switch {
		case !stays:
			leaveRegion(&r, now)
		case r.State == failed || r.State == leaving:
			r.Replicas, r.Again = n, true
		default:
			r.Replicas = n
		}
		p.Regions = append(p.Regions, r)
	}
	for _, region := range slices.Sorted(maps.Keys(sizes)) {
		if was.In(region) == nil {
			p.Regions = append(p.Regions, model.PinRegion{RegionID: region, Replicas: sizes[region], State: starting, Since: now})
		}
	}
	slices.SortFunc(p.Regions, func(a, b model.PinRegion) int { return cmp.Compare(a.RegionID, b.RegionID) })
	return !p.Equal(was)
}

// Remove removes the pin from all regions, and reports whether the pin changes.
func Remove(p *model.Pin, now int64) (changed bool) {
	if p.Removing {
		return false
	}
	p.Removing = true
	p.Regions = slices.Clone(p.Regions)
	for i := range p.Regions {
		leaveRegion(&p.Regions[i], now)
	}
	return true
}

// RemoveIn removes the pin from the region, and reports whether the pin changes.
func RemoveIn(p *model.Pin, region string, now int64) (changed bool) {
	if r := p.In(region); r == nil || !p.Stays(*r) {
		return false
	}
	p.Regions = slices.Clone(p.Regions)
	leaveRegion(p.In(region), now)
	p.Removing = !slices.ContainsFunc(p.Regions, p.Stays)
	return true
}

func leaveRegion(r *model.PinRegion, now int64) {
	if r.State != leaving {
		r.State, r.Since, r.Lost = leaving, now, false
	}
	r.Again = false
}

// Failed describes which pinned versions failed in which regions, empty for none. name returns a region's
// name.
func Failed(pins []model.Pin, name func(id string) string) string {
	var parts []string
	for _, p := range pins {
		for _, r := range p.Regions {
			if r.State == failed {
				parts = append(parts, fmt.Sprintf("v%d, which is pinned, failed in %s (%s)", p.Version, name(r.RegionID), r.Reason))
			}
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}

// Of finds the pin that the row belongs to, nil for none.
func Of(pins []model.Pin, t model.Topology) *model.Pin {
	for i := range pins {
		if pins[i].DeploymentID == t.DeploymentID && pins[i].In(t.RegionID) != nil {
			return &pins[i]
		}
	}
	return nil
}

// ChangedBelow returns the generation of the region's route that the layer below made last. 0: the newest generation.
func ChangedBelow(pins []model.Pin, region string) (generation int64) {
	for _, p := range pins {
		if r := p.In(region); r != nil {
			generation = max(generation, r.Below)
		}
	}
	return generation
}

// HasHosts reports whether the region keeps the app's hosts for the row: for a pin that starts or serves.
func HasHosts(pins []model.Pin, t *model.Topology) bool {
	p := Of(pins, *t)
	if p == nil {
		return false
	}
	r := p.In(t.RegionID)
	return isActive(t) && (r.State == starting || r.State == serving)
}
