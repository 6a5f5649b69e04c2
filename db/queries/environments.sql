-- name: InsertEnvironment :exec
INSERT INTO environments (id, workspace_id, project_id, name, variables, created_at, updated_at, resource_version)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: GetEnvironment :one
SELECT * FROM environments WHERE workspace_id = ? AND id = ?;

-- name: GetEnvironments :many
SELECT * FROM environments WHERE workspace_id = ? AND id IN (sqlc.slice(ids));

-- name: LockEnvironment :one
SELECT * FROM environments WHERE workspace_id = ? AND id = ? FOR UPDATE;

-- name: GetEnvironmentByName :one
SELECT * FROM environments WHERE workspace_id = ? AND project_id = ? AND name = ?;

-- name: ListEnvironments :many
SELECT * FROM environments
WHERE workspace_id = ? AND project_id = ? AND name > sqlc.arg(after)
ORDER BY name LIMIT ?;

-- name: UpdateEnvironment :execrows
UPDATE environments
SET name = ?, variables = ?, updated_at = ?, resource_version = resource_version + 1
WHERE workspace_id = ? AND id = ? AND resource_version = ?;

-- name: DeleteEnvironment :execrows
DELETE FROM environments WHERE workspace_id = ? AND id = ?;
