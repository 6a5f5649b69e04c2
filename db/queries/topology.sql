-- name: LockTopologyOfApps :many
-- These locks are the second in the lock order. They are taken in sorted order.
SELECT * FROM deployment_topology FORCE INDEX (topology_by_app)
WHERE app_id IN (sqlc.slice(app_ids)) ORDER BY deployment_id, region FOR UPDATE;

-- name: ListTopologyOfApps :many
SELECT * FROM deployment_topology
WHERE app_id IN (sqlc.slice(app_ids))
ORDER BY deployment_id, region;

-- name: ListTopologyOfEnvironment :many
-- 4 is stopped, here and below.
SELECT t.* FROM deployment_topology t
JOIN apps a ON a.id = t.app_id
WHERE a.environment_id = ? AND t.status <> 4
ORDER BY t.app_id, t.deployment_id, t.region;

-- name: CountTopologyOfRegion :one
SELECT COUNT(*) FROM deployment_topology WHERE region = ? AND status <> 4;

-- name: CountTopology :many
-- For metrics. Reads only the index by region.
SELECT region, status, COUNT(*) AS row_count FROM deployment_topology
WHERE status <> 4 GROUP BY region, status;

-- name: AppsInRegion :many
SELECT DISTINCT app_id FROM deployment_topology WHERE region = ? AND status <> 4 ORDER BY app_id;

-- name: GetAssignments :many
SELECT sqlc.embed(t), CAST(COALESCE(a.rollout_id, '') <> '' AS SIGNED) AS under_way
FROM deployment_topology t LEFT JOIN apps a ON a.id = t.app_id
WHERE t.deployment_id IN (sqlc.slice(deployment_ids)) AND t.region IN (sqlc.slice(regions))
ORDER BY t.deployment_id, t.region;

-- name: TargetsOfApps :many
SELECT t.app_id, t.region, t.deployment_id, t.weight, t.workload,
    (SELECT COUNT(*) FROM app_pins p WHERE p.app_id = t.app_id AND p.deployment_id = t.deployment_id) AS pins
FROM deployment_topology t
WHERE t.app_id IN (sqlc.slice(app_ids)) AND t.region IN (sqlc.slice(regions)) AND t.weight > 0 AND t.status <> 4
ORDER BY t.app_id, t.deployment_id;

-- name: LockStoppedTopology :many
SELECT deployment_id, region FROM deployment_topology
WHERE status = 4 AND updated_at < sqlc.arg(stopped_before)
ORDER BY updated_at LIMIT ? FOR UPDATE;
