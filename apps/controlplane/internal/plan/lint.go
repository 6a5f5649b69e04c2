package plan

import (
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Lint checks a plan against the rules of every plan and of staged rollouts, and returns the broken rules. A finding is
// a bug of this package. The plan is carried out nevertheless, because its input no longer exists when a person looks.
func Lint(in Input, out Output) (findings []string) {
	findings = append(lintWorkloads(in, out), lintClosed(in, out)...)
	if len(in.Pins) == 0 || in.App.DeletingSince != 0 {
		return append(findings, lintMoves(in, out)...)
	}
	findings = append(findings, lintMoves(apartOf(in, out))...)
	return append(findings, lintPins(in, out)...)
}

func lintMoves(in Input, out Output) (findings []string) {
	if in.RolloutState == nil || in.App.DeletingSince != 0 {
		return nil
	}
	if in.RolloutState.Progress.Retained() != "" {
		findings = lintRetained(in, out)
	}
	active := in.Rollout != nil && in.RolloutState.Progress.Active(in.Rollout.ID)
	if !active && (in.RolloutState.Progress == nil || len(in.RolloutState.Progress.Lagging) == 0) {
		return findings
	}
	l := &linter{view: mainView(newFacts(in, 0)), progress: in.RolloutState.Progress, after: map[rowKey]model.Topology{}, findings: findings}
	if out.RolloutState != nil {
		l.progress = out.RolloutState.Progress
	}
	regions := map[string]bool{}
	for _, t := range in.Topology {
		l.after[rowKey{t.DeploymentID, t.RegionID}] = t
	}
	for _, t := range out.Topology {
		l.after[rowKey{t.DeploymentID, t.RegionID}] = t
		regions[t.RegionID] = true
	}
	routed := map[string]bool{}
	for _, r := range out.Routes {
		routed[r.RegionID] = true
	}
	if !active {
		l.laggingRegions(regions, routed)
		return l.findings
	}
	for _, region := range sortedKeys(regions) {
		// The plan that ends a rollout may begin to catch up a region that the rollout did not have.
		if b := l.progress.LaggingIn(region); b != nil && l.progress.DoneAt != 0 && !l.hasSize(region) {
			l.laggingRegion(b, b.Progress, regions, routed)
			continue
		}
		l.lintRegion(region, routed[region])
	}
	l.lintAnalysis(in.RolloutState.Progress)
	l.lintGates(out.App != nil && out.App.LiveDeploymentID != in.App.LiveDeploymentID)
	return l.findings
}

// laggingRegions checks the changes in each region that catches up against the progress of that region.
func (l *linter) laggingRegions(regions, routed map[string]bool) {
	for i := range l.view.progress.Lagging {
		b := &l.view.progress.Lagging[i]
		after := b.Progress
		if a := l.progress.LaggingIn(b.RegionID); a != nil {
			after = a.Progress
		}
		l.laggingRegion(b, after, regions, routed)
	}
}

// laggingRegion checks the changes in a region that catches up against its own progress, before and after.
func (l *linter) laggingRegion(b *model.LaggingRegion, after *model.Progress, regions, routed map[string]bool) {
	main := *l
	defer func() { l.view, l.progress = main.view, main.progress }()
	l.view, l.progress = laggingView(main.facts, b), after
	if regions[b.RegionID] {
		l.lintRegion(b.RegionID, routed[b.RegionID])
	}
	l.lintAnalysis(b.Progress)
}

// hasSize reports whether either version of the rollout has a size in the region.
func (l *linter) hasSize(region string) bool {
	_, old := l.progress.OldSizes[region]
	_, newer := l.progress.Sizes[region]
	return old || newer
}

// lintRetained checks that a retained version stays as it is until its retention ends.
func lintRetained(in Input, out Output) (findings []string) {
	if out.RolloutState != nil && out.RolloutState.Progress.Retained() == "" {
		return nil
	}
	for _, t := range out.Topology {
		if t.DeploymentID != in.RolloutState.Progress.RetainedID || in.RolloutState.Progress.LaggingIn(t.RegionID) != nil {
			continue
		}
		i := slices.IndexFunc(in.Topology, func(was model.Topology) bool {
			return was.DeploymentID == t.DeploymentID && was.RegionID == t.RegionID
		})
		if i < 0 || t.Replicas != in.Topology[i].Replicas || isRowActive(&t) != isRowActive(&in.Topology[i]) || t.Weight > 0 {
			findings = append(findings, fmt.Sprintf("%s: the retained version changes to %d replicas and %d %%", t.RegionID, t.Replicas, t.Weight))
		}
	}
	return findings
}

type linter struct {
	*view
	// progress is the progress after the plan. The view has the progress before the plan.
	progress *model.Progress
	after    map[rowKey]model.Topology
	findings []string
}

func (l *linter) addFindingf(region, format string, args ...any) {
	l.findings = append(l.findings, region+": "+fmt.Sprintf(format, args...))
}

// boundsOf returns the widest bounds that either version's size allows.
func (l *linter) boundsOf(region string) (floor, ceiling int32) {
	floor = -1
	_, st := progressIn(l.progress, region)
	forward := st != nil && !l.progress.Back && leadsTarget(*st)
	for _, sizes := range []map[string]int32{l.progress.Sizes, l.progress.OldSizes} {
		size, ok := sizes[region]
		if !ok {
			floor = 0 // only one version should be there, so no version takes the place of the other
			continue
		}
		surge, unavailable := regionBounds(l.progress, region, size)
		if l.in.Closed[region] && !forward {
			unavailable = max(1, unavailable) // a closed region goes back within the replicas of the live version
		}
		for _, t := range l.rows {
			if t.RegionID == region && isRowActive(t) {
				unavailable = max(unavailable, poolYield(l.facts, l.progress.Policy, t)) // the row may have lacked room at some moment
			}
		}
		ceiling = max(ceiling, size+surge)
		if low := max(0, size-unavailable); floor < 0 || low < floor {
			floor = low
		}
	}
	if !l.isProven(region) {
		old, most := oldBounds(l.progress, region)
		if l.in.Closed[region] && !forward {
			old = min(old, l.progress.OldSizes[region]-1) // as above, by the live version's size
		}
		floor, ceiling = max(floor, old), max(ceiling, most)
	}
	return floor, ceiling
}

// isProven reports whether the new version has served in the region with all of its replicas, or the region's wave is
// done. It is false while replicas that the version took over must still be replaced.
func (l *linter) isProven(region string) bool {
	w, st := progressIn(l.progress, region)
	if st == nil || l.progress.Back || !isForward(st.State) {
		return false
	}
	t, size := l.rowIn(l.newerVersion().ID, region), l.progress.Sizes[region]
	if t == nil || w.State == waveDone {
		return t != nil
	}
	if l.hasTaken(t) {
		return l.regionPlan(region).To.Outdated == 0
	}
	_, unavailable := regionBounds(l.progress, region, size)
	return t.Replicas >= size && l.sideOf(t).Ready >= size-unavailable
}

func (l *linter) isZero(region string) bool {
	old, hadOld := l.progress.OldSizes[region]
	size, had := l.progress.Sizes[region]
	return hadOld && old == 0 || had && size == 0
}

func (l *linter) lintRegion(region string, routed bool) {
	floor, ceiling := l.boundsOf(region)
	var could, was, serves, served, weight int32
	shrinks := false
	transferred := l.transferredSides(region)
	for _, key := range sortedRows(l.after) {
		t := l.after[key]
		if key.region != region {
			continue
		}
		before, had := l.before[key]
		weight += t.Weight
		if t.Weight != before.Weight && !routed {
			l.addFindingf(region, "the weight of %s changes, but the route does not", l.versionOf(key.deployment))
		}
		if t.Transferred {
			continue // its instances count for the row that has them now
		}
		var s strategy.Side
		if had {
			s = l.sideOf(&before)
		}
		s.Existing = max(s.Existing, transferred[t.WorkloadKey()].Existing)
		if t.Assigned() {
			s.Ready = max(s.Ready, transferred[t.WorkloadKey()].Ready)
		}
		if before.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
			s.Existing = l.reportedReplicas(&before) // the region confirmed the row once, possibly in another epoch
		}
		assigned := t.Replicas
		if !isRowActive(&t) {
			assigned = 0
		}
		could += max(assigned, s.Existing)
		was += s.Existing
		served += s.Ready
		serves += min(s.Ready, assigned)
		if assigned < s.Ready {
			shrinks = true
			// No version must serve in a region in which all versions are scaled to zero.
			if assigned == 0 && before.Weight != 0 && !l.isZero(region) {
				l.addFindingf(region, "%s serves %d %% of the traffic and is told to stop", l.versionOf(key.deployment), before.Weight)
			}
			if assigned == 0 && !l.isZero(region) && before.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED && !l.hasAcknowledged(region) {
				l.addFindingf(region, "%s is told to stop before the route without it is acknowledged", l.versionOf(key.deployment))
			}
		}
	}
	if could > was && could > ceiling {
		l.addFindingf(region, "%d replicas may exist, of at most %d", could, ceiling)
	}
	if _, st := progressIn(l.progress, region); st != nil && st.Emptied {
		floor = 0 // people scaled the region to zero
	}
	if shrinks && floor >= 0 && serves < floor {
		l.addFindingf(region, "%d of %d replicas are left to serve, and at least %d must serve", serves, served, floor)
	}
	if weight != strategy.Full && weight != 0 {
		l.addFindingf(region, "weights add up to %d, and not to %d or 0", weight, strategy.Full)
	}
	l.stop(region)
	l.liveWeight(region)
}

// transferredSides returns, by workload, how many replicas of transferred workloads the region may still run, and how many
// of these are ready. The replicas of a workload that this plan transfers go on serving under its successor.
func (l *linter) transferredSides(region string) map[string]strategy.Side {
	out := map[string]strategy.Side{}
	for key, t := range l.after {
		if before, had := l.before[key]; had && key.region == region && t.Transferred {
			h, s := out[t.WorkloadKey()], l.sideOf(&before)
			h.Existing, h.Ready = max(h.Existing, s.Existing), max(h.Ready, s.Ready)
			out[t.WorkloadKey()] = h
		}
	}
	return out
}

// stop checks the new version against the step that the region is at.
func (l *linter) stop(region string) {
	_, st := progressIn(l.progress, region)
	if st == nil || l.progress.Back || !isForward(st.State) {
		return
	}
	stop := stopOf(l.progress, *st, l.progress.Sizes[region])
	if st.Emptied {
		stop = &strategy.Stop{}
	}
	if stop == nil {
		return
	}
	key := rowKey{l.newerVersion().ID, region}
	before, after := l.before[key], l.after[key]
	if st.Emptied && l.progress.PausedAt == 0 && after.Weight > before.Weight {
		l.addFindingf(region, "%s gets %d %% of the traffic, and stands still with no replicas", l.versionOf(key.deployment), after.Weight)
	}
	if l.keepsWorkloads(region) {
		return // the version has the whole region at any step
	}
	if after.Replicas > before.Replicas && after.Replicas > stop.Replicas {
		l.addFindingf(region, "%s is told to run %d replicas, and its step is %d", l.versionOf(key.deployment), after.Replicas, stop.Replicas)
	}
	live := rowKey{l.olderIn(region), region}
	was, now := l.before[live], l.after[live]
	serves := isRowActive(&now) && now.Replicas > 0 && l.sideOf(&was).Ready > 0
	// Without room for both versions, or where people scaled the region to zero, the old version stops.
	_, ceiling := l.boundsOf(region)
	stays := l.progress.OldSizes[region] > 0 && ceiling > stop.Replicas
	if serves && stays && !stop.Share && after.Weight > before.Weight && after.Weight > stop.Weight {
		l.addFindingf(region, "%s gets %d %% of the traffic, and its step is %d %%", l.versionOf(key.deployment), after.Weight, stop.Weight)
	}
}

// keepsWorkloads reports whether the new version has taken over instances in the region without replacing them.
func (l *linter) keepsWorkloads(region string) bool {
	t := l.after[rowKey{l.newerVersion().ID, region}]
	for _, key := range sortedRows(l.after) {
		if o := l.after[key]; hasOf(&t, &o) && l.madeAlike(l.newerVersion(), &o) {
			return true
		}
	}
	return false
}

// lintAnalysis checks the progress against the measurements. A step or a bake ends only after the last measurement of every
// check passed, or because a person ended it.
func (l *linter) lintAnalysis(before *model.Progress) {
	if l.progress.Back || l.progress.FullBy != "" {
		return
	}
	for i, was := range before.Waves {
		w := &l.progress.Waves[i]
		baked := was.State == waveBaking && w.State == waveDone && was.SkippedBy == ""
		for j, before := range was.Regions {
			st := &w.Regions[j]
			if l.progress.CatchesUp && l.progress.Sizes[st.RegionID] == 0 {
				continue
			}
			if before.StoppedAt != 0 && st.Step > before.Step && before.PromotedBy == "" && !l.hasShown(before, before.StoppedAt, !l.keepsWorkloads(st.RegionID)) {
				l.addFindingf(st.RegionID, "step %d is over, and its analysis is not", st.Step)
			}
			if baked && BakeTime(l.progress, was) > 0 && !showsNothing(l.progress, before) && !l.hasShown(before, was.BakingSince, false) {
				l.addFindingf(st.RegionID, "the bake of wave %s is over, and its analysis is not", w.Name)
			}
		}
	}
}

// hasShown reports whether every check has passed since that time, by the measurements of this call or by earlier
// ones.
func (l *linter) hasShown(before model.RegionProgress, since int64, compares bool) bool {
	for i, c := range checksOf(l.progress.Policy, compares) {
		passed := false
		check := model.CheckProgress{Name: analysis.Name(c), Since: since}
		if measuredSince(&before, since) {
			check = before.Checks[i]
			passed = check.State == checkPassed
		}
		if m := l.newestMeasurement(before.RegionID, &check); m != nil {
			verdict, _ := analysis.Judge(c, m.Figures, compares)
			passed = verdict == analysis.Passed
		}
		if !passed {
			return false
		}
	}
	return true
}
