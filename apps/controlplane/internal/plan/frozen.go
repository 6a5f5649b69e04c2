package plan

import (
	"fmt"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/freeze"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// MayBeFrozen reports whether a freeze may keep the rollout of the deployment from starting: the rollout
// is in flight, has not begun, is not a rollback, and does not override freezes.
func MayBeFrozen(r model.Rollout, d model.Deployment) bool {
	return r.Status == windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING && !r.CancelRequested && r.OverrideBy == "" &&
		d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING && d.Source != model.SourceRollback
}

// isFrozen reports whether a freeze keeps the target from starting. Only the API distinguishes freezes that refuse from
// freezes that hold: both hold a rollout that was accepted. While the rollout is held, no deadline runs. When it is
// released, its time begins again.
func (p *planner) isFrozen(d *model.Deployment) bool {
	r := p.rollout
	found, frozen := freeze.Found{}, false
	if MayBeFrozen(*r, *d) {
		found, frozen = freeze.Longest(p.in.Freezes, *p.app, p.now)
	}
	was := r.FrozenBy
	switch {
	case !frozen && r.FrozenSince == 0:
		return false
	case !frozen:
		why := fmt.Sprintf("freeze %s is over", was)
		if r.OverrideBy != "" {
			why = fmt.Sprintf("%s overrode freeze %s", r.OverrideBy, was)
		}
		p.log("RolloutReleased", fmt.Sprintf("%s, after %d s: it starts now", why, (p.now-r.FrozenSince)/1000), d, "")
		r.FrozenSince, r.FrozenUntil, r.FrozenBy, r.FrozenScope, r.FrozenWhy = 0, 0, "", "", ""
		if limit := p.progressDeadline(d); limit > 0 {
			r.Deadline = p.now + limit
		}
		return false
	}
	since := r.FrozenSince
	if since == 0 {
		since, was = p.now, ""
	}
	r.FrozenSince, r.FrozenUntil, r.FrozenBy = since, found.End, found.Name
	r.FrozenScope, r.FrozenWhy, r.Deadline = freeze.Scope(found.Freeze), found.Reason, 0
	if was != r.FrozenBy {
		p.log("RolloutHeld", FrozenText(*r), d, "")
	}
	return true
}

// mayNotStart reports whether a freeze or a gate keeps the rollout in flight from starting.
func (f *facts) mayNotStart() bool {
	d := f.targetDeployment()
	return d != nil && (f.rollout.FrozenSince != 0 || StartMissing(*f.rollout) != "") && d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING
}

// FrozenText says which freeze holds the rollout and until when, empty for none.
func FrozenText(r model.Rollout) string {
	if r.FrozenSince == 0 {
		return ""
	}
	return FreezeText(r.FrozenBy, r.FrozenScope, r.FrozenUntil, r.FrozenWhy)
}

// FreezeText names a freeze, its scope, its end and its reason.
func FreezeText(name, scope string, until int64, reason string) string {
	end := "until it is lifted"
	if until != 0 {
		end = "until " + time.UnixMilli(until).UTC().Format("2006-01-02 15:04:05 UTC")
	}
	return fmt.Sprintf("freeze %s of the %s, %s: %s", name, scope, end, reason)
}

// FrozenMessage says what holds the rollout, a freeze or its start gate, for the app's status.
func FrozenMessage(r model.Rollout) string {
	if r.FrozenSince == 0 {
		return fmt.Sprintf("v%d waits for %s before it starts", r.Version, StartMissing(r))
	}
	return fmt.Sprintf("v%d is held by %s", r.Version, FrozenText(r))
}
