package api

import (
	"context"
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RevokeAppKey deletes a key of an app.
func (a routeService) RevokeAppKey(ctx context.Context, req *windlassv1.RevokeAppKeyRequest) (*windlassv1.RevokeAppKeyResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.RevokeAppKeyResponse, error) {
		app, have, err := c.appWithKeys(req.GetApp())
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(have, func(k model.AppKey) bool { return k.Name == req.GetName() })
		if i < 0 {
			return nil, apierr.Missing("name", "app key", req.GetName(), fmt.Sprintf("`windlass app-key list` shows the keys of app %s.", app.Name))
		}
		before, err := a.appKeyView(c, have[i])
		if err != nil {
			return nil, err
		}
		if err := c.DeleteAppKey(app.ID, have[i].Name); err != nil {
			return nil, fmt.Errorf("revoke key %s of app %s: %w", have[i].Name, app.ID, err)
		}
		app.AppKeys = int32(len(have)) - 1
		if err := c.domains().routesChange(app, "KeyRevoked", "key "+have[i].Name); err != nil {
			return nil, err
		}
		return &windlassv1.RevokeAppKeyResponse{}, c.auditChange("app_key", app.ID+"/"+have[i].Name, before, nil)
	})
	return res, err
}
