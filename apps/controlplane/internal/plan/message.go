package plan

import (
	"fmt"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// stageMessage describes in one line where the rollout is, for the app's status.
func (v *view) stageMessage() string {
	c, version := v.progress, v.versionOf(v.rollout.DeploymentID)
	if c.Back {
		return fmt.Sprintf("%s goes back to %s: %s", version, v.versionOf(v.app.LiveDeploymentID), c.Message)
	}
	if c.PausedAt != 0 {
		text := fmt.Sprintf("%s is paused by %s", version, c.PausedBy)
		if c.PausedWhy != "" {
			text += ": " + c.PausedWhy
		}
		return text
	}
	for i, w := range c.Waves {
		if w.State == waveDone || allSkipped(c, &w) && i < len(c.Waves)-1 && c.Waves[i+1].State != waveWaiting {
			continue
		}
		at := fmt.Sprintf("%s: wave %s, %d of %d", version, w.Name, i+1, len(c.Waves))
		if w.State == waveBaking {
			for _, r := range w.Regions {
				if emptyBake(c, &w, r, v.now) {
					return fmt.Sprintf("%s, is held in %s, where no replicas run that could be measured: scale it up, or skip the bake", at, v.regionName(r.RegionID))
				}
				if check := InconclusiveCheck(c, &w, &r, v.now); check != nil {
					return fmt.Sprintf("%s, is held in %s by %s: %s", at, v.regionName(r.RegionID), check.Name, checkMessage(check))
				}
			}
			if missing := Missing(c, WaveGate(c, w), w.Approvals); missing != "" && (w.SkippedBy != "" || c.FullBy != "" || v.now >= w.BakingSince+BakeTime(c, w)) {
				return at + ", waits for " + missing
			}
			return at + ", is baking"
		}
		var parts []string
		for _, r := range w.Regions {
			l := v.regionPlan(r.RegionID)
			switch {
			case r.State == regionMoved:
			case r.State == regionSkipped:
				parts = append(parts, v.regionName(r.RegionID)+" is left out for now")
			case v.in.Closed[r.RegionID]:
				parts = append(parts, v.regionName(r.RegionID)+" "+closedText)
			case l.lost:
				parts = append(parts, v.regionName(r.RegionID)+" "+v.absenceText(r.RegionID))
			case r.State == regionRolling && r.NoRoomSince != 0:
				_, why := v.placeOf(l.row).Why()
				parts = append(parts, fmt.Sprintf("%s: %swaits for room, %s: %s", v.regionName(r.RegionID), stepMessage(c, &w, r, v.now), model.ReadyText(l.isPooled(), l.To.Serving, l.Size), why))
			case r.State == regionRolling:
				parts = append(parts, fmt.Sprintf("%s: %s%s", v.regionName(r.RegionID), stepMessage(c, &w, r, v.now), l.replicasReady()))
			}
		}
		return at + ": " + strings.Join(parts, "; ")
	}
	return version + ": about to start"
}

// replicasReady returns how many replicas of the region's version are ready, for people.
func (l *regionPlan) replicasReady() string {
	text := model.ReadyText(l.isPooled(), l.To.Serving-l.To.Outdated, l.Size)
	if l.To.Outdated > 0 {
		text += ", " + l.outdatedText()
	}
	return text
}

// isPooled reports whether the region's version is a pool, whose replicas are counted in percent.
func (l *regionPlan) isPooled() bool { return l.to != nil && model.IsPooled(l.to.Spec) }
