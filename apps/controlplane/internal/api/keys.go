package api

import (
	"crypto/rand"
	"encoding/base64"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func keyProto(k model.APIKey) *windlassv1.ApiKey {
	return &windlassv1.ApiKey{
		Id: k.ID, Name: k.Name, Role: k.Role, Prefix: k.Prefix, WorkspaceId: k.WorkspaceID,
		CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt, RevokedAt: k.RevokedAt, MadeBy: k.MadeBy, Family: k.Family(),
	}
}

// newCredential returns a credential's value: the prefix and 256 random bits.
func newCredential(prefix string) string {
	b := make([]byte, 32)
	rand.Read(b) // never fails: it ends the program instead
	return prefix + base64.RawURLEncoding.EncodeToString(b)
}

// newKey returns the row of a new key with the value. The new key joins the family of the caller's key, unless an
// operator makes it for a workspace.
func (c tenantMutation) newKey(value, workspaceID, name string, role windlassv1.Role, expires int64) model.APIKey {
	id := ident.New("key")
	family := id
	if c.by.WorkspaceID == workspaceID {
		family = c.by.Family()
	}
	return model.APIKey{
		ID: id, MadeBy: c.by.ID, FamilyID: family, WorkspaceID: workspaceID, Name: name, Role: role,
		Prefix: value[:shownPrefix], Hash: model.HashToken(value), CreatedAt: c.at, ExpiresAt: expires,
	}
}
