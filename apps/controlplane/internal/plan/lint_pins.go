package plan

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// apartOf is what the layer below the pins was given, and what it made of that.
func apartOf(in Input, out Output) (Input, Output) {
	below, _ := in.apart()
	out.Topology = slices.DeleteFunc(slices.Clone(out.Topology), func(t model.Topology) bool { return pinOf(in.Pins, t) != nil })
	return below, out
}

// lintPins holds what is told of the pinned rows against the pins.
func lintPins(in Input, out Output) []string {
	l := &linter{view: newPlanner(in, 0).main(), after: map[rowKey]model.Topology{}}
	pins := slices.Clone(in.Pins)
	for _, p := range out.Pins {
		if i := slices.IndexFunc(pins, func(was model.Pin) bool { return was.DeploymentID == p.DeploymentID }); i >= 0 {
			pins[i] = p
		}
	}
	regions := map[string]bool{}
	for _, t := range in.Topology {
		l.after[rowKey{t.DeploymentID, t.RegionID}] = t
	}
	for _, t := range out.Topology {
		l.after[rowKey{t.DeploymentID, t.RegionID}] = t
		regions[t.RegionID] = true
		if pinOf(in.Pins, t) == nil {
			continue
		}
		l.pinned(pins, out, t)
	}
	for _, region := range sortedKeys(regions) {
		l.shares(in.Pins, region)
	}
	return l.findings
}

// pinned holds one row that changes against its pin.
func (l *linter) pinned(pins []model.Pin, out Output, t model.Topology) {
	var weight int32
	var r model.PinRegion
	if p := pinOf(pins, t); p != nil {
		weight, r = p.Weight, *p.In(t.RegionID)
	}
	was := l.before[rowKey{t.DeploymentID, t.RegionID}]
	stays, version := r.State == pinStarting || r.State == pinServing, l.versionOf(t.DeploymentID)
	switch {
	case t.Weight != 0 && (r.State != pinServing || t.Weight != weight):
		l.findf(t.RegionID, "%s gets %d %% of the traffic, and is pinned at %d %%", version, t.Weight, weight)
	case t.Weight != was.Weight && !slices.ContainsFunc(out.Routes, func(x model.Route) bool { return x.RegionID == t.RegionID }):
		l.findf(t.RegionID, "the weight of %s changes and the route does not", version)
	case active(&was) && !active(&t) && stays:
		l.findf(t.RegionID, "%s is pinned and is told to stop", version)
	case active(&was) && !active(&t) && (was.Weight != 0 || !l.acknowledged(t.RegionID)):
		l.findf(t.RegionID, "%s is told to stop before the route without it is acknowledged", version)
	case active(&t) && stays && t.Replicas != was.Replicas && t.Replicas != r.Replicas:
		l.findf(t.RegionID, "%s is told to run %d replicas, and is pinned with %d", version, t.Replicas, r.Replicas)
	}
}

// shares of the region: pins leave something, and all are the whole or nothing.
func (l *linter) shares(pins []model.Pin, region string) {
	var targets []model.RouteTarget
	var pinned, rest int32
	for _, key := range sortedRows(l.after) {
		t := l.after[key]
		if key.region != region || t.Weight == 0 {
			continue
		}
		target := model.RouteTarget{DeploymentID: key.deployment, Weight: t.Weight, Pinned: pinOf(pins, t) != nil}
		if target.Pinned {
			pinned += t.Weight
		} else {
			rest += t.Weight
		}
		targets = append(targets, target)
	}
	if pinned >= fullWeight {
		l.findf(region, "pins have %d %% of the traffic", pinned)
	}
	if rest != fullWeight {
		return // nothing else serves, or what does is on its way
	}
	var sum int32
	for _, s := range model.Shares(targets) {
		sum += s.Weight
	}
	if sum != fullWeight && sum != fullWeight*fullWeight {
		l.findf(region, "shares add up to %d", sum)
	}
}
