package api

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
)

// What a mutation writes besides the thing that it is about: the app's row, history, audit and wake-ups.

// store writes the locked app's row and keeps the copy in step with it.
func (c *mutation) store(app *model.App) error {
	app.UpdatedAt = c.at
	if err := c.UpdateApp(*app); err != nil {
		return fmt.Errorf("update app %s: %w", app.ID, err)
	}
	app.ResourceVersion++
	return nil
}

// putRolloutState writes how the app's rollouts go.
func (c *mutation) putRolloutState(s model.RolloutState) error {
	s.UpdatedAt = c.at
	if err := c.PutRolloutState(s); err != nil {
		return fmt.Errorf("store rollout state of app %s: %w", s.AppID, err)
	}
	return nil
}

// log notes a decision about an app: what, why, and which rollout, deployment and
// region it is about.
func (c *mutation) log(app model.App, h model.History) {
	h.ID, h.WorkspaceID, h.AppID, h.At, h.Who = ident.New("hst"), app.WorkspaceID, app.ID, c.at, c.by.Name
	c.history = append(c.history, h)
}

// wake asks for a step of the app's workflow at once.
func (c *mutation) wake(appID string) error {
	if c.dry != nil {
		return c.Wake([]string{appID}, c.at, c.at)
	}
	c.woken = append(c.woken, appID)
	return nil
}

// expect asks for a step once a region has done something about what is written already.
// There would be nothing to do in one before.
func (c *mutation) expect(appID string) error {
	if c.dry != nil {
		return c.wake(appID)
	}
	c.expected = append(c.expected, appID)
	return nil
}

// audit writes who changed what. before and after are what the API shows of it;
// nil when there was or is none.
func (c *mutation) audit(kind, id string, before, after proto.Message) error {
	return c.auditIn(c.workspaceID, kind, id, before, after)
}

// auditFor writes what an operator did to a workspace in the platform's audit and in the
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
