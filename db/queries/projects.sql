-- name: InsertProject :exec
INSERT INTO projects (id, workspace_id, name, created_at, updated_at, resource_version)
VALUES (?, ?, ?, ?, ?, ?);

-- name: GetProject :one
SELECT * FROM projects WHERE workspace_id = ? AND id = ?;

-- name: GetProjects :many
SELECT * FROM projects WHERE workspace_id = ? AND id IN (sqlc.slice(ids));

-- name: GetProjectByName :one
SELECT * FROM projects WHERE workspace_id = ? AND name = ?;

-- name: ListProjects :many
SELECT * FROM projects
WHERE workspace_id = ? AND name > sqlc.arg(after)
ORDER BY name LIMIT ?;

-- name: UpdateProject :execrows
UPDATE projects
SET name = ?, updated_at = ?, resource_version = resource_version + 1
WHERE workspace_id = ? AND id = ? AND resource_version = ?;

-- name: DeleteProject :execrows
DELETE FROM projects WHERE workspace_id = ? AND id = ?;
