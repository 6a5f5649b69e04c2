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

-- name: ListDeployments :many
SELECT * FROM deployments
WHERE workspace_id = ? AND id < sqlc.arg(before)
ORDER BY id DESC LIMIT ?;

-- name: ListDeploymentsOfApp :many
SELECT * FROM deployments
WHERE workspace_id = ? AND app_id = ? AND id < sqlc.arg(before)
ORDER BY id DESC LIMIT ?;

-- name: RunningInRegion :many
-- A join where DesiredItems of single keys asks by ids: of a whole region that takes a
-- quarter of the time.
SELECT sqlc.embed(deployments), apps.name AS app, apps.project_id, apps.environment_id,
    COALESCE(environments.name, '') AS environment, COALESCE(projects.name, '') AS project
FROM deployment_topology
JOIN deployments ON deployments.id = deployment_topology.deployment_id
JOIN apps ON apps.id = deployment_topology.app_id
LEFT JOIN (environments JOIN projects ON projects.id = environments.project_id) ON environments.id = apps.environment_id
WHERE deployment_topology.region = ? AND deployment_topology.status NOT IN (3, 4);
