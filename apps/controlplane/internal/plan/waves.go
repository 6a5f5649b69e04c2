package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// layOut sets the wave of each region, and the size to which the region moves.
func (s *stager) layOut(d *model.Deployment) {
	c := s.progress
	c.Sizes = map[string]int32{}
	var left []string
	for _, n := range d.Spec.GetRegions() {
		id := s.in.RegionIDs[n]
		left = append(left, id)
		c.Sizes[id] = regionSize(c, id)
	}
	for i, w := range wavesOf(c.Policy) {
		var taken []string
		taken, left = s.take(w, left)
		s.addWave(w, i, taken)
	}
	if len(left) > 0 {
		// A label may have changed after the policy was checked.
		all := wavesOf(c.Policy)
		s.addWave(all[len(all)-1], len(all), left)
	}
	s.p.moveTo(d, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_DEPLOYING)
	var parts []string
	for _, w := range c.Waves {
		var names []string
		for _, r := range w.Regions {
			names = append(names, s.regionName(r.RegionID))
		}
		parts = append(parts, fmt.Sprintf("%s (%s)", w.Name, strings.Join(names, ", ")))
	}
	var empty strings.Builder
	gates := EmptyGates(c)
	for _, i := range slices.Sorted(maps.Keys(gates)) {
		empty.WriteString("; " + gates[i])
	}
	s.log("RolloutBegun", fmt.Sprintf("%s, by waves: %s; %s stays live until all are done%s",
		strategy.Describe(c.Policy), strings.Join(parts, ", "), s.versionOf(s.app.LiveDeploymentID), empty.String()), d, "")
}

// EmptyGates returns a sentence for each wave with an approval that takes no region, so that its approval is not needed.
// Keys are indexes of waves in the policy. The progress must have begun.
func EmptyGates(c *model.Progress) map[int]string {
	out := map[int]string{}
	for i, w := range c.Policy.GetWaves() {
		if w.GetApproval() != nil && !slices.ContainsFunc(c.Waves, func(of model.WaveProgress) bool { return of.Policy == i }) {
			out[i] = fmt.Sprintf("wave %s takes no region, so no approval is needed at its end", waveName(w, i))
		}
	}
	return out
}

// wavesOf returns the waves of the policy, or the default one.
func wavesOf(policy *windlassv1.RolloutPolicy) []*windlassv1.Wave {
	if len(policy.GetWaves()) > 0 {
		return policy.GetWaves()
	}
	return []*windlassv1.Wave{{}}
}

// sizesIn returns the wanted replicas of the live version and of the new one in the region.
func sizesIn(c *model.Progress, region string) strategy.Sizes {
	return strategy.Sizes{Old: c.OldSizes[region], New: c.Sizes[region]}
}

// regionBounds returns how many replicas a region of that size may have above the size and below it.
func regionBounds(c *model.Progress, region string, size int32) (surge, unavailable int32) {
	return strategy.Of(c.Policy).Bounds(c.Policy, size, sizesIn(c, region))
}

// oldBounds returns how many replicas must serve in the region, and how many may exist, until the new version has
// proven itself there. Both follow from the live version's size. They are 0 unless the new version has at least one
// replica and fewer than the live version. If the live version were reduced to that size at once, too few replicas would
// be left for its traffic if the new version fails.
func oldBounds(c *model.Progress, region string) (floor, ceiling int32) {
	of := sizesIn(c, region)
	if of.New == 0 || of.Old <= of.New {
		return 0, 0
	}
	return strategy.Of(c.Policy).OldBounds(c.Policy, of)
}

// RunsBeside reports whether the new version may start its own instances in the region while
// instances of the live version still run there.
func RunsBeside(c *model.Progress, region string) bool {
	surge, _ := regionBounds(c, region, max(regionSize(c, region), c.OldSizes[region]))
	return c.OldSizes[region] > 0 && surge > 0
}

// retentionOf returns how long the previously live version is kept at full size, ms.
func retentionOf(policy *windlassv1.RolloutPolicy) int64 {
	return policy.GetRetain().AsDuration().Milliseconds()
}

// take returns the regions that the wave takes from left, and the remaining regions.
func (f *facts) take(w *windlassv1.Wave, left []string) (taken, rest []string) {
	for _, id := range left {
		if TakesRegion(w, f.regions[id]) {
			taken = append(taken, id)
		} else {
			rest = append(rest, id)
		}
	}
	// The regions are in the order in which the wave names them.
	slices.SortStableFunc(taken, func(a, b string) int {
		return cmp.Compare(slices.Index(w.GetRegions(), f.regionName(a)), slices.Index(w.GetRegions(), f.regionName(b)))
	})
	return taken, rest
}

// TakesRegion reports whether the wave takes the region if no earlier wave takes it.
func TakesRegion(w *windlassv1.Wave, r model.Region) bool {
	if len(w.GetRegions()) == 0 && len(w.GetLabels()) == 0 {
		return true
	}
	if slices.Contains(w.GetRegions(), r.Name) {
		return true
	}
	for k, v := range w.GetLabels() {
		if r.Labels[k] != v {
			return false
		}
	}
	return len(w.GetLabels()) > 0
}

// waveName returns the name of the wave, by default its number.
func waveName(w *windlassv1.Wave, i int) string { return cmp.Or(w.GetName(), fmt.Sprint(i+1)) }

func (s *stager) addWave(w *windlassv1.Wave, i int, regions []string) {
	if len(regions) == 0 {
		return
	}
	wave := model.WaveProgress{Name: waveName(w, i), Policy: min(i, len(wavesOf(s.progress.Policy))-1), State: waveWaiting}
	for _, id := range regions {
		wave.Regions = append(wave.Regions, model.RegionProgress{RegionID: id, State: regionWaiting, Since: s.now})
	}
	s.progress.Waves = append(s.progress.Waves, wave)
}

func wavePolicy(c *model.Progress, w model.WaveProgress) *windlassv1.Wave {
	all := wavesOf(c.Policy)
	return all[min(w.Policy, len(all)-1)]
}

func (f *facts) regionName(id string) string {
	return f.regions[id].ShownName()
}

func (f *facts) regionNames(w *model.WaveProgress) string {
	var names []string
	for _, r := range w.Regions {
		names = append(names, f.regionName(r.RegionID))
	}
	return strings.Join(names, ", ")
}
