-- name: InsertDeployment :exec
INSERT INTO deployments (
    id, workspace_id, app_id, version, spec, spec_hash, resolved_image, status, reason, message,
    source, from_version, created_by, stable, created_at, ready_at, ended_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: GetDeployment :one
SELECT * FROM deployments WHERE workspace_id = ? AND id = ?;

-- name: GetDeploymentByVersion :one
SELECT * FROM deployments WHERE workspace_id = ? AND app_id = ? AND version = ?;

-- name: GetDeployments :many
SELECT * FROM deployments WHERE id IN (sqlc.slice(ids));

-- name: UpdateDeployment :execrows
-- Everything else is immutable.
UPDATE deployments
SET status = ?, reason = ?, message = ?, resolved_image = ?, stable = ?, ready_at = ?, ended_at = ?
WHERE workspace_id = ? AND id = ?;

-- name: ListDeployments :many
SELECT * FROM deployments
WHERE workspace_id = ? AND id < sqlc.arg(before)
ORDER BY id DESC LIMIT ?;

-- name: ListDeploymentsOfApp :many
SELECT * FROM deployments
WHERE workspace_id = ? AND app_id = ? AND id < sqlc.arg(before)
ORDER BY id DESC LIMIT ?;
