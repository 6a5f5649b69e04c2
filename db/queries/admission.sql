-- name: LockAdmission :one
-- In the lock order, this lock is after the app's rows and before the heads. SYSDATE returns the
-- time when the lock was acquired. NOW would return the time when the statement began.
SELECT w.id,
    COALESCE(l.apps, -1) AS apps, COALESCE(l.deployments, -1) AS deployments,
    COALESCE(l.instances, -1) AS instances, COALESCE(l.gpus, -1) AS gpus, COALESCE(l.rollouts, -1) AS rollouts,
    COALESCE(l.starts_per_minute, -1) AS starts_per_minute, COALESCE(l.starts_burst, -1) AS starts_burst,
    COALESCE(l.updated_at, 0) AS updated_at, COALESCE(l.resource_version, 0) AS resource_version,
    COALESCE(s.full_at, 0) AS full_at, COALESCE(s.counted_at, 0) AS counted_at,
    COALESCE(s.apps, 0) AS has_apps, COALESCE(s.deployments, 0) AS has_deployments,
    COALESCE(s.instances, 0) AS has_instances, COALESCE(s.gpus, 0) AS has_gpus, COALESCE(s.rollouts, 0) AS has_rollouts,
    CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED) AS now_at
FROM workspaces w
LEFT JOIN workspace_limits l ON l.workspace_id = w.id
LEFT JOIN workspace_starts s ON s.workspace_id = w.id
WHERE w.id = ? FOR UPDATE;

-- name: GetAdmission :one
SELECT w.id,
    COALESCE(l.apps, -1) AS apps, COALESCE(l.deployments, -1) AS deployments,
    COALESCE(l.instances, -1) AS instances, COALESCE(l.gpus, -1) AS gpus, COALESCE(l.rollouts, -1) AS rollouts,
    COALESCE(l.starts_per_minute, -1) AS starts_per_minute, COALESCE(l.starts_burst, -1) AS starts_burst,
    COALESCE(l.updated_at, 0) AS updated_at, COALESCE(l.resource_version, 0) AS resource_version,
    COALESCE(s.full_at, 0) AS full_at, COALESCE(s.counted_at, 0) AS counted_at,
    COALESCE(s.apps, 0) AS has_apps, COALESCE(s.deployments, 0) AS has_deployments,
    COALESCE(s.instances, 0) AS has_instances, COALESCE(s.gpus, 0) AS has_gpus, COALESCE(s.rollouts, 0) AS has_rollouts,
    CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED) AS now_at
FROM workspaces w
LEFT JOIN workspace_limits l ON l.workspace_id = w.id
LEFT JOIN workspace_starts s ON s.workspace_id = w.id
WHERE w.id = ?;

-- name: PutLimits :exec
-- The caller has locked the workspace's row, so no other write comes in between.
REPLACE INTO workspace_limits (
    workspace_id, apps, deployments, instances, gpus, rollouts, starts_per_minute, starts_burst, updated_at, resource_version
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: PutStanding :exec
-- The caller has locked the workspace's row, so no other write comes in between.
REPLACE INTO workspace_starts (
    workspace_id, full_at, counted_at, apps, deployments, instances, gpus, rollouts
) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: DeleteLimits :exec
DELETE FROM workspace_limits WHERE workspace_id = ?;

-- name: DeleteStarts :exec
DELETE FROM workspace_starts WHERE workspace_id = ?;

-- name: UsageOfWorkspace :one
-- A claim counts only if it matches the app's current live deployment and rollout. An app with
-- instances and without such a claim is unsettled.
SELECT COUNT(*) AS apps,
    CAST(COALESCE(SUM(a.live_deployment_id <> '' OR a.rollout_id <> ''), 0) AS SIGNED) AS deployments,
    CAST(COALESCE(SUM(a.rollout_id <> ''), 0) AS SIGNED) AS rollouts,
    CAST(COALESCE(SUM(c.instances), 0) AS SIGNED) AS instances,
    CAST(COALESCE(SUM(c.gpus), 0) AS SIGNED) AS gpus,
    CAST(COALESCE(SUM(c.app_id IS NULL AND (a.live_deployment_id <> '' OR a.rollout_id <> '')), 0) AS SIGNED) AS unsettled
FROM apps a
LEFT JOIN app_claims c
    ON c.app_id = a.id AND c.live_deployment_id = a.live_deployment_id AND c.rollout_id = a.rollout_id
WHERE a.workspace_id = sqlc.arg(workspace_id) AND a.deleted_at = 0 AND a.id <> sqlc.arg(except_app_id);

-- name: UnsettledApps :many
SELECT a.* FROM apps a
LEFT JOIN app_claims c
    ON c.app_id = a.id AND c.live_deployment_id = a.live_deployment_id AND c.rollout_id = a.rollout_id
WHERE a.workspace_id = sqlc.arg(workspace_id) AND a.deleted_at = 0 AND a.id > sqlc.arg(after) AND a.id <> sqlc.arg(except_app_id)
    AND (a.live_deployment_id <> '' OR a.rollout_id <> '') AND c.app_id IS NULL
ORDER BY a.id LIMIT ?;

-- name: DeleteClaimsOfApps :exec
DELETE FROM app_claims WHERE app_id IN (sqlc.slice(app_ids));
