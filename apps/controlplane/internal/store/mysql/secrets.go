package mysql

import (
	"database/sql"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
)

// InsertSecretVersion updates the secret's row first. So if two writers insert the same version, the second finds that
// it exists.
func (t *tx) InsertSecretVersion(s model.Secret) error {
	n, err := t.q.AdvanceSecret(t.ctx, gen.AdvanceSecretParams{
		Version: s.Version, UpdatedAt: s.UpdatedAt,
		WorkspaceID: s.WorkspaceID, EnvironmentID: s.EnvironmentID, Name: s.Name,
	})
	if err != nil {
		return t.queryError(err, "insert secret", s.Name)
	}
	if n == 0 {
		if err := t.insertSecret(s); err != nil {
			return err
		}
	}
	return t.queryError(t.q.InsertSecretVersion(t.ctx, gen.InsertSecretVersionParams{
		EnvironmentID: s.EnvironmentID, Name: s.Name, Version: s.Version, Ciphertext: notNull(s.Ciphertext), CreatedAt: s.UpdatedAt,
	}), "insert secret", s.Name)
}

func (t *tx) insertSecret(s model.Secret) error {
	floor, err := t.SecretFloor(s.EnvironmentID)
	if err != nil {
		return err
	}
	if s.Version != floor+1 {
		return fmt.Errorf("store: insert secret %q version %d, which is not the latest plus one: %w", s.Name, s.Version, model.ErrConflict)
	}
	return t.queryError(t.q.InsertSecret(t.ctx, gen.InsertSecretParams{
		EnvironmentID: s.EnvironmentID, Name: s.Name, WorkspaceID: s.WorkspaceID, Version: s.Version,
		CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt,
	}), "insert secret", s.Name)
}

// SecretFloor reads the primary, because the caller writes a version that follows from it.
func (t *tx) SecretFloor(environmentID string) (int32, error) {
	version, err := t.primary.GetSecretFloor(t.ctx, environmentID)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return version, t.queryError(err, "read secret floor of", environmentID)
}

func (t *tx) GetSecret(workspaceID, environmentID, name string) (model.Secret, error) {
	return get(t, "get secret", name, func(r gen.GetSecretRow) (model.Secret, error) {
		return model.Secret{
			WorkspaceID: r.WorkspaceID, EnvironmentID: r.EnvironmentID, Name: r.Name, Version: r.Version,
			Ciphertext: blobOrNil(r.Ciphertext), CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
		}, nil
	})(t.q.GetSecret(t.ctx, gen.GetSecretParams{WorkspaceID: workspaceID, EnvironmentID: environmentID, Name: name}))
}

func (t *tx) GetSecretVersion(workspaceID, environmentID, name string, version int32) (model.Secret, error) {
	return get(t, "get secret", name, func(r gen.GetSecretVersionRow) (model.Secret, error) {
		return model.Secret{
			WorkspaceID: r.WorkspaceID, EnvironmentID: r.EnvironmentID, Name: r.Name, Version: r.Version,
			Ciphertext: blobOrNil(r.Ciphertext), CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
		}, nil
	})(t.q.GetSecretVersion(t.ctx, gen.GetSecretVersionParams{
		WorkspaceID: workspaceID, EnvironmentID: environmentID, Name: name, Version: version,
	}))
}

func (t *tx) ListSecrets(workspaceID, environmentID string, p store.Page) ([]model.Secret, error) {
	return list(t, "list secrets of", environmentID, func(r gen.Secret) (model.Secret, error) {
		return model.Secret{
			WorkspaceID: r.WorkspaceID, EnvironmentID: r.EnvironmentID, Name: r.Name, Version: r.Version,
			CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
		}, nil
	})(t.q.ListSecrets(t.ctx, gen.ListSecretsParams{
		WorkspaceID: workspaceID, EnvironmentID: environmentID, After: p.After, Limit: limitOrAll(p.Limit),
	}))
}

func (t *tx) SecretVersions(environmentID string, names []string) (map[string]int32, error) {
	versions := map[string]int32{}
	if len(names) == 0 {
		return versions, nil
	}
	rows, err := t.q.LatestSecretVersions(t.ctx, gen.LatestSecretVersionsParams{
		EnvironmentIds: []string{environmentID}, Names: sortDistinct(names),
	})
	if err != nil {
		return nil, t.queryError(err, "read secret versions of", environmentID)
	}
	for _, r := range rows {
		versions[r.Name] = r.Version
	}
	return versions, nil
}

func (t *tx) DeleteSecret(workspaceID, environmentID, name string) error {
	err := t.q.RaiseSecretFloor(t.ctx, gen.RaiseSecretFloorParams{WorkspaceID: workspaceID, EnvironmentID: environmentID, Name: name})
	if err != nil {
		return t.queryError(err, "delete secret", name)
	}
	n, err := t.q.DeleteSecret(t.ctx, gen.DeleteSecretParams{WorkspaceID: workspaceID, EnvironmentID: environmentID, Name: name})
	if err := t.requireFound(n, err, "delete secret", name); err != nil {
		return err
	}
	return t.queryError(t.q.DeleteSecretVersions(t.ctx, gen.DeleteSecretVersionsParams{
		EnvironmentID: environmentID, Name: name,
	}), "delete secret", name)
}
