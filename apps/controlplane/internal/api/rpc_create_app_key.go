package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// appKeyPrefix is the prefix of every new app key, and of no other credential. App keys of earlier releases have the
// prefix of agents' credentials. They stay valid, because a key is found by its hash.
const appKeyPrefix = "wlk_"

// CreateAppKey makes a key for requests to an app. Only this answer has the key's value.
func (a routeService) CreateAppKey(ctx context.Context, req *windlassv1.CreateAppKeyRequest) (*windlassv1.CreateAppKeyResponse, error) {
	if req.GetExpiresAt() != 0 && req.GetExpiresAt() <= nowMillis() {
		return nil, apierr.Invalid("expires_at", "expires_at is in the past: use unix milliseconds in the future, or 0 for never")
	}
	value := newCredential(appKeyPrefix)
	res, replayed, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.CreateAppKeyResponse, error) {
		app, have, err := c.appWithKeys(req.GetApp())
		if err != nil {
			return nil, err
		}
		if len(have) >= model.MaxAppKeys {
			return nil, apierr.OverLimit("app key", fmt.Sprintf("app %s has %d keys, which is the maximum", app.Name, len(have)), "Revoke a key that is not needed.")
		}
		k := model.AppKey{
			AppID: app.ID, Name: req.GetName(), WorkspaceID: c.workspaceID, Prefix: value[:shownPrefix], Hash: model.HashToken(value),
			CreatedBy: c.by.Name, CreatedAt: c.at, ExpiresAt: req.GetExpiresAt(),
		}
		err = c.InsertAppKey(k)
		switch {
		case errors.Is(err, model.ErrExists):
			return nil, apierr.Exists("name", "app key", req.GetName())
		case err != nil:
			return nil, fmt.Errorf("create key %s of app %s: %w", k.Name, app.ID, err)
		}
		app.AppKeys = int32(len(have)) + 1
		if err := c.domains().routesChange(app, "KeyCreated", "key "+k.Name); err != nil {
			return nil, err
		}
		view, err := a.appKeyView(c, k)
		if err != nil {
			return nil, err
		}
		return &windlassv1.CreateAppKeyResponse{Key: view}, c.auditChange("app_key", app.ID+"/"+k.Name, nil, view)
	})
	if err == nil && !replayed {
		res.Value = value
	}
	return res, err
}

// appWithKeys locks the app, and returns it with its keys.
func (c *mutation) appWithKeys(ref string) (model.App, []model.AppKey, error) {
	app, err := c.lockedApp(ref)
	if err != nil {
		return app, nil, err
	}
	if err := requireNotDeleted(app); err != nil {
		return app, nil, err
	}
	have, err := c.KeysOfApps([]string{app.ID})
	if err != nil {
		return app, nil, fmt.Errorf("list keys of app %s: %w", app.ID, err)
	}
	return app, have, nil
}
