package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/freeze"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// keepEnded is how long a freeze is kept after its end, in ms.
const keepEnded = int64(30*24*time.Hour) / int64(time.Millisecond)

// SetFreeze makes or changes the freeze with the name.
func (a freezeService) SetFreeze(ctx context.Context, req *windlassv1.SetFreezeRequest) (*windlassv1.SetFreezeResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.SetFreezeResponse, error) {
		f, err := c.freezing().freezeOf(req)
		if err != nil {
			return nil, err
		}
		have, err := c.freezing().freezesFor("", f.Name)
		if err != nil {
			return nil, err
		}
		var before *windlassv1.Freeze
		if i := slices.IndexFunc(have, func(g model.Freeze) bool { return g.Name == f.Name }); i >= 0 {
			was := have[i]
			if err := ofNoFile(was); err != nil {
				return nil, err
			}
			f.ID = was.ID
			if req.GetFrom() == 0 && was.From < f.From && (was.Until == 0 || was.Until > c.at) {
				f.From = was.From
			}
			if before, err = freezeView(c, was, c.at); err != nil {
				return nil, err
			}
		} else if have, err = c.freezing().forgetEnded(have); err != nil {
			return nil, err
		} else if len(have) >= model.MaxFreezes {
			return nil, apierr.OverLimit("name", fmt.Sprintf("the workspace has %d freezes, which is the maximum", len(have)),
				"Lift a freeze that is not needed. One freeze can have many windows.")
		}
		if err := checkTimes(f, c.at); err != nil {
			return nil, err
		}
		after, err := freezeView(c, f, c.at)
		if err != nil {
			return nil, err
		}
		if before != nil && sameFreeze(before, after) {
			return &windlassv1.SetFreezeResponse{Freeze: before, Unchanged: true}, nil
		}
		if err := c.PutFreeze(f); err != nil {
			return nil, fmt.Errorf("store freeze %s: %w", f.Name, err)
		}
		if _, err := c.freezing().wakeFrozen(); err != nil {
			return nil, err
		}
		return &windlassv1.SetFreezeResponse{Freeze: after}, c.auditChange("freeze", f.ID, auditableFreeze(before), after)
	})
	return res, err
}

// auditableFreeze returns a nil message for a nil freeze.
func auditableFreeze(f *windlassv1.Freeze) proto.Message {
	if f == nil {
		return nil
	}
	return f
}

// freezeOf returns the freeze that the request describes.
func (c freezeMutation) freezeOf(req *windlassv1.SetFreezeRequest) (model.Freeze, error) {
	f := model.Freeze{
		ID: ident.New("frz"), WorkspaceID: c.workspaceID, Name: req.GetName(), Reason: req.GetReason(),
		OnStart: cmp.Or(req.GetOnStart(), windlassv1.Freeze_ON_START_REFUSE),
		From:    cmp.Or(req.GetFrom(), c.at), Until: req.GetUntil(), TimeZone: req.GetTimeZone(),
		SetBy: c.by.Name, SetAt: c.at,
	}
	for _, w := range req.GetWeekly() {
		f.Weekly = append(f.Weekly, model.FreezeWindow{Start: w.GetStart(), End: w.GetEnd()})
	}
	if req.GetProject() != "" && req.GetApp() != "" {
		return f, apierr.InvalidFix("app", "the freeze names a project and an app", "Use one of the two, or neither for the workspace.")
	}
	if req.GetProject() != "" {
		p, err := c.api.findProject(c.mutation, c.workspaceID, req.GetProject(), "project")
		if err != nil {
			return f, err
		}
		f.ProjectID = p.ID
	}
	if req.GetApp() != "" {
		app, err := c.api.findApp(c.mutation, c.workspaceID, req.GetApp(), false)
		if err != nil {
			return f, err
		}
		if err := requireNotDeleted(app); err != nil {
			return f, err
		}
		f.AppID = app.ID
	}
	return f, nil
}

// checkTimes fails for times with which the freeze would never be in force.
func checkTimes(f model.Freeze, now int64) error {
	if f.Until != 0 && f.Until <= now {
		return apierr.InvalidFix("until", "until is in the past: "+clockOf(f.Until), "Use a later time, or 0 for a freeze that lasts until it is lifted.")
	}
	if err := checkWindows(f, now, ""); err != nil {
		return err
	}
	if _, in := freeze.InForce(f, now); len(f.Weekly) > 0 && !in && freeze.NextAt(f, now) == 0 {
		return apierr.InvalidFix("until", "no window begins before the freeze ends at "+clockOf(f.Until), "Use a later until.")
	}
	return nil
}

// checkWindows checks the times and the weekly windows. at is the prefix of field paths: empty, or a path that ends
// with a dot.
func checkWindows(f model.Freeze, now int64, at string) error {
	switch {
	case f.Until != 0 && f.Until <= f.From:
		return apierr.InvalidFix(at+"until", fmt.Sprintf("the freeze ends at %s, before it begins at %s", clockOf(f.Until), clockOf(f.From)), "Use an until that is after from.")
	case len(f.Weekly) == 0 && f.TimeZone != "":
		return apierr.InvalidFix(at+"timeZone", "a time zone has no effect without weekly windows", "Remove timeZone, or add weekly windows.")
	case len(f.Weekly) == 0:
		return nil
	}
	if _, err := freeze.Zone(f.TimeZone); err != nil {
		return apierr.InvalidFix(at+"timeZone", err.Error(), "Use a name of the time zone database, such as Europe/London, America/New_York or UTC.")
	}
	if i, err := freeze.Check(f, now); err != nil && i >= 0 {
		return apierr.InvalidFix(fmt.Sprintf("%sweekly[%d].start", at, i), err.Error(), `Write for example "Fri 16:00" to "Mon 08:00", or "22:00" to "06:00" for every night.`)
	} else if err != nil {
		return apierr.InvalidFix(at+"weekly", err.Error(), "Leave weekly out for a freeze without a gap.")
	}
	return nil
}

func clockOf(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02 15:04:05 UTC") }

// sameFreeze reports whether the freezes are the same except for SetBy and SetAt.
func sameFreeze(a, b *windlassv1.Freeze) bool {
	b = proto.CloneOf(b)
	b.SetBy, b.SetAt = a.GetSetBy(), a.GetSetAt()
	return proto.Equal(a, b)
}

// forgetEnded deletes freezes that ended more than keepEnded ago, and returns the other freezes.
func (c freezeMutation) forgetEnded(have []model.Freeze) (left []model.Freeze, err error) {
	for _, f := range have {
		if f.Until == 0 || f.Until+keepEnded > c.at {
			left = append(left, f)
			continue
		}
		if err := c.DeleteFreeze(f.WorkspaceID, f.Name); err != nil && !errors.Is(err, model.ErrNotFound) {
			return nil, fmt.Errorf("forget freeze %s: %w", f.Name, err)
		}
	}
	return left, nil
}

// wakeFrozen wakes every app with a rollout that a freeze holds. It misses an app if a step has read the freezes
// before this call and is not committed yet. That app's workflow reads the freezes again soon.
func (c freezeMutation) wakeFrozen() ([]string, error) {
	ids, err := c.ListFrozenApps(c.workspaceID)
	if err != nil {
		return nil, fmt.Errorf("list held apps: %w", err)
	}
	if err := c.Wake(ids, c.at, c.at); err != nil {
		return nil, fmt.Errorf("wake held apps: %w", err)
	}
	return ids, nil
}
