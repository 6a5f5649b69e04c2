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

// RevokeApiKey revokes a key, named by its id or its name. This cannot be undone. The last owner key of a workspace
// and the last operator key cannot be revoked, because then no key could make new keys. Keys that expire do not
// count.
func (a accessService) RevokeApiKey(ctx context.Context, req *windlassv1.RevokeApiKeyRequest) (*windlassv1.RevokeApiKeyResponse, error) {
	var hash []byte
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.RevokeApiKeyResponse, error) {
		k, err := c.tenants().findKey(req.GetKey())
		if err != nil {
			return nil, err
		}
		hash = k.Hash
		if k.RevokedAt != 0 {
			return &windlassv1.RevokeApiKeyResponse{Key: keyProto(k)}, nil
		}
		if err := c.tenants().notLastOwner(k); err != nil {
			return nil, err
		}
		before := keyProto(k)
		if err := c.RevokeAPIKey(k.WorkspaceID, k.ID, c.at); err != nil {
			return nil, fmt.Errorf("revoke API key %s: %w", k.ID, err)
		}
		k.RevokedAt = c.at
		return &windlassv1.RevokeApiKeyResponse{Key: keyProto(k)}, c.auditChange("api_key", k.ID, before, keyProto(k))
	})
	if err == nil {
		a.keys.forgetKey(hash)
	}
	return res, err
}

// notLastOwner fails if k is the last key that can manage keys of its workspace or of the platform.
func (c tenantMutation) notLastOwner(k model.APIKey) error {
	if k.Role != windlassv1.Role_ROLE_OWNER && k.Role != windlassv1.Role_ROLE_OPERATOR {
		return nil
	}
	page := model.Page{Limit: 500}
	for {
		rows, err := c.ListAPIKeys(k.WorkspaceID, page)
		if err != nil {
			return fmt.Errorf("list API keys: %w", err)
		}
		for _, other := range rows {
			if other.ID != k.ID && other.Role == k.Role && other.RevokedAt == 0 && other.ExpiresAt == 0 {
				return nil
			}
			page.After = other.Name
		}
		if len(rows) < page.Limit {
			of := "the workspace's"
			if k.Role == windlassv1.Role_ROLE_OPERATOR {
				of = "the platform's"
			}
			return apierr.InUse(fmt.Sprintf("key %s is %s last %s key that does not expire", k.Name, of, model.RoleName(k.Role)), "Make another "+model.RoleName(k.Role)+" key first.")
		}
	}
}

// findKey finds a key of the caller's workspace by id or name.
func (c tenantMutation) findKey(ref string) (model.APIKey, error) {
	unknown := apierr.Missing("key", "API key", ref, "`windlass key list` shows the keys.")
	if ident.Valid("key", ref) {
		k, err := c.GetAPIKey(c.workspaceID, ref)
		switch {
		case errors.Is(err, model.ErrNotFound):
			return k, unknown
		case err != nil:
			return k, fmt.Errorf("read API key %s: %w", ref, err)
		}
		return k, nil
	}
	// Keys are listed by name, so a page that ends before the name is skipped.
	page := model.Page{Limit: 500}
	for {
		rows, err := c.ListAPIKeys(c.workspaceID, page)
		if err != nil {
			return model.APIKey{}, fmt.Errorf("list API keys: %w", err)
		}
		for _, k := range rows {
			if k.Name == ref {
				return k, nil
			}
			page.After = k.Name
		}
		if len(rows) < page.Limit || page.After > ref {
			return model.APIKey{}, unknown
		}
	}
}
