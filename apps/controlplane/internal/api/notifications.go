package api

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/notification"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// testEvery is the minimum time between two tests of an endpoint.
	testEvery = 10 * time.Second
	// keepPrevious is the default for how long the previous secret also signs calls after a rotation.
	keepPrevious = 24 * time.Hour
)

// lockedEndpoint locks and returns the workspace's notification endpoint with the name.
func (c *mutation) lockedEndpoint(name, field string) (model.NotificationEndpoint, error) {
	e, err := c.LockNotificationEndpoint(c.workspaceID, name)
	switch {
	case errors.Is(err, model.ErrNotFound):
		return e, apierr.Missing(field, "notification endpoint", name, "`windlass notify list` shows the existing endpoints.")
	case err != nil:
		return e, fmt.Errorf("lock notification endpoint %s: %w", name, err)
	}
	return e, nil
}

// hookURL parses the URL of an endpoint and returns its origin.
func (a *server) hookURL(text string) (origin string, err error) {
	u, err := analysis.ParseHookURL(text)
	if err != nil {
		return "", apierr.InvalidFix("url", "the url cannot be used: "+err.Error(), "Write an http or https URL, such as https://example.com/hooks/windlass.")
	}
	// A host name is resolved only when the endpoint is called. An IP address can be checked now.
	if at, err := netip.ParseAddr(u.Hostname()); err == nil && a.cfg.AllowsHookAt != nil && !a.cfg.AllowsHookAt(at) {
		return "", rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
			Reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION, Field: "url",
			Fix: "Use a public address, or ask the operator to start the control plane with --webhook-allow and its network.",
		}, "the address is not public, and this control plane may not call it")
	}
	return apierr.Clip(u.Scheme+"://"+u.Host, maxOrigin), nil
}

// maxOrigin is the maximum length of an origin in the database.
const maxOrigin = 512

// newSigningSecret returns a random signing secret.
func newSigningSecret() string {
	b := make([]byte, notification.SecretBytes)
	rand.Read(b) // never fails: it ends the program instead
	return notification.NewSecret(b)
}

// targetOf returns the endpoint's target, which is stored sealed, and its version.
func (c *mutation) targetOf(e model.NotificationEndpoint) (t notification.Target, version int32, err error) {
	s, err := c.GetSecret(e.WorkspaceID, e.ID, model.EndpointSecret)
	if err != nil {
		return t, 0, fmt.Errorf("read the secret of notification endpoint %s: %w", e.Name, err)
	}
	plain, err := c.api.cfg.Box.Open(s.Ciphertext, model.SecretContext(s.EnvironmentID, s.Name, s.Version))
	if err != nil {
		return t, 0, fmt.Errorf("open the secret of notification endpoint %s: %w", e.Name, err)
	}
	t, err = notification.ParseTarget(plain)
	return t, s.Version, err
}

// putTarget seals the endpoint's target and stores it as the given version.
func (c *mutation) putTarget(e model.NotificationEndpoint, t notification.Target, version int32) error {
	plain, err := t.Encode()
	if err != nil {
		return fmt.Errorf("encode the secret of notification endpoint %s: %w", e.Name, err)
	}
	s := model.Secret{
		WorkspaceID: e.WorkspaceID, EnvironmentID: e.ID, Name: model.EndpointSecret, Version: version, CreatedAt: c.at, UpdatedAt: c.at,
	}
	if s.Ciphertext, err = c.api.cfg.Box.Seal(plain, model.SecretContext(s.EnvironmentID, s.Name, s.Version)); err != nil {
		return fmt.Errorf("seal the secret of notification endpoint %s: %w", e.Name, err)
	}
	if err := c.InsertSecretVersion(s); err != nil {
		return fmt.Errorf("store the secret of notification endpoint %s: %w", e.Name, err)
	}
	return nil
}

// endpointViews returns endpoints of a workspace as the API shows them.
func endpointViews(tx Tx, workspaceID string, all ...model.NotificationEndpoint) (out []*windlassv1.NotificationEndpoint, err error) {
	var appIDs []string
	for _, e := range all {
		if e.ScopeID != "" {
			appIDs = append(appIDs, e.ScopeID)
		}
	}
	apps := map[string]model.App{}
	f, scopes := noNames(), map[string]bool{}
	if len(appIDs) > 0 {
		rows, err := tx.GetApps(appIDs)
		if err != nil {
			return nil, fmt.Errorf("read apps of notification endpoints: %w", err)
		}
		for _, a := range rows {
			apps[a.ID] = a
			scopes[a.EnvironmentID] = true
		}
		for _, id := range appIDs {
			scopes[id] = true
		}
		if err := readScopes(tx, f, workspaceID, scopes); err != nil {
			return nil, err
		}
	}
	for _, e := range all {
		v := &windlassv1.NotificationEndpoint{
			Id: e.ID, Name: e.Name, Project: f.projects[e.ScopeID].Name, Origin: e.Origin, Format: windlassv1.NotificationFormat(e.Format),
			Disabled: e.Disabled, CreatedBy: e.CreatedBy, CreatedAt: e.CreatedAt, PreviousSecretUntil: e.PreviousUntil,
		}
		if a, ok := apps[e.ScopeID]; ok {
			environment := f.environments[a.EnvironmentID]
			v.App = f.projects[environment.ProjectID].Name + "/" + environment.Name + "/" + a.Name
		}
		for _, k := range model.NotificationKinds() {
			if e.Kinds&k.Bit() != 0 {
				v.Kinds = append(v.Kinds, windlassv1.NotificationKind(k))
			}
		}
		out = append(out, v)
	}
	return out, nil
}

// endpointView returns one endpoint as the API shows it.
func endpointView(tx Tx, e model.NotificationEndpoint) (*windlassv1.NotificationEndpoint, error) {
	views, err := endpointViews(tx, e.WorkspaceID, e)
	if err != nil {
		return nil, err
	}
	return views[0], nil
}

var deliveryStates = map[model.DeliveryState]windlassv1.NotificationDelivery_State{
	model.DeliveryPending:   windlassv1.NotificationDelivery_STATE_PENDING,
	model.DeliveryDelivered: windlassv1.NotificationDelivery_STATE_DELIVERED,
	model.DeliveryDead:      windlassv1.NotificationDelivery_STATE_DEAD,
}

func deliveryView(d model.Delivery) *windlassv1.NotificationDelivery {
	v := &windlassv1.NotificationDelivery{
		Id: d.MessageID, Kind: windlassv1.NotificationKind(d.Kind), State: deliveryStates[d.State], At: d.At, What: d.What, Why: d.Why, Who: d.Who,
		App: d.AppPath(), Version: d.Version, Region: d.Region, Events: d.Events, Apps: d.Apps, Attempts: d.Attempts, DoneAt: d.DoneAt, Problem: d.Problem,
	}
	if d.State == model.DeliveryPending {
		v.NextAt = d.DueAt
	}
	return v
}
