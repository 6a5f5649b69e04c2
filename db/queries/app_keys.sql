-- name: InsertAppKey :exec
INSERT INTO app_keys (app_id, name, workspace_id, prefix, hash, created_by, created_at, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: DeleteAppKey :execrows
DELETE FROM app_keys WHERE app_id = ? AND name = ?;

-- name: DeleteKeysOfApps :exec
DELETE FROM app_keys WHERE app_id IN (sqlc.slice(app_ids));

-- name: ListAppKeys :many
SELECT * FROM app_keys
WHERE workspace_id = sqlc.arg(workspace_id) AND (sqlc.arg(app_id) = '' OR app_id = sqlc.arg(app_id))
  AND (app_id > sqlc.arg(after_id) OR (app_id = sqlc.arg(after_id) AND name > sqlc.arg(after_name)))
ORDER BY app_id, name LIMIT ?;

-- name: KeysOfApps :many
SELECT * FROM app_keys WHERE app_id IN (sqlc.slice(app_ids)) ORDER BY app_id, name;
