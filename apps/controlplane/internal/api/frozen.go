package api

import (
	"fmt"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/freeze"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// mayOverride fails for who gives a reason to override freezes and may not: also while
// there is none, so that what a call may do depends on the key alone.
func (c versionMutation) mayOverride(why string) error {
	if why == "" || owner.allows(c.by.Role) {
		return nil
	}
	return apierr.Denied(fmt.Sprintf("a key of role %s may not override a freeze", model.RoleName(c.by.Role)),
		fmt.Sprintf("Use a key of role %s, or leave override_freeze out.", owner))
}

// thaw decides whether the new rollout of the locked app may start now: it fails if a
// freeze refuses it, returns the freeze that holds it, or notes who overrides those that
// there are. f is what it takes the place of.
func (c versionMutation) thaw(app model.App, f flight, r *model.Rollout, v version) (*windlassv1.FreezeHold, error) {
	if v.Source == model.SourceRollback {
		return nil, nil
	}
	have, err := c.freezing().freezesOf(app)
	if err != nil {
		return nil, err
	}
	found, frozen := freeze.Of(have, app, c.at)
	switch {
	case v.Override != "":
		// One that begins before the first step is overridden as well.
		r.OverrideBy, r.OverrideWhy = c.by.Name, v.Override
		if frozen {
			return nil, c.overridden(app, *r, found, v.Override)
		}
		return nil, nil
	case !frozen:
		return nil, nil
	case freeze.Refuses(found.Freeze):
		return nil, refusal(fmt.Sprintf("app %s starts no rollout now", app.Name), found)
	case f.deployment != nil && f.deployment.Status != windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING:
		// What is under way would go back, in the freeze and for nothing.
		return nil, refusal(fmt.Sprintf("v%d of app %s is under way, and what takes its place could not start now", f.deployment.Version, app.Name), found)
	}
	// The planner holds it, by the one that lasts longest.
	found, _ = freeze.Longest(have, app, c.at)
	return &windlassv1.FreezeHold{
		Freeze: found.Name, Scope: freeze.Scope(found.Freeze), Reason: found.Reason, Since: c.at, Until: found.End,
	}, nil
}

// refusal by a freeze.
func refusal(what string, found freeze.Found) error {
	wait := "Wait until it is lifted"
	if found.End != 0 {
		wait = "Wait until then"
	}
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_FROZEN,
		Fix: wait + `, or have an owner override it: --override-freeze "why". ` +
			"What runs may be scaled, rolled back and deleted all the same.",
	}, what+": "+plan.FreezeText(found.Name, freeze.Scope(found.Freeze), found.End, found.Reason))
}

// overridden tells that somebody had the app start something in spite of the freeze.
func (c versionMutation) overridden(app model.App, r model.Rollout, found freeze.Found, why string) error {
	text := fmt.Sprintf("%s; in spite of %s", why, plan.FreezeText(found.Name, freeze.Scope(found.Freeze), found.End, found.Reason))
	c.log(app, model.History{
		What: "FreezeOverridden", Why: text, RolloutID: r.ID, DeploymentID: r.DeploymentID, Version: r.Version,
	})
	// The call's own row has what it started.
	return c.audit("freeze_override", app.ID, nil, historyProto(nil, c.history[len(c.history)-1]))
}

// release lets the rollout in flight start that a freeze holds; nil: none does.
func (c versionMutation) release(app model.App, f flight, why string) error {
	if why == "" || f.rollout == nil || f.deployment == nil || !plan.MayBeFrozen(*f.rollout, *f.deployment) {
		return nil
	}
	have, err := c.freezing().freezesFor(app.ID, "")
	if err != nil {
		return err
	}
	r := *f.rollout
	r.OverrideBy, r.OverrideWhy = c.by.Name, why
	if err := c.UpdateRollout(r); err != nil {
		return fmt.Errorf("release rollout %s: %w", r.ID, err)
	}
	if found, frozen := freeze.Longest(have, app, c.at); frozen {
		if err := c.overridden(app, r, found, why); err != nil {
			return err
		}
	}
	return c.wake(app.ID)
}

// holdProto is what holds the rollout, nil for nothing.
func holdProto(r model.Rollout) *windlassv1.FreezeHold {
	if r.HeldSince == 0 || r.Status != windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING {
		return nil
	}
	return &windlassv1.FreezeHold{
		Freeze: r.HeldBy, Scope: r.HeldScope, Reason: r.HeldWhy, Since: r.HeldSince, Until: r.HeldUntil,
	}
}
