-- name: PutProtection :exec
REPLACE INTO protections (
    workspace_id, scope_id, by_operator, approvals, approval_role, not_deployer, bake_time, auto_rollback, reason, set_by, set_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: ListProtections :many
SELECT * FROM protections WHERE workspace_id = ? ORDER BY scope_id, by_operator LIMIT ?;

-- name: DeleteProtection :execrows
DELETE FROM protections WHERE workspace_id = ? AND scope_id = ? AND by_operator = ?;

-- name: DeleteProtectionsOf :exec
-- Deletes the protections of a project or an environment that is being deleted.
DELETE FROM protections WHERE workspace_id = ? AND scope_id = ?;

-- name: DeleteProtectionsOfWorkspace :exec
DELETE FROM protections WHERE workspace_id = ?;
