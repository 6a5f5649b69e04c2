-- name: GetApp :one
SELECT * FROM apps WHERE workspace_id = ? AND id = ?;

-- name: GetAppByName :one
SELECT * FROM apps
WHERE workspace_id = ? AND environment_id = ? AND name = ? AND deleted_at = 0;

-- name: GetAppsByName :many
SELECT * FROM apps
WHERE workspace_id = ? AND environment_id = ? AND name IN (sqlc.slice(names)) AND deleted_at = 0;

-- name: LockApp :one
-- This lock is the first in the lock order of every transaction that changes an app.
SELECT * FROM apps WHERE workspace_id = ? AND id = ? FOR UPDATE;

-- name: LockApps :many
-- For workflows, which know only the app's id. In a small table the optimizer would read all rows
-- and wait for locks of other transactions. So this query, and all others that lock rows of several
-- apps, force the index.
SELECT * FROM apps FORCE INDEX (PRIMARY) WHERE id IN (sqlc.slice(ids)) ORDER BY id FOR UPDATE;

-- name: ListApps :many
SELECT * FROM apps
WHERE workspace_id = sqlc.arg(workspace_id) AND deleted_at = 0
  AND (name > sqlc.arg(after_name) OR (name = sqlc.arg(after_name) AND id > sqlc.arg(after_id)))
ORDER BY name, id LIMIT ?;

-- name: ListAppsOfEnvironment :many
SELECT * FROM apps
WHERE workspace_id = sqlc.arg(workspace_id) AND environment_id = sqlc.arg(environment_id) AND deleted_at = 0
  AND (name > sqlc.arg(after_name) OR (name = sqlc.arg(after_name) AND id > sqlc.arg(after_id)))
ORDER BY name, id LIMIT ?;

-- name: GetApps :many
SELECT * FROM apps WHERE id IN (sqlc.slice(ids));

-- name: CountAppsOfWorkspace :one
SELECT COUNT(*) FROM apps WHERE workspace_id = ? AND deleted_at = 0;

-- name: CountAppsOfProject :one
SELECT COUNT(*) FROM apps WHERE workspace_id = ? AND project_id = ? AND deleted_at = 0;

-- name: CountAppsOfEnvironment :one
SELECT COUNT(*) FROM apps WHERE workspace_id = ? AND environment_id = ? AND deleted_at = 0;
