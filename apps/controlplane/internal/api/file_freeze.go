package api

import (
	"cmp"
	"fmt"
	"slices"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ofNoFile fails for a freeze that comes from an app's file: the next deploy of that would
// undo what was done to it elsewhere.
func ofNoFile(f model.Freeze) error {
	if !f.FromFile {
		return nil
	}
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_FREEZE_OF_FILE, Field: "name",
		Fix: "Change or take out the freeze block of that file and deploy it; that is never frozen. " +
			`Or have an owner start what it holds: --override-freeze "why".`,
	}, fmt.Sprintf("freeze %s comes from the file of app %s", f.Name, f.AppID))
}

// fileFreezeName is made of the app's name, for people, and of the end of its id, which no
// other app has.
func fileFreezeName(app model.App) string {
	return app.Name[:min(len(app.Name), 50)] + "-" + app.ID[max(0, len(app.ID)-12):]
}

// setFileFreeze has the app's own freeze be what its file says, before anything is judged by
// freezes: so no file is kept from lifting what a file has set.
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
		return apierr.InvalidFix("freeze", fmt.Sprintf("the workspace has a freeze %s, whose name that of this app's file would be", name),
			"Give that one another name.")
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
	c.log(app, model.History{What: "FreezeSet", Why: fmt.Sprintf("freeze %s, of the file that was deployed: %s", f.Name, f.Reason)})
	if err := c.wakeIfHeld(app); err != nil {
		return err
	}
	return c.audit("freeze", f.ID, auditable(before), after)
}

// dropFileFreeze lifts the freeze of an earlier version of the app's file, nil for none.
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
	c.log(app, model.History{What: "FreezeLifted", Why: fmt.Sprintf("freeze %s is not in the file that was deployed, or has ended", was.Name)})
	if err := c.wakeIfHeld(app); err != nil {
		return err
	}
	return c.audit("freeze", was.ID, before, nil)
}

// wakeIfHeld has the app's rollout be looked at again that a freeze may hold.
func (c freezeMutation) wakeIfHeld(app model.App) error {
	if app.RolloutID == "" {
		return nil
	}
	return c.wake(app.ID)
}
