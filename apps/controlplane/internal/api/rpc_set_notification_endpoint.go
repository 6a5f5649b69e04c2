package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/notification"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// SetNotificationEndpoint makes or changes the endpoint with the name. Only this answer has the signing secret of a
// new endpoint.
func (a notificationService) SetNotificationEndpoint(ctx context.Context, req *windlassv1.SetNotificationEndpointRequest) (*windlassv1.SetNotificationEndpointResponse, error) {
	secret, isNew := newSigningSecret(), false
	res, replayed, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.SetNotificationEndpointResponse, error) {
		want, err := c.endpointOf(req)
		if err != nil {
			return nil, err
		}
		was, err := c.LockNotificationEndpoint(c.workspaceID, want.Name)
		isNew = errors.Is(err, model.ErrNotFound)
		switch {
		case isNew:
			return c.newEndpoint(want, req.GetUrl(), secret)
		case err != nil:
			return nil, fmt.Errorf("lock notification endpoint %s: %w", want.Name, err)
		}
		return c.changeEndpoint(was, want, req.GetUrl())
	})
	if err == nil && isNew && !replayed {
		res.Secret = secret
	}
	return res, err
}

// endpointOf returns the endpoint that the request describes.
func (c *mutation) endpointOf(req *windlassv1.SetNotificationEndpointRequest) (e model.NotificationEndpoint, err error) {
	e = model.NotificationEndpoint{
		ID: ident.New("nte"), WorkspaceID: c.workspaceID, Name: req.GetName(), Disabled: req.GetDisabled(),
		Format:    model.NotificationFormat(cmp.Or(req.GetFormat(), windlassv1.NotificationFormat_NOTIFICATION_FORMAT_CLOUDEVENTS)),
		CreatedBy: c.by.Name, CreatedAt: c.at, UpdatedAt: c.at,
	}
	for _, k := range req.GetKinds() {
		e.Kinds |= model.NotificationKind(k).Bit()
	}
	e.Kinds = cmp.Or(e.Kinds, model.AllNotificationKinds())
	if req.GetUrl() != "" {
		if e.Origin, err = c.api.hookURL(req.GetUrl()); err != nil {
			return e, err
		}
	}
	switch {
	case req.GetProject() != "" && req.GetApp() != "":
		return e, apierr.InvalidFix("app", "the endpoint names a project and an app", "Use one of the two, or neither for the workspace.")
	case req.GetProject() != "":
		p, err := c.api.findProject(c, c.workspaceID, req.GetProject(), "project")
		if err != nil {
			return e, err
		}
		e.ScopeID = p.ID
	case req.GetApp() != "":
		app, err := c.api.findApp(c, c.workspaceID, req.GetApp(), false)
		if err != nil {
			return e, err
		}
		e.ScopeID = app.ID
	}
	return e, nil
}

func (c *mutation) newEndpoint(e model.NotificationEndpoint, url, secret string) (*windlassv1.SetNotificationEndpointResponse, error) {
	if url == "" {
		return nil, apierr.InvalidFix("url", "a new notification endpoint needs a url", "Set it: `windlass notify set NAME --url URL`.")
	}
	have, err := c.ListNotificationEndpoints(c.workspaceID)
	if err != nil {
		return nil, fmt.Errorf("list notification endpoints: %w", err)
	}
	if len(have) >= model.MaxNotificationEndpoints {
		return nil, apierr.OverLimit("name", fmt.Sprintf("the workspace has %d notification endpoints, which is the maximum", len(have)),
			"Remove an endpoint that is not needed: `windlass notify remove NAME`.")
	}
	err = c.InsertNotificationEndpoint(e)
	switch {
	case errors.Is(err, model.ErrExists):
		return nil, apierr.Exists("name", "notification endpoint", e.Name)
	case err != nil:
		return nil, fmt.Errorf("store notification endpoint %s: %w", e.Name, err)
	}
	if err := c.putTarget(e, notification.Target{URL: url}.Rotate(secret, 0), 1); err != nil {
		return nil, err
	}
	view, err := endpointView(c, e)
	if err != nil {
		return nil, err
	}
	return &windlassv1.SetNotificationEndpointResponse{Endpoint: view}, c.auditChange("notification_endpoint", e.ID, nil, view)
}

// changeEndpoint changes the settings of an endpoint, and keeps its signing secrets. was has the old settings, and want
// has the new ones.
func (c *mutation) changeEndpoint(was, want model.NotificationEndpoint, url string) (*windlassv1.SetNotificationEndpointResponse, error) {
	target, version, err := c.targetOf(was)
	if err != nil {
		return nil, err
	}
	is := was
	is.ScopeID, is.Format, is.Kinds, is.Disabled = want.ScopeID, want.Format, want.Kinds, want.Disabled
	is.Origin = cmp.Or(want.Origin, was.Origin)
	moved := url != "" && url != target.URL
	views, err := endpointViews(c, c.workspaceID, was, is)
	if err != nil {
		return nil, err
	}
	if is == was && !moved {
		return &windlassv1.SetNotificationEndpointResponse{Endpoint: views[0], Unchanged: true}, nil
	}
	if moved {
		target.URL = url
		target.Secrets = slices.Clone(target.Secrets)
		if err := c.putTarget(is, target, version+1); err != nil {
			return nil, err
		}
	}
	is.UpdatedAt = c.at
	if err := c.UpdateNotificationEndpoint(is); err != nil {
		return nil, fmt.Errorf("store notification endpoint %s: %w", is.Name, err)
	}
	var before proto.Message = views[0]
	return &windlassv1.SetNotificationEndpointResponse{Endpoint: views[1]}, c.auditChange("notification_endpoint", is.ID, before, views[1])
}
