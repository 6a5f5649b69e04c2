package api

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
)

// Besides its own subject, a mutation writes the app's row, history, audit and wake-ups.

// store writes the locked app's row, and updates the copy to match it.
func (c *mutation) store(app *model.App) error {
	app.UpdatedAt = c.at
	if err := c.UpdateApp(*app); err != nil {
		return fmt.Errorf("update app %s: %w", app.ID, err)
	}
	app.ResourceVersion++
	return nil
}

// putRolloutState writes the app's rollout state.
func (c *mutation) putRolloutState(s model.RolloutState) error {
	s.UpdatedAt = c.at
	if err := c.PutRolloutState(s); err != nil {
		return fmt.Errorf("store rollout state of app %s: %w", s.AppID, err)
	}
	return nil
}

// log adds an entry to the app's history: what was decided and why, with its rollout, deployment and region.
func (c *mutation) log(app model.App, h model.History) {
	h.ID, h.WorkspaceID, h.AppID, h.At, h.Who = ident.New("hst"), app.WorkspaceID, app.ID, c.at, c.by.Name
	c.history = append(c.history, h)
}

// wake requests a step of the app's workflow at once.
func (c *mutation) wake(appID string) error {
	if c.dry != nil {
		return c.Wake([]string{appID}, c.at, c.at)
	}
	c.woken = append(c.woken, appID)
	return nil
}

// expect requests a step after a region has reported, because an earlier step would have nothing to do.
func (c *mutation) expect(appID string) error {
	if c.dry != nil {
		return c.wake(appID)
	}
	c.expected = append(c.expected, appID)
	return nil
}

// auditChange writes an audit row of a change. before and after are the resource in the form of the API. before is nil if the
// change made the resource. after is nil if the change deleted it.
func (c *mutation) auditChange(kind, id string, before, after proto.Message) error {
	return c.auditIn(c.workspaceID, kind, id, before, after)
}

// auditFor writes an operator's change of a workspace into two audits: the platform's and the
// workspace's.
func (c *mutation) auditFor(workspaceID, kind, id string, before, after proto.Message) error {
	if c.by.WorkspaceID != workspaceID {
		if err := c.auditIn(c.by.WorkspaceID, kind, id, before, after); err != nil {
			return err
		}
	}
	return c.auditIn(workspaceID, kind, id, before, after)
}

func (c *mutation) auditIn(workspaceID, kind, id string, before, after proto.Message) error {
	was, err := auditJSON(before)
	if err != nil {
		return err
	}
	is, err := auditJSON(after)
	if err != nil {
		return err
	}
	err = c.InsertAudit(model.Audit{
		ID: ident.New("aud"), WorkspaceID: workspaceID, At: c.at,
		Actor: c.by.Name, ActorID: c.by.ID, Source: c.by.Source, Procedure: c.by.Procedure,
		ResourceKind: kind, ResourceID: id, Before: was, After: is,
	})
	if err != nil {
		return fmt.Errorf("write audit of %s %s: %w", kind, id, err)
	}
	return nil
}
