package api

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// UpdateEnvironment renames an environment, which only an owner may do, and replaces its variables. Existing versions
// keep the variables with which they were made.
func (a environmentService) UpdateEnvironment(ctx context.Context, req *windlassv1.UpdateEnvironmentRequest) (*windlassv1.UpdateEnvironmentResponse, error) {
	if err := appspec.CheckEnv(req.GetVariables(), "variables"); err != nil {
		return nil, err
	}
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.UpdateEnvironmentResponse, error) {
		e, err := c.lockedEnvironment(req.GetEnvironment())
		if err != nil {
			return nil, err
		}
		if e.ResourceVersion != req.GetResourceVersion() {
			return nil, apierr.Conflict("environment", e.ID, e.ResourceVersion)
		}
		if e.Name != req.GetName() && !owner.allowsRole(c.by.Role) {
			return nil, apierr.Denied("only a key of role owner may rename an environment", "Leave the name as it is, or use an owner's key.")
		}
		before, err := a.environmentView(c, e)
		if err != nil {
			return nil, err
		}
		if e.Name == req.GetName() && maps.Equal(e.Variables, req.GetVariables()) {
			return &windlassv1.UpdateEnvironmentResponse{Environment: before, Unchanged: true}, nil
		}
		e.Name, e.Variables, e.UpdatedAt = req.GetName(), req.GetVariables(), c.at
		err = c.Tx.UpdateEnvironment(e)
		switch {
		case errors.Is(err, model.ErrExists):
			return nil, apierr.Exists("name", "environment", req.GetName())
		case errors.Is(err, model.ErrConflict):
			return nil, apierr.Conflict("environment", e.ID, e.ResourceVersion+1)
		case err != nil:
			return nil, fmt.Errorf("update environment %s: %w", e.ID, err)
		}
		e.ResourceVersion++
		after, err := a.environmentView(c, e)
		if err != nil {
			return nil, err
		}
		return &windlassv1.UpdateEnvironmentResponse{Environment: after}, c.auditChange("environment", e.ID, before, after)
	})
	return res, err
}
