-- name: GetRollout :one
SELECT * FROM rollouts WHERE workspace_id = ? AND id = ?;

-- name: GetActiveRollouts :many
-- Returns the state that a step of an app's workflow reads first. A caller that has locked an app's
-- row sees no partial change of the app, because every writer locks that row first.
SELECT sqlc.embed(r), sqlc.embed(d),
    s.app_id IS NOT NULL AS staged, COALESCE(s.policy, '') AS policy, COALESCE(s.course, '') AS course,
    COALESCE(s.updated_at, 0) AS staged_at
FROM rollouts r JOIN deployments d ON d.id = r.deployment_id LEFT JOIN app_staging s ON s.app_id = r.app_id
WHERE r.id IN (sqlc.slice(ids));

-- name: GetRollouts :many
SELECT * FROM rollouts WHERE id IN (sqlc.slice(ids));

-- name: ListRollouts :many
SELECT * FROM rollouts
WHERE workspace_id = ? AND app_id = ? AND id < sqlc.arg(before)
ORDER BY id DESC LIMIT ?;

-- name: GetStagings :many
SELECT * FROM app_staging WHERE app_id IN (sqlc.slice(app_ids));

-- name: PutStaging :exec
-- The caller has locked the app's row, so no other write comes in between.
REPLACE INTO app_staging (app_id, workspace_id, policy, course, updated_at) VALUES (?, ?, ?, ?, ?);

-- name: DeleteStagingsOfApps :exec
DELETE FROM app_staging WHERE app_id IN (sqlc.slice(app_ids));

-- name: CountActiveRollouts :one
-- For metrics: rollouts in flight of all workspaces.
SELECT COUNT(*) AS row_count, CAST(COALESCE(MIN(r.created_at), 0) AS SIGNED) AS oldest_at
FROM apps a JOIN rollouts r ON r.id = a.rollout_id
WHERE a.rollout_id <> '' AND a.deleted_at = 0;
