package plan

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// lintGates checks that no region leaves a step that needs a promotion without one, and that the rollout leaves no step or
// wave with a shut gate. Only a region whose old version has no replicas begins after a step.
func (l *linter) lintGates(live bool) {
	c := l.in.RolloutState.Progress
	if l.progress.Back {
		return
	}
	for i, was := range c.Waves {
		w := &l.progress.Waves[i]
		l.leavesWave(i, live)
		for j, before := range was.Regions {
			st := &w.Regions[j]
			switch {
			case isForward(before.State):
			case before.State == regionSkipped && before.HalfWay:
				before.StoppedAt = before.StoppedBefore // the region continues with its earlier step
			default:
				older := l.rowIn(l.olderIn(st.RegionID), st.RegionID)
				if older == nil || !isRowActive(older) || c.OldSizes[st.RegionID] == 0 {
					continue
				}
				before = model.RegionProgress{}
			}
			for n := before.Step; n < st.Step; n++ {
				l.leavesStep(before, st.RegionID, n)
			}
		}
	}
}

// leavesStep checks that a region left a step only with the approvals and the promotion that the step
// needs. before is the region's earlier state.
func (l *linter) leavesStep(before model.RegionProgress, region string, n int) {
	c := l.in.RolloutState.Progress
	at := stepsOf(c.Policy)[n]
	if before.StoppedAt == 0 || before.Step != n {
		before.PromotedBy, before.Approvals = "", nil // they were given for another step
	}
	if Shut(c, at.Approval, before.Approvals) {
		l.addFindingf(region, "step %d is over, and needs %s", n+1, Missing(c, at.Approval, before.Approvals))
	}
	if _, person := wait(at, c, before); person && before.PromotedBy == "" {
		l.addFindingf(region, "step %d is over without a promotion", n+1)
	}
}

// leavesWave checks that a rollout left a wave only with the approvals that the wave needs. The rollout has left the
// wave if the wave is done, or if the next wave begins after one of this wave's regions has moved.
func (l *linter) leavesWave(i int, live bool) {
	c := l.in.RolloutState.Progress
	was, w := c.Waves[i], l.progress.Waves[i]
	gate := wavePolicy(c, was).GetApproval()
	moved := slices.ContainsFunc(was.Regions, func(st model.RegionProgress) bool { return st.State == regionMoved })
	next := i+1 < len(c.Waves) && c.Waves[i+1].State == waveWaiting && l.progress.Waves[i+1].State != waveWaiting
	over := was.State != waveDone && w.State == waveDone || w.State != waveDone && moved && (next || live)
	if over && Shut(c, gate, was.Approvals) {
		l.addFindingf("wave "+w.Name, "it is over, and needs %s", Missing(c, gate, was.Approvals))
	}
}
