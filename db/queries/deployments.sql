-- name: GetDeployment :one
SELECT * FROM deployments WHERE workspace_id = ? AND id = ?;

-- name: GetDeploymentByVersion :one
SELECT * FROM deployments WHERE workspace_id = ? AND app_id = ? AND version = ?;

-- name: GetDeployments :many
SELECT * FROM deployments WHERE id IN (sqlc.slice(ids));

-- name: GetNewestDeployments :many
SELECT d.* FROM deployments d JOIN apps a ON a.id = d.app_id AND a.latest_version = d.version
WHERE a.id IN (sqlc.slice(apps));

-- name: ListDeployments :many
SELECT * FROM deployments
WHERE workspace_id = ? AND id < sqlc.arg(before)
ORDER BY id DESC LIMIT ?;

-- name: ListDeploymentsOfApp :many
SELECT * FROM deployments
WHERE workspace_id = ? AND app_id = ? AND id < sqlc.arg(before)
ORDER BY id DESC LIMIT ?;

-- name: DesiredOfKeys :many
-- Like DesiredOfRegion, but for given keys in several regions.
SELECT t.workspace_id, t.deployment_id, t.region, t.replicas, t.status, t.app_id, t.generation, t.weight,
    t.reason, t.traceparent, t.workload, t.workload_version, t.handed_over, t.max_unavailable, t.roles AS pool_roles, t.moving,
    d.version, d.spec, d.spec_hash, d.made_as, d.roles_made, d.resolved_image,
    a.name AS app, a.project_id, a.environment_id,
    COALESCE(e.name, '') AS environment, COALESCE(p.name, '') AS project,
    pin.app_id IS NOT NULL AS pinned, COALESCE(s.policy, '') AS scaling, COALESCE(s.holds, '') AS holds,
    COALESCE(l.instances, -1) AS max_instances, COALESCE(l.gpus, -1) AS max_gpus,
    COALESCE(u.counted_at, 0) AS counted_at, COALESCE(u.instances, 0) AS has_instances, COALESCE(u.gpus, 0) AS has_gpus,
    COALESCE(r.workspace_id, '') AS region_owner, g.region IS NOT NULL AS granted
FROM deployment_topology t
LEFT JOIN deployments d ON d.id = t.deployment_id
LEFT JOIN apps a ON a.id = t.app_id
LEFT JOIN (environments e JOIN projects p ON p.id = e.project_id) ON e.id = a.environment_id
LEFT JOIN app_pins pin ON pin.app_id = t.app_id AND pin.deployment_id = t.deployment_id
LEFT JOIN app_scaling s ON s.app_id = t.app_id
LEFT JOIN workspace_limits l ON l.workspace_id = t.workspace_id AND s.app_id IS NOT NULL
LEFT JOIN workspace_starts u ON u.workspace_id = t.workspace_id AND s.app_id IS NOT NULL
LEFT JOIN regions r ON r.id = t.region AND s.app_id IS NOT NULL
LEFT JOIN region_grants g ON g.region = t.region AND g.workspace_id = t.workspace_id AND s.app_id IS NOT NULL
WHERE t.deployment_id IN (sqlc.slice(deployment_ids)) AND t.region IN (sqlc.slice(regions))
ORDER BY t.deployment_id, t.region;

-- name: DesiredOfRegion :many
-- Reads only the columns that are sent to the region's agent, because a region may have many
-- deployments. Tombstones need no other columns, and their other rows may already be deleted.
SELECT t.workspace_id, t.deployment_id, t.region, t.replicas, t.status, t.app_id, t.generation, t.weight,
    t.reason, t.traceparent, t.workload, t.workload_version, t.handed_over, t.max_unavailable, t.roles AS pool_roles, t.moving,
    d.version, d.spec, d.spec_hash, d.made_as, d.roles_made, d.resolved_image,
    a.name AS app, a.project_id, a.environment_id,
    COALESCE(e.name, '') AS environment, COALESCE(p.name, '') AS project,
    pin.app_id IS NOT NULL AS pinned, COALESCE(s.policy, '') AS scaling, COALESCE(s.holds, '') AS holds,
    COALESCE(l.instances, -1) AS max_instances, COALESCE(l.gpus, -1) AS max_gpus,
    COALESCE(u.counted_at, 0) AS counted_at, COALESCE(u.instances, 0) AS has_instances, COALESCE(u.gpus, 0) AS has_gpus,
    COALESCE(r.workspace_id, '') AS region_owner, g.region IS NOT NULL AS granted
FROM deployment_topology t FORCE INDEX (topology_in_region)
LEFT JOIN deployments d ON d.id = t.deployment_id
LEFT JOIN apps a ON a.id = t.app_id
LEFT JOIN (environments e JOIN projects p ON p.id = e.project_id) ON e.id = a.environment_id
LEFT JOIN app_pins pin ON pin.app_id = t.app_id AND pin.deployment_id = t.deployment_id
LEFT JOIN app_scaling s ON s.app_id = t.app_id
LEFT JOIN workspace_limits l ON l.workspace_id = t.workspace_id AND s.app_id IS NOT NULL
LEFT JOIN workspace_starts u ON u.workspace_id = t.workspace_id AND s.app_id IS NOT NULL
LEFT JOIN regions r ON r.id = t.region AND s.app_id IS NOT NULL
LEFT JOIN region_grants g ON g.region = t.region AND g.workspace_id = t.workspace_id AND s.app_id IS NOT NULL
WHERE t.region = ? AND t.deployment_id > sqlc.arg(after)
ORDER BY t.deployment_id LIMIT ?;
