-- name: PutFreeze :exec
REPLACE INTO freezes (
    id, workspace_id, name, project_id, app_id, reason, on_start, starts_at, ends_at, weekly, time_zone, set_by, set_at, from_file
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: ListFreezes :many
SELECT * FROM freezes WHERE workspace_id = ? AND name > sqlc.arg(after) ORDER BY name LIMIT ?;

-- name: ListFreezesFor :many
-- Leaves out freezes that come from the files of other apps.
SELECT * FROM freezes
WHERE workspace_id = sqlc.arg(workspace_id)
  AND (NOT from_file OR name = sqlc.arg(name) OR app_id IN (sqlc.slice(app_ids)))
ORDER BY name;

-- name: DeleteFreeze :execrows
DELETE FROM freezes WHERE workspace_id = ? AND name = ?;

-- name: DeleteFreezesOf :exec
-- Deletes the freezes of a project or an app that is being deleted.
DELETE FROM freezes
WHERE workspace_id = sqlc.arg(workspace_id)
  AND (project_id <> '' AND project_id = sqlc.arg(project_id) OR app_id <> '' AND app_id = sqlc.arg(app_id));

-- name: DeleteFreezesOfWorkspace :exec
DELETE FROM freezes WHERE workspace_id = ?;

-- name: ListFrozenApps :many
SELECT a.id FROM apps a JOIN rollouts r ON r.id = a.rollout_id
WHERE a.workspace_id = ? AND a.deleted_at = 0 AND a.rollout_id <> '' AND r.held_since > 0
ORDER BY a.id;
