-- name: InsertAPIKey :exec
INSERT INTO api_keys (id, workspace_id, name, role, prefix, hash, created_at, expires_at, revoked_at, made_by, family_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: GetAPIKey :one
SELECT * FROM api_keys WHERE workspace_id = ? AND id = ?;

-- name: GetAPIKeyByHash :one
-- This read cannot name the workspace, because the row determines it.
SELECT * FROM api_keys WHERE hash = ?;

-- name: ListAPIKeys :many
SELECT * FROM api_keys
WHERE workspace_id = ? AND name > sqlc.arg(after)
ORDER BY name LIMIT ?;

-- name: RevokeAPIKey :execrows
-- A second revocation does not change the time of the first.
UPDATE api_keys SET revoked_at = IF(revoked_at = 0, CAST(sqlc.arg(at) AS SIGNED), revoked_at)
WHERE workspace_id = ? AND id = ?;

-- name: DeleteAPIKeysOfWorkspace :exec
DELETE FROM api_keys WHERE workspace_id = ?;
