package api

import (
	"cmp"
	"fmt"
	"slices"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/freeze"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// mayOverride fails if the caller gives a reason to override freezes, but has no right to override them. It does not
// check whether a freeze exists, so that the result depends only on the key.
func (c versionMutation) mayOverride(why string) error {
	if why == "" || owner.allowsRole(c.by.Role) {
		return nil
	}
	return apierr.Denied(fmt.Sprintf("a key of role %s may not override a freeze", model.RoleName(c.by.Role)),
		fmt.Sprintf("Use a key of role %s, or leave override_freeze out.", owner))
}

// ofNoFile fails for a freeze that comes from an app's file, because the next deploy of the file would undo the
// change.
func ofNoFile(f model.Freeze) error {
	if !f.FromFile {
		return nil
	}
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_FREEZE_OF_FILE, Field: "name",
		Fix: "Change or remove the freeze block of that file, and deploy the file, which is never frozen. " +
			`Or ask an owner to start the held rollout: --override-freeze "why".`,
	}, fmt.Sprintf("freeze %s comes from the file of app %s", f.Name, f.AppID))
}

// setFileFreeze sets the app's own freeze to the freeze of its file. It runs before freezes are checked, so that a
// file can always lift an earlier file's freeze.
func (c freezeMutation) setFileFreeze(app model.App, want *windlassv1.FileFreeze) error {
	name := fileFreezeName(app)
	have, err := c.freezesFor(app.ID, name)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(have, func(f model.Freeze) bool { return f.Name == name })
	var was *model.Freeze
	if i >= 0 {
		was = &have[i]
	}
	if was == nil && want == nil {
		c.freezes, c.freezesAre = have, app.ID
		return nil
	}
	switch {
	case was != nil && !was.FromFile:
		return apierr.InvalidFix("freeze", fmt.Sprintf("the workspace has a freeze %s, and the freeze of this app's file would have the same name", name),
			"Give the workspace's freeze another name.")
	case want == nil || want.GetUntil() != 0 && want.GetUntil() <= c.at:
		return c.dropFileFreeze(app, was)
	}
	f := model.Freeze{
		ID: ident.New("frz"), WorkspaceID: app.WorkspaceID, Name: name, AppID: app.ID, Reason: want.GetReason(),
		OnStart: cmp.Or(want.GetOnStart(), windlassv1.Freeze_ON_START_REFUSE),
		From:    cmp.Or(want.GetFrom(), c.at), Until: want.GetUntil(), TimeZone: want.GetTimeZone(),
		SetBy: c.by.Name, SetAt: c.at, FromFile: true,
	}
	for _, w := range want.GetWeekly() {
		f.Weekly = append(f.Weekly, model.FreezeWindow{Start: w.GetStart(), End: w.GetEnd()})
	}
	if was != nil {
		f.ID = was.ID
		if want.GetFrom() == 0 {
			f.From = was.From
		}
	}
	if err := checkWindows(f, c.at, "freeze."); err != nil {
		return err
	}
	after, err := freezeView(c.mutation, f, c.at)
	if err != nil {
		return err
	}
	var before *windlassv1.Freeze
	if was != nil {
		if before, err = freezeView(c.mutation, *was, c.at); err != nil {
			return err
		}
		if sameFreeze(before, after) {
			return nil
		}
	}
	if err := c.PutFreeze(f); err != nil {
		return fmt.Errorf("store freeze %s: %w", f.Name, err)
	}
	c.log(app, model.History{What: "FreezeSet", Why: fmt.Sprintf("freeze %s, from the deployed file: %s", f.Name, f.Reason)})
	if err := c.wakeIfFrozen(app); err != nil {
		return err
	}
	return c.auditChange("freeze", f.ID, auditableFreeze(before), after)
}

// fileFreezeName returns the app's name with the end of its id, which makes the name unique.
func fileFreezeName(app model.App) string {
	return app.Name[:min(len(app.Name), 50)] + "-" + app.ID[max(0, len(app.ID)-12):]
}

// dropFileFreeze lifts was, the freeze of an earlier version of the app's file. was may be nil.
func (c freezeMutation) dropFileFreeze(app model.App, was *model.Freeze) error {
	if was == nil {
		return nil
	}
	before, err := freezeView(c.mutation, *was, c.at)
	if err != nil {
		return err
	}
	if err := c.DeleteFreeze(was.WorkspaceID, was.Name); err != nil {
		return fmt.Errorf("lift freeze %s: %w", was.Name, err)
	}
	c.log(app, model.History{What: "FreezeLifted", Why: fmt.Sprintf("freeze %s is not in the deployed file, or has ended", was.Name)})
	if err := c.wakeIfFrozen(app); err != nil {
		return err
	}
	return c.auditChange("freeze", was.ID, before, nil)
}

// wakeIfFrozen wakes the workflow of an app whose rollout a freeze may hold.
func (c freezeMutation) wakeIfFrozen(app model.App) error {
	if app.RolloutID == "" {
		return nil
	}
	return c.wake(app.ID)
}

// freezesFor returns the freezes that may apply to the app, and the freeze with the name. Freezes of other apps'
// files are left out.
func (c freezeMutation) freezesFor(appID, name string) ([]model.Freeze, error) {
	rows, err := c.ListFreezesFor(c.workspaceID, name, appID)
	if err != nil {
		return nil, fmt.Errorf("list freezes of workspace %s: %w", c.workspaceID, err)
	}
	return rows, nil
}

// mayStart decides whether the new rollout of the locked app may start now. It fails if a freeze refuses the rollout. It
// returns the freeze that holds the rollout, if any. If the caller overrides freezes, it stores that in r. f is the
// rollout in flight that r replaces.
func (c versionMutation) mayStart(app model.App, f activeRollout, r *model.Rollout, v version) (*windlassv1.FreezeHold, error) {
	if v.Source == model.SourceRollback {
		return nil, nil
	}
	have, err := freezeMutation(c).freezesOf(app)
	if err != nil {
		return nil, err
	}
	found, frozen := freeze.Of(have, app, c.at)
	switch {
	case v.Override != "":
		// A freeze that begins before the rollout's first step is overridden as well.
		r.OverrideBy, r.OverrideWhy = c.by.Name, v.Override
		if frozen {
			return nil, c.recordOverride(app, *r, found, v.Override)
		}
		return nil, nil
	case !frozen:
		return nil, nil
	case freeze.Refuses(found.Freeze):
		return nil, freezeRefusal(fmt.Sprintf("app %s starts no rollout now", app.Name), found)
	case f.deployment != nil && f.deployment.Status != windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING:
		// Superseding f would send its rollout back, and the new rollout could not start during the freeze.
		return nil, freezeRefusal(fmt.Sprintf("v%d of app %s is in flight, and a rollout that replaces it could not start now", f.deployment.Version, app.Name), found)
	}
	// The planner holds the rollout until the freeze that lasts longest ends.
	found, _ = freeze.Longest(have, app, c.at)
	return &windlassv1.FreezeHold{
		Freeze: found.Name, Scope: freeze.Scope(found.Freeze), Reason: found.Reason, Since: c.at, Until: found.End,
	}, nil
}

// freezesOf returns the freezes for the app. It reads them once per mutation.
func (c freezeMutation) freezesOf(app model.App) ([]model.Freeze, error) {
	if c.freezesAre == app.ID {
		return c.freezes, nil
	}
	return c.freezesFor(app.ID, "")
}

// freezeRefusal returns the error of a call that a freeze refuses.
func freezeRefusal(what string, found freeze.Found) error {
	wait := "Wait until it is lifted"
	if found.End != 0 {
		wait = "Wait until then"
	}
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_FROZEN,
		Fix: wait + `, or ask an owner to override it: --override-freeze "why". ` +
			"Running apps can still be scaled, rolled back and deleted.",
	}, what+": "+plan.FreezeText(found.Name, freeze.Scope(found.Freeze), found.End, found.Reason))
}

// recordOverride writes history and audit of a rollout that starts despite the freeze.
func (c versionMutation) recordOverride(app model.App, r model.Rollout, found freeze.Found, why string) error {
	text := fmt.Sprintf("%s; in spite of %s", why, plan.FreezeText(found.Name, freeze.Scope(found.Freeze), found.End, found.Reason))
	c.log(app, model.History{
		What: "FreezeOverridden", Why: text, RolloutID: r.ID, DeploymentID: r.DeploymentID, Version: r.Version,
	})
	// The call's own audit row has the new rollout.
	return c.auditChange("freeze_override", app.ID, nil, historyProto(nil, c.history[len(c.history)-1]))
}

// release lets the rollout in flight start although a freeze holds it, if there is such a rollout.
func (c versionMutation) release(app model.App, f activeRollout, why string) error {
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
		if err := c.recordOverride(app, r, found, why); err != nil {
			return err
		}
	}
	return c.wake(app.ID)
}

// holdProto returns the freeze that holds the rollout, nil for none.
func holdProto(r model.Rollout) *windlassv1.FreezeHold {
	if r.FrozenSince == 0 || r.Status != windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING {
		return nil
	}
	return &windlassv1.FreezeHold{
		Freeze: r.FrozenBy, Scope: r.FrozenScope, Reason: r.FrozenWhy, Since: r.FrozenSince, Until: r.FrozenUntil,
	}
}
