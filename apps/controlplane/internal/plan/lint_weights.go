package plan

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
)

// liveWeight checks the weights of a region against the live version there. On the way back, the version that
// leaves gets no traffic. A pause takes no traffic from the live version.
func (l *linter) liveWeight(region string) {
	live := rowKey{l.olderIn(region), region}
	was, had := l.before[live]
	now := l.after[live]
	newer := l.newerVersion()
	_, st := progressIn(l.progress, region)
	if !had || newer == nil || st == nil || !now.Assigned() || was.Transferred || now.Transferred || min(l.sideOf(&was).Serving, now.Replicas) == 0 {
		return
	}
	back := l.progress.Back || st.State == regionGoingBack || st.State == regionBack
	if other := l.after[rowKey{newer.ID, region}]; back && other.DeploymentID != live.deployment && other.Weight > 0 && now.Weight < strategy.Full {
		l.addFindingf(region, "%s goes back and keeps %d %% of the traffic, while %s serves", l.versionOf(newer.ID), other.Weight, l.versionOf(live.deployment))
	}
	if l.progress.PausedAt != 0 && !back && now.Weight < was.Weight {
		l.addFindingf(region, "%s serves and loses traffic in a pause, from %d %% to %d %%", l.versionOf(live.deployment), was.Weight, now.Weight)
	}
}
