package memory

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// keyOfProtection returns the protection's workspace and scope. An operator's protection follows right after the
// workspace's own.
func keyOfProtection(p model.Protection) pair {
	if p.ByOperator {
		return pair{p.WorkspaceID, p.ScopeID + "+"}
	}
	return pair{p.WorkspaceID, p.ScopeID}
}

func (t *tx) PutProtection(p model.Protection) error { return protectionTable.overlayIn(t).put(p) }

func (t *tx) ListProtections(workspaceID string) ([]model.Protection, error) {
	rows := protectionTable.overlayIn(t).list(func(p model.Protection) bool { return p.WorkspaceID == workspaceID })
	return rows[:min(len(rows), model.MaxProtections)], nil
}

func (t *tx) DeleteProtection(workspaceID, scopeID string, byOperator bool) error {
	key := keyOfProtection(model.Protection{WorkspaceID: workspaceID, ScopeID: scopeID, ByOperator: byOperator})
	if _, ok, err := protectionTable.overlayIn(t).lock(key); err != nil {
		return err
	} else if !ok {
		return notFound("protection", scopeID)
	}
	return protectionTable.overlayIn(t).delete(key)
}

func (t *tx) DeleteProtectionsOf(workspaceID, scopeID string) error {
	return t.deleteProtections(func(p model.Protection) bool { return p.WorkspaceID == workspaceID && p.ScopeID == scopeID })
}

func (t *tx) deleteProtections(which func(model.Protection) bool) error {
	for _, p := range protectionTable.overlayIn(t).list(which) {
		if err := protectionTable.overlayIn(t).delete(keyOfProtection(p)); err != nil {
			return err
		}
	}
	return nil
}
