package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/windlass/internal/explain"
	"github.com/windlass-run/windlass/pkg/pool"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// These are exit codes of commands that wait, besides 0 and 1. Code 2 is codeWouldNotRun of plan.
const (
	codePatience    = 3
	codeSuperseded  = 4
	codePeople      = 5
	codePaused      = 6
	codeInterrupted = 130
)

// The outcomes are the words of the JSON output for the exit codes.
const (
	outcomeAccepted    = "accepted"
	outcomeUnchanged   = "unchanged"
	outcomeSucceeded   = "succeeded"
	outcomeAborted     = "taken-back" // the word of the JSON output since its first release
	outcomeDeleted     = "deleted"
	outcomeFailed      = "failed"
	outcomePatience    = "under-way"
	outcomeSuperseded  = "superseded"
	outcomePeople      = "waits-for-people"
	outcomePaused      = "paused"
	outcomeInterrupted = "interrupted"
	outcomeStopped     = "stopped"
)

// verdict is the state of a rollout or an app that a command waits for.
type verdict struct {
	// over reports that the command should stop waiting.
	over    bool
	outcome string
	// code and message are the exit code and the text of the error. For success they are 0 and empty.
	code    int
	message string
}

// errorOf returns the error that the command ends with, or nil.
func (v verdict) errorOf() error {
	if v.code == 0 {
		return nil
	}
	return &ExitError{Code: v.code, Message: v.message}
}

// These are the values of --until.
const (
	untilReady     = "ready"
	untilPromotion = "promotion"
)

// judgeRollout returns the verdict on a rollout. It is over when its status is final, when a failure
// paused it, and when it waits for people, unless until is ready.
func judgeRollout(app *windlassv1.App, ro *windlassv1.Rollout, until string, now time.Time) verdict {
	name := app.GetName() + " " + versionText(ro.GetVersion())
	why := inFull(ro.GetReason(), ro.GetMessage())
	p := ro.GetProgress()
	switch ro.GetStatus() {
	case windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED:
		return verdict{over: true, outcome: outcomeSucceeded}
	case windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED:
		return verdict{true, outcomeFailed, 1, fmt.Sprintf("%s failed: %s\n%s", name, why, liveVersionText(app)+hintLine(ro.GetReason()))}
	case windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED:
		return verdict{true, outcomeAborted, 1, fmt.Sprintf("%s was aborted: %s\n%s", name, why, liveVersionText(app))}
	case windlassv1.RolloutStatus_ROLLOUT_STATUS_SUPERSEDED:
		return verdict{true, outcomeSuperseded, codeSuperseded, fmt.Sprintf("%s was superseded: %s\n`windlass rollout status %s` shows what took its place.", name, inFull("", ro.GetMessage()), app.GetName())}
	case windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING, windlassv1.RolloutStatus_ROLLOUT_STATUS_UNSPECIFIED:
	}
	switch {
	case p.GetGoingBack():
		return verdict{}
	case p.GetPaused() && p.GetPausedBy() == pausedByItself:
		return verdict{true, outcomePaused, codePaused, fmt.Sprintf("%s is paused: %s\n"+
			"`windlass rollout retry %[3]s` retries the regions that failed, `windlass rollout abort %[3]s` aborts the rollout.", name, p.GetPausedWhy(), app.GetName())}
	}
	waits := waitsForPeople(app, p, now)
	if ro.GetStartApproval().GetMissing() != "" && ro.GetHold() == nil {
		waits = startText(app, ro)
	}
	switch {
	case waits == "" || until == untilReady:
		return verdict{}
	case until == untilPromotion && !p.GetPaused():
		return verdict{over: true, outcome: outcomePeople, message: name + " " + waits}
	}
	return verdict{true, outcomePeople, codePeople, fmt.Sprintf("%s %s\n`windlass rollout status %s --watch` follows it from there.", name, waits, app.GetName())}
}

// hintLine returns a line that names the explanation of a reason, or "" without an explanation.
func hintLine(reason string) string {
	if hint := explain.Hint(reason); hint != "" {
		return "\n" + hint
	}
	return ""
}

// pausedByItself is the value of paused_by if the control plane paused a rollout because of a failure.
const pausedByItself = "windlass"

// waitsForPeople describes the action of people that a rollout waits for. It returns "" while the
// rollout can still move by itself.
func waitsForPeople(app *windlassv1.App, p *windlassv1.RolloutProgress, now time.Time) string {
	switch {
	case p.GetGoingBack():
		return ""
	case p.GetPaused():
		return pausedText(app, p)
	case movesByItself(p, now):
		return ""
	}
	return gateWaitedAt(app, p, now)
}

// gateWaitedAt describes the approval or promotion that a rollout waits for, and the command that gives it.
func gateWaitedAt(app *windlassv1.App, p *windlassv1.RolloutProgress, now time.Time) string {
	if missing := approvalMissing(p, now); missing != "" {
		return "waits for " + missing + ": windlass rollout approve " + app.GetName()
	}
	if !waitsForPromotion(p) {
		return ""
	}
	text := "waits for promotion: windlass rollout promote " + app.GetName()
	if p.GetPromotionHeld() {
		text += ": an earlier rollout went back, so promotion is no longer automatic"
	}
	return text
}

// startText describes the approvals that the rollout needs before it starts.
func startText(app *windlassv1.App, ro *windlassv1.Rollout) string {
	return "waits for " + ro.GetStartApproval().GetMissing() + " before it starts: windlass rollout approve " + app.GetName()
}

func pausedText(app *windlassv1.App, p *windlassv1.RolloutProgress) string {
	text := "is paused by " + p.GetPausedBy()
	if p.GetPausedWhy() != "" {
		text += " (" + firstLine(p.GetPausedWhy()) + ")"
	}
	if p.GetPausedBy() == pausedByItself {
		return text
	}
	return text + ": windlass rollout resume " + app.GetName()
}

// movesByItself reports whether a region can make progress without people.
func movesByItself(p *windlassv1.RolloutProgress, now time.Time) bool {
	for _, w := range p.GetWaves() {
		if w.GetState() == windlassv1.WaveProgress_STATE_BAKING && now.UnixMilli() < w.GetBakingUntil() {
			return true
		}
		for _, g := range w.GetRegions() {
			switch g.GetState() {
			case windlassv1.RegionProgress_STATE_ROLLING:
				if !g.GetWaitsForPromotion() && (g.GetApproval().GetMissing() == "" || now.UnixMilli() < g.GetStepUntil()) {
					return true
				}
			case windlassv1.RegionProgress_STATE_GOING_BACK:
				return true
			case windlassv1.RegionProgress_STATE_UNSPECIFIED, windlassv1.RegionProgress_STATE_WAITING, windlassv1.RegionProgress_STATE_MOVED,
				windlassv1.RegionProgress_STATE_BACK, windlassv1.RegionProgress_STATE_FAILED, windlassv1.RegionProgress_STATE_SKIPPED:
			}
		}
	}
	return false
}

// waitLines describes what a rollout waits for. The text does not change while it waits, so that the
// caller can print only changes.
func waitLines(app *windlassv1.App, ro *windlassv1.Rollout, now time.Time) (lines []string) {
	p := ro.GetProgress()
	switch {
	case ro == nil || ro.GetFinishedAt() != 0:
		return nil
	case ro.GetHold() != nil:
		return []string{"is " + holdText(ro.GetHold())}
	case ro.GetStartApproval().GetMissing() != "":
		return []string{startText(app, ro)}
	case p.GetGoingBack():
		text := "goes back to " + versionText(ro.GetFromVersion())
		if why := reasonText(ro.GetReason(), ro.GetMessage()); why != "" {
			text += ": " + firstLine(why)
		}
		return []string{text}
	case p.GetPaused():
		return []string{pausedText(app, p)}
	}
	if gate := gateWaitedAt(app, p, now); gate != "" {
		lines = append(lines, gate)
	}
	for _, w := range p.GetWaves() {
		if w.GetState() == windlassv1.WaveProgress_STATE_BAKING && now.UnixMilli() < w.GetBakingUntil() {
			lines = append(lines, "bakes in "+strings.Join(regionNames(w), ", ")+" until "+timeText(w.GetBakingUntil()))
		}
		for _, g := range w.GetRegions() {
			if g.GetState() != windlassv1.RegionProgress_STATE_ROLLING {
				continue
			}
			switch {
			case g.GetWaitsForCapacitySince() != 0:
				lines = append(lines, "waits for room in "+g.GetRegion())
			case g.GetStep() > 0 && now.UnixMilli() < g.GetStepUntil():
				lines = append(lines, fmt.Sprintf("waits at step %d of %d in %s until %s", g.GetStep(), g.GetSteps(), g.GetRegion(), timeText(g.GetStepUntil())))
			}
		}
	}
	if c, region, on := heldCheck(p, now); c != nil {
		lines = append(lines, fmt.Sprintf("is held by %s in %s: %s; `windlass rollout %s %s` goes on without it", c.GetName(), region, firstLine(c.GetMessage()), on, app.GetName()))
	}
	return lines
}

func regionNames(w *windlassv1.WaveProgress) (names []string) {
	for _, g := range w.GetRegions() {
		names = append(names, g.GetRegion())
	}
	return names
}

// behindText names the regions that the rollout left out and that still have to catch up.
func behindText(ro *windlassv1.Rollout) string {
	var names []string
	for _, w := range ro.GetProgress().GetBehind() {
		names = append(names, regionNames(w)...)
	}
	if len(names) == 0 {
		return ""
	}
	return "left out for now, to catch up by itself: " + strings.Join(names, ", ")
}

// judgeSize returns the verdict on scaling one region, or all regions if region is empty. Replicas of all versions
// count. If asked is below 0, any number is right. seen is true once the number was as asked: after that, another
// number supersedes the scaling. The caller keeps seen between calls.
func judgeSize(r *windlassv1.WatchAppResponse, region string, asked int32, seen *bool) verdict {
	all := sizesOf(r)
	if len(all) == 0 {
		return verdict{}
	}
	settled, isAsked := true, true
	for name, size := range all {
		if region != "" && name != region {
			continue
		}
		if asked >= 0 && size.wanted != asked {
			isAsked = false
		}
		if size.ready < size.wanted || size.moving {
			settled = false
		}
	}
	switch {
	case isAsked:
		*seen = true
	case *seen:
		return verdict{true, outcomeSuperseded, codeSuperseded, r.GetApp().GetName() + " was given another number of replicas meanwhile: `windlass history " + r.GetApp().GetName() + "` shows by whom"}
	}
	return verdict{over: isAsked && settled, outcome: outcomeSucceeded}
}

// judgeRole returns the verdict on scaling a role. Only versions that run count. Where the pool is stopped, the number
// is kept, and there is nothing to wait for.
func judgeRole(r *windlassv1.WatchAppResponse, req *windlassv1.ScaleRequest) verdict {
	seen, stopped := false, false
	inFlight := r.GetRollout() != nil && r.GetRollout().GetFinishedAt() == 0
	for _, d := range r.GetDeployments() {
		for _, t := range d.GetRegions() {
			if req.GetRegion() != "" && t.GetRegion() != req.GetRegion() {
				continue
			}
			if t.GetStatus() == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED || t.GetReplicas() == 0 {
				stopped = true
				continue
			}
			for _, role := range t.GetRoles() {
				if role.GetRole() != req.GetRole() {
					continue
				}
				// The counts are known only once the agent has applied the generation with the new number.
				leaving := role.GetReady() > role.GetWanted() && !inFlight
				if seen = true; role.GetReady() < role.GetWanted() || leaving || t.GetAppliedGeneration() < t.GetGeneration() {
					return verdict{}
				}
			}
		}
	}
	if stopped && !seen {
		name := r.GetApp().GetName()
		return verdict{over: true, outcome: outcomeStopped, message: fmt.Sprintf("%s: the pool is stopped in %s, so that no instance runs: `windlass scale %s --replicas %d` starts it",
			name, orAll(req.GetRegion()), name, pool.Whole)}
	}
	return verdict{over: seen, outcome: outcomeSucceeded}
}

// size has the wanted and the ready replicas of a region.
type size struct {
	wanted, ready int32
	// moving is true while there are more ready replicas than wanted, because they have yet to drain, and while a role
	// of a pool has another number of ready instances than wanted. It is false during a rollout, whose surge is wanted.
	moving bool
}

// sizesOf returns the size by region. During a rollout it counts the replicas of all versions.
func sizesOf(r *windlassv1.WatchAppResponse) map[string]size {
	out := map[string]size{}
	for _, d := range r.GetDeployments() {
		if d.GetId() != r.GetApp().GetLiveDeploymentId() {
			continue
		}
		for _, t := range d.GetRegions() {
			if t.GetStatus() != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
				moving := t.GetReady() > t.GetReplicas() || isPooled(d) && slices.ContainsFunc(t.GetRoles(), func(r *windlassv1.RoleTopology) bool { return r.GetReady() != r.GetWanted() })
				out[t.GetRegion()] = size{t.GetReplicas(), t.GetReady(), moving}
			}
		}
	}
	if ro := r.GetRollout(); ro != nil && ro.GetFinishedAt() == 0 {
		for name, size := range out {
			size.moving = false
			out[name] = size
		}
		for _, w := range ro.GetProgress().GetWaves() {
			for _, g := range w.GetRegions() {
				if _, there := out[g.GetRegion()]; there && (g.GetOld().GetReplicas() > 0 || g.GetNew().GetReplicas() > 0) {
					ready := g.GetOld().GetReady() + g.GetNew().GetReady()
					for _, v := range g.GetOthers() {
						ready += v.GetReady()
					}
					out[g.GetRegion()] = size{wanted: g.GetReplicas(), ready: ready}
				}
			}
		}
	}
	return out
}

// judgeLive returns the verdict on a version that is live again. It is over when all replicas are ready.
func judgeLive(r *windlassv1.WatchAppResponse, deploymentID string) verdict {
	if r.GetApp().GetLiveDeploymentId() != deploymentID {
		return verdict{true, outcomeSuperseded, codeSuperseded, r.GetApp().GetName() + ": another version became live: `windlass history " + r.GetApp().GetName() + "` shows why"}
	}
	d := deploymentWithID(r, deploymentID)
	for _, t := range d.GetRegions() {
		if t.GetReady() < t.GetReplicas() {
			return verdict{}
		}
	}
	return verdict{over: d != nil, outcome: outcomeSucceeded}
}
