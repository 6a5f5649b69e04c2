package pins

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// full is all of a region's traffic, in percent.
const full int32 = 100

// Linter checks that a plan keeps to the app's pins. It calls Find for each fault.
type Linter struct {
	Rows

	// Was are the pins before the plan, and Is are the pins after it.
	Was, Is []model.Pin
	// Changed are the rows that the plan changes, and Routes are the routes that it changes.
	Changed []model.Topology
	Routes  []model.Route
	Find    func(region, format string, args ...any)
}

// Lint finds forbidden changes of pinned rows, and regions whose shares do not add up. rows are all rows of the app
// before the plan.
func (l *Linter) Lint(rows []model.Topology) {
	after := slices.Clone(rows)
	var regions []string
	for _, t := range l.Changed {
		if i := slices.IndexFunc(after, func(x model.Topology) bool { return x.DeploymentID == t.DeploymentID && x.RegionID == t.RegionID }); i >= 0 {
			after[i] = t
		} else {
			after = append(after, t)
		}
		regions = append(regions, t.RegionID)
		if Of(l.Was, t) != nil {
			l.lintRow(t)
		}
	}
	slices.SortFunc(after, func(a, b model.Topology) int { return cmp.Compare(a.DeploymentID, b.DeploymentID) })
	slices.Sort(regions)
	for _, region := range slices.Compact(regions) {
		l.lintShares(after, region)
	}
}

// lintRow checks one changed row against its pin.
func (l *Linter) lintRow(t model.Topology) {
	var weight int32
	var r model.PinRegion
	if p := Of(l.Is, t); p != nil {
		weight, r = p.Weight, *p.In(t.RegionID)
	}
	was := l.Before(t.DeploymentID, t.RegionID)
	stays, version := r.State == starting || r.State == serving, l.Version(t.DeploymentID)
	switch {
	case t.Weight != 0 && (r.State != serving || t.Weight != weight):
		l.Find(t.RegionID, "%s gets %d %% of the traffic, but is pinned at %d %%", version, t.Weight, weight)
	case t.Weight != was.Weight && !slices.ContainsFunc(l.Routes, func(x model.Route) bool { return x.RegionID == t.RegionID }):
		l.Find(t.RegionID, "the weight of %s changes, but the route does not", version)
	case isActive(&was) && !isActive(&t) && stays:
		l.Find(t.RegionID, "%s is pinned, but is told to stop", version)
	case isActive(&was) && !isActive(&t) && (was.Weight != 0 || !l.Acknowledged(t.RegionID)):
		l.Find(t.RegionID, "%s is told to stop before the route without it is acknowledged", version)
	case isActive(&t) && stays && t.Replicas != was.Replicas && t.Replicas != r.Replicas:
		l.Find(t.RegionID, "%s is told to run %d replicas, but is pinned with %d", version, t.Replicas, r.Replicas)
	}
}

// lintShares checks the shares of the region: pins leave some traffic, and all shares add up to the whole or to nothing.
func (l *Linter) lintShares(after []model.Topology, region string) {
	var targets []model.RouteTarget
	var pinned, rest int32
	for _, t := range after {
		if t.RegionID != region || t.Weight == 0 {
			continue
		}
		target := model.RouteTarget{DeploymentID: t.DeploymentID, Weight: t.Weight, Pinned: Of(l.Was, t) != nil}
		if target.Pinned {
			pinned += t.Weight
		} else {
			rest += t.Weight
		}
		targets = append(targets, target)
	}
	if pinned >= full {
		l.Find(region, "pins have %d %% of the traffic", pinned)
	}
	if rest != full {
		return // no other version serves, or a rollout is moving the other traffic
	}
	var sum int32
	for _, s := range model.Shares(targets) {
		sum += s.Weight
	}
	if sum != full && sum != full*full {
		l.Find(region, "shares add up to %d", sum)
	}
}
