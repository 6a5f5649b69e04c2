-- name: InsertWorkspace :exec
INSERT INTO workspaces (id, name, created_at, updated_at, resource_version)
VALUES (?, ?, ?, ?, ?);

-- name: GetWorkspace :one
SELECT * FROM workspaces WHERE id = ?;

-- name: GetWorkspaces :many
SELECT * FROM workspaces WHERE id IN (sqlc.slice(ids));

-- name: GetWorkspaceByName :one
SELECT * FROM workspaces WHERE name = ?;

-- name: ListWorkspaces :many
SELECT * FROM workspaces WHERE name > sqlc.arg(after) ORDER BY name LIMIT ?;

-- name: UpdateWorkspace :execrows
-- Compares and sets resource_version. It changes no row if the workspace changed or was deleted.
UPDATE workspaces
SET name = ?, updated_at = ?, resource_version = resource_version + 1
WHERE id = ? AND resource_version = ?;

-- name: DeleteWorkspace :execrows
DELETE FROM workspaces WHERE id = ?;
