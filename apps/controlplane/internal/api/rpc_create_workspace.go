package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// firstKey is the name of a new workspace's first key.
const firstKey = "owner"

// CreateWorkspace makes a workspace with a project, an environment and an owner's key.
func (a workspaceService) CreateWorkspace(ctx context.Context, req *windlassv1.CreateWorkspaceRequest) (*windlassv1.CreateWorkspaceResponse, error) {
	value := newCredential(keyPrefix)
	res, replayed, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.CreateWorkspaceResponse, error) {
		w := model.Workspace{ID: ident.New("ws"), Name: req.GetName(), CreatedAt: c.at, UpdatedAt: c.at, ResourceVersion: 1}
		err := c.InsertWorkspace(w)
		switch {
		case errors.Is(err, model.ErrExists):
			return nil, apierr.Exists("name", "workspace", req.GetName())
		case err != nil:
			return nil, fmt.Errorf("create workspace %s: %w", req.GetName(), err)
		}
		if _, err := c.tenants().insertProject(w.ID, defaultProject); err != nil {
			return nil, err
		}
		k := c.tenants().newKey(value, w.ID, firstKey, windlassv1.Role_ROLE_OWNER, 0)
		if err := c.InsertAPIKey(k); err != nil {
			return nil, fmt.Errorf("create key of workspace %s: %w", w.ID, err)
		}
		if err := c.auditChange("api_key", k.ID, nil, keyProto(k)); err != nil {
			return nil, err
		}
		return &windlassv1.CreateWorkspaceResponse{Workspace: workspaceProto(w)}, c.auditChange("workspace", w.ID, nil, workspaceProto(w))
	})
	if err == nil && !replayed {
		res.ApiKey = value
	}
	return res, err
}
