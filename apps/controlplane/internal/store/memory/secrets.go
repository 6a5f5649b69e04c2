package memory

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func (t *tx) InsertSecretVersion(s model.Secret) error {
	key := pair{s.EnvironmentID, s.Name}
	floor, err := t.SecretFloor(s.EnvironmentID)
	if err != nil {
		return err
	}
	stored, ok, err := secretTable.overlayIn(t).lock(key)
	switch {
	case err != nil:
		return err
	case ok && s.Version != stored.version+1 && s.Version == floor+1:
		return fmt.Errorf("store: insert secret %q: %w", s.Name, model.ErrExists)
	case ok && stored.workspaceID != s.WorkspaceID, ok && s.Version != stored.version+1, !ok && s.Version != floor+1:
		return fmt.Errorf("store: insert secret %q version %d, which is not the latest plus one: %w", s.Name, s.Version, model.ErrConflict)
	case !ok:
		stored = secret{workspaceID: s.WorkspaceID, name: key, createdAt: s.CreatedAt}
	}
	stored.version, stored.updatedAt = s.Version, s.UpdatedAt
	if err := secretTable.overlayIn(t).put(stored); err != nil {
		return err
	}
	return secretVersionTable.overlayIn(t).put(secretVersion{
		key: versionKey{key, s.Version}, ciphertext: s.Ciphertext, createdAt: s.UpdatedAt,
	})
}

func (t *tx) SecretFloor(environmentID string) (int32, error) {
	f, _ := secretFloorTable.overlayIn(t).get(environmentID)
	return f.version, nil
}

func (t *tx) GetSecret(workspaceID, environmentID, name string) (model.Secret, error) {
	s, ok := secretTable.overlayIn(t).get(pair{environmentID, name})
	if !ok || s.workspaceID != workspaceID {
		return model.Secret{}, notFound("secret", name)
	}
	return t.GetSecretVersion(workspaceID, environmentID, name, s.version)
}

func (t *tx) GetSecretVersion(workspaceID, environmentID, name string, version int32) (model.Secret, error) {
	key := pair{environmentID, name}
	s, ok := secretTable.overlayIn(t).get(key)
	if !ok || s.workspaceID != workspaceID {
		return model.Secret{}, notFound("secret", name)
	}
	v, ok := secretVersionTable.overlayIn(t).get(versionKey{key, version})
	if !ok {
		return model.Secret{}, notFound(fmt.Sprintf("version %d of secret", version), name)
	}
	m := s.toModel()
	m.Version, m.Ciphertext, m.UpdatedAt = version, v.ciphertext, v.createdAt
	return m, nil
}

func (s secret) toModel() model.Secret {
	return model.Secret{
		WorkspaceID: s.workspaceID, EnvironmentID: s.name.a, Name: s.name.b, Version: s.version,
		CreatedAt: s.createdAt, UpdatedAt: s.updatedAt,
	}
}

func (t *tx) ListSecrets(workspaceID, environmentID string, p store.Page) ([]model.Secret, error) {
	var rows []model.Secret
	for _, s := range secretTable.overlayIn(t).list(func(s secret) bool {
		return s.workspaceID == workspaceID && s.name.a == environmentID
	}) {
		rows = append(rows, s.toModel())
	}
	return pageOf(rows, p, func(s model.Secret) string { return s.Name }), nil
}

func (t *tx) SecretVersions(environmentID string, names []string) (map[string]int32, error) {
	versions := map[string]int32{}
	for _, name := range names {
		if s, ok := secretTable.overlayIn(t).get(pair{environmentID, name}); ok {
			versions[name] = s.version
		}
	}
	return versions, nil
}

func (t *tx) DeleteSecret(workspaceID, environmentID, name string) error {
	key := pair{environmentID, name}
	s, ok := secretTable.overlayIn(t).get(key)
	if !ok || s.workspaceID != workspaceID {
		return notFound("secret", name)
	}
	floor, _, err := secretFloorTable.overlayIn(t).lock(environmentID)
	if err != nil {
		return err
	}
	floor = secretFloor{environmentID: environmentID, version: max(floor.version, s.version)}
	if err := secretFloorTable.overlayIn(t).put(floor); err != nil {
		return err
	}
	return t.deleteSecret(key)
}

func (t *tx) deleteSecret(key pair) error {
	for _, v := range secretVersionTable.overlayIn(t).list(func(v secretVersion) bool { return v.key.name == key }) {
		if err := secretVersionTable.overlayIn(t).delete(v.key); err != nil {
			return err
		}
	}
	return secretTable.overlayIn(t).delete(key)
}
