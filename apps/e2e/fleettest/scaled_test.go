package fleettest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// The replicas of the scaled app follow its load, which differs between regions and changes every 20 s. The
// app is never deleted.
const (
	scaledApp     = 4
	scaledName    = "scaled-0"
	maxScaled     = 4
	cpuMillicores = 500
	cpuTarget     = 50
)

func scalingPolicy() *windlassv1.ScalingPolicy {
	second := func(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Second) }
	return &windlassv1.ScalingPolicy{
		Max: maxScaled, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_CPU, Target: fmt.Sprint(cpuTarget)}},
		Up:   &windlassv1.ScalingPace{Window: second(5), Step: "100%", Every: second(5)},
		Down: &windlassv1.ScalingPace{Window: second(20), Step: "1", Every: second(5)},
	}
}

// replicasForLoad returns how many replicas the load of the scaled app needs in the region. After the faults the
// number stays the same.
func (w *fleet) replicasForLoad(region string) int {
	at := time.Duration(0)
	if w.faultsOn.Load() {
		at = time.Since(w.check.history.begin) / (20 * time.Second)
	}
	x := w.seed ^ uint64(at)<<32
	for _, c := range []byte(region) {
		x = splitmix(x ^ uint64(c))
	}
	return 1 + int(x%maxScaled)
}

// cpu returns the load of an app in the region, in millicores.
func (w *fleet) cpu(region, app string) (millicores float64, ok bool) {
	return float64(w.replicasForLoad(region)) * cpuMillicores * cpuTarget / 100, app == scaledName
}

// decided checks each decision about the scaled app against the decision before it. A decision must begin
// with the number of replicas that the decision before it wrote. Otherwise another writer changed the number.
func (c *checker) decided(wrote controlplane.MemoryWrite) {
	for _, d := range wrote.Decisions {
		p := place{d.RegionID, d.AppID}
		spot := place{region: c.rows.names[d.RegionID]}
		from, to := d.Decision.GetReplicas(), d.Decision.GetWanted()
		c.history.add(event{app: scaledName, part: "scaler", region: spot.region, text: fmt.Sprintf("%d replicas instead of %d: %s", to, from, d.Decision.GetWhy())})
		if before, ok := c.decisions[p]; ok && from != before {
			c.violateLockedf("another writer than the scaler changed replicas", scaledName, spot, "a decision wrote %d, and the next one found %d", before, from)
		}
		if to < 1 || to > maxScaled {
			c.violateLockedf("a decision is out of bounds", scaledName, spot, "%d replicas", to)
		}
		if c.decisions[p] = to; to != from {
			c.sawScaling++
			if strings.Contains(d.Decision.GetWhy(), "by itself") {
				c.sawRaises++
			}
		}
	}
}

// agreeScaled compares the replicas of the scaled app with its load and the last decisions.
func (c *checker) agreeScaled() disagreement {
	for _, p := range slices.SortedFunc(maps.Keys(c.rows.topology), byPlace) {
		t := c.rows.topology[p]
		a := c.rows.apps[t.app]
		if a.name != scaledName || a.live != p.deployment {
			continue
		}
		spot := place{c.rows.names[p.region], p.deployment}
		want := c.w.replicasForLoad(spot.region)
		last, decided := c.decisions[place{p.region, t.app}]
		switch {
		case int(t.replicas) != want:
			return disagreement{"replicas do not follow the load", a.name, spot, fmt.Sprintf("%d are wanted, and the load needs %d", t.replicas, want)}
		case decided && last != t.replicas:
			return disagreement{"another writer than the scaler changed replicas", a.name, spot, fmt.Sprintf("the last decision was %d, wanted are %d", last, t.replicas)}
		}
	}
	return disagreement{}
}
